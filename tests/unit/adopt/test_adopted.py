"""Directories of other clusters, served: as they are, or as a cluster of their own."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from checkpoints import clean_shutdown
from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.meta_properties import MetaProperties, MetaPropertiesFile
from checkpoints.types import TopicPartition
from logstore.common.clock import SystemClock
from logstore.common.errors import ConfigError, LogDirLockedError
from logstore.format.batch import BatchFields, encode_batch
from logstore.manager import LogManager
from logstore.storage.base import DirLock
from logstore.storage.memory import MemoryStorage
from logstore.storage.overlay import OverlayStorage
from logstore.testing import FaultyStorage, SimulatedCrash
from replication import ServedCluster, serve
from replication.adopt import (
    AdoptedCluster,
    AdoptionRules,
    Remark,
    has_tree,
    plan_adoption,
    write_tree,
)
from replication.adopt.home import ADOPTED, make_home
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import GROUP_METADATA
from replication.coordination import nodes
from replication.coordination.journal import read_tree
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.adopted import (
    ClusterFiles,
    keeping_offsets,
    locate_files,
    read_only_config,
)
from replication.server.config import ServerConfig
from tests.support.served import batch, connect, find_coordinator, produce
from tests.support.until import until
from tests.support.wire_client import WireClient
from tests.support.wire_producer import WireProducer

TP = TopicPartition("orders", 0)
OLD = "/old"
NEW = "/new"
GROUP = "group"
YEAR_MS = 365 * 86_400_000


def contents(storage: MemoryStorage, path: str) -> dict[str, tuple[int, bytes | None]]:
    found: dict[str, tuple[int, bytes | None]] = {}
    for entry in storage.scan_dir(path):
        below = f"{path}/{entry.name}"
        if entry.is_dir:
            found |= {below: (entry.mtime_ms, None), **contents(storage, below)}
        else:
            found[below] = entry.mtime_ms, storage.read_file(below)
    return found


def commit(client: WireClient, offset: int, group: str = GROUP) -> ErrorCode:
    find_coordinator(client, group)
    kind = wire.OffsetCommitRequest
    part = kind.OffsetCommitRequestPartition(TP.partition, offset, -1, "")
    request = kind(group, topics=(kind.OffsetCommitRequestTopic(TP.topic, partitions=(part,)),))
    answer = client.ask(ApiKey.OFFSET_COMMIT, 7, request)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def committed(client: WireClient, group: str = GROUP) -> int:
    find_coordinator(client, group)
    kind = wire.OffsetFetchRequest
    request = kind(group, (kind.OffsetFetchRequestTopic(TP.topic, (TP.partition,)),))

    def answer() -> Any:
        found = client.ask(ApiKey.OFFSET_FETCH, 7, request)
        return found if found.error_code == ErrorCode.NONE else None

    return int(until(answer, "the group is loaded").topics[0].partitions[0].committed_offset)


def values(kafka: ServedCluster, tp: TopicPartition = TP) -> list[bytes | None]:
    return [record.value for record in kafka.read_all(tp.topic)[tp.partition]]


def notes(kafka: ServedCluster) -> dict[str, Remark]:
    assert kafka.adoption is not None
    return {note.kind: note for note in kafka.adoption.notes}


def filled(storage: MemoryStorage, **options: Any) -> None:
    """A cluster of ours, without its coordinator's tree."""
    with serve(OLD, storage=storage, **options) as kafka, connect(kafka) as client:
        kafka.create_topic(TP.topic, 1, replication_factor=len(kafka.broker_ids))
        for value in (b"a", b"b"):
            kafka.produce(TP.topic, value)
        assert commit(client, 1) == ErrorCode.NONE
    storage.remove_tree(f"{OLD}/coordinator")


@pytest.fixture
def storage() -> MemoryStorage:
    found = MemoryStorage()
    filled(found)
    return found


# -- read-only -------------------------------------------------------------------------------------


def test_read_only_changes_nothing(storage: MemoryStorage) -> None:
    """R-185"""
    before = contents(storage, "/")
    with serve(adopt=OLD, read_only=True, storage=storage) as kafka, connect(kafka) as client:
        assert values(kafka) == [b"a", b"b"]
        assert committed(client) == 1
        assert commit(client, 2) == ErrorCode.NONE
        assert committed(client) == 2
        assert kafka.adoption is not None
        assert (kafka.adoption.groups, kafka.adoption.offsets) == (1, 1)
        answer = produce(client, TP, batch(b"c"))
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        kind = wire.CreateTopicsRequest
        made = client.ask(ApiKey.CREATE_TOPICS, 5, kind((kind.CreatableTopic("new", 1, 1),)))
        assert made.topics[0].error_code == ErrorCode.POLICY_VIOLATION
    assert contents(storage, "/") == before
    with serve(adopt=OLD, read_only=True, storage=storage) as kafka, connect(kafka) as client:
        assert committed(client) == 1


def test_read_only_serves_a_log_that_needs_recovery(storage: MemoryStorage) -> None:
    storage.remove(f"{OLD}/broker-0/.kafka_cleanshutdown")
    file = storage.open(f"{OLD}/broker-0/orders-0/{0:020d}.log")
    file.write_at(file.size(), b"torn")
    file.close()
    before = contents(storage, "/")
    with serve(adopt=OLD, read_only=True, storage=storage) as kafka:
        assert values(kafka) == [b"a", b"b"]
    assert contents(storage, "/") == before


@pytest.mark.parametrize("damage", ["a flipped bit", "a missing end"])
def test_a_log_that_was_cut_short_is_told(storage: MemoryStorage, damage: str) -> None:
    """Its first batch is damaged, and a good one follows; or the file ends below what was
    committed."""
    storage.remove(f"{OLD}/broker-0/.kafka_cleanshutdown")
    storage.remove(f"{OLD}/broker-0/recovery-point-offset-checkpoint")
    path = f"{OLD}/broker-0/orders-0/{0:020d}.log"
    data = bytearray(storage.read_file(path))
    if damage == "a flipped bit":
        data[len(data) // 2 - 1] ^= 1
        storage.remove(f"{OLD}/broker-0/replication-offset-checkpoint")
    else:
        del data[len(data) // 2 :]
    storage.write_file(path, bytes(data))
    with serve(adopt=OLD, read_only=True, storage=storage) as kafka:
        assert len(values(kafka)) < 2
        assert notes(kafka)["cut short"].names == ("orders-0",)


def test_read_only_serves_a_whole_cluster_with_its_tree() -> None:
    storage = MemoryStorage()
    with serve(OLD, storage=storage, brokers=2) as kafka:
        kafka.create_topic(TP.topic, 1, replication_factor=2)
        kafka.produce(TP.topic, b"a")
    before = contents(storage, "/")
    with serve(adopt=OLD, read_only=True, storage=storage) as kafka:
        assert kafka.broker_ids == [0, 1]
        assert values(kafka) == [b"a"]
    assert contents(storage, "/") == before


def test_nothing_expires_while_it_is_read_only() -> None:
    """The first round of each duty comes after a delay, and no later one before it (R-185)."""
    config = read_only_config(ServerConfig())
    century_ms = 90 * YEAR_MS
    assert config.broker.log_initial_task_delay_ms > century_ms
    assert not config.broker.log_cleaner_enable
    assert config.broker.producer_id_expiration_ms > century_ms
    assert config.groups.offsets_retention_minutes * 60_000 > century_ms
    assert config.groups.offsets_retention_check_interval_ms > century_ms
    assert not config.apis.auto_create_topics_enable


# -- a cluster of its own --------------------------------------------------------------------------


def test_an_adopted_cluster_goes_on(storage: MemoryStorage) -> None:
    """Its epochs begin above those of the old one (R-186)."""
    marker = f"{OLD}/broker-0/{CLEAN_SHUTDOWN}"
    clean_shutdown.write(marker, 7000, storage)
    for life, adopt in enumerate((f"{OLD}/broker-0", OLD, ())):
        with serve(NEW, storage=storage, adopt=adopt) as kafka, connect(kafka) as client:
            assert (kafka.adoption is None) is (life > 0)
            assert kafka.broker(0).broker_epoch > 7000
            assert committed(client) == 1 + life
            assert commit(client, 2 + life) == ErrorCode.NONE
            kafka.produce(TP.topic, b"%d" % life)
            assert values(kafka) == [b"a", b"b", b"0", b"1", b"2"][: 3 + life]
            epochs = kafka.replica(TP, 0).log.epochs.entries  # type: ignore[union-attr]
            assert [start for _, start in epochs] == [0, *range(2, 3 + life)]
    names = {entry.name for entry in storage.scan_dir(f"{OLD}/broker-0") if entry.is_dir}
    assert names == {"orders-0", *(f"{GROUP_METADATA}-{n}" for n in range(4))}


def test_transactions_go_on(storage: MemoryStorage) -> None:
    """An open one is ended by its coordinator; no producer id is given out twice."""
    storage = MemoryStorage()
    with serve(OLD, storage=storage) as kafka, connect(kafka) as client:
        kafka.create_topic(TP.topic, 1)
        first = WireProducer(kafka, client, "pays")
        assert first.init() == ErrorCode.NONE
        assert first.add(TP) == [ErrorCode.NONE]
        assert first.send(TP) == ErrorCode.NONE
    storage.remove_tree(f"{OLD}/coordinator")
    with serve(NEW, adopt=OLD, storage=storage) as kafka, connect(kafka) as client:
        assert notes(kafka)["open transactions"].names == ("orders-0",)
        second = WireProducer(kafka, client, "pays")
        assert second.init() == ErrorCode.NONE  # which ends what was open
        assert (second.producer_id, second.epoch > first.epoch) == (first.producer_id, True)
        other = WireProducer(kafka, client, "other")
        assert other.init() == ErrorCode.NONE
        assert other.producer_id > first.producer_id
        log = kafka.replica(TP, 0).log
        assert log is not None
        until(lambda: log.last_stable_offset == log.log_end_offset, "the transaction has ended")


@pytest.mark.slow
def test_only_a_later_epoch_leads_and_the_others_follow() -> None:
    """Of three copies the first is old; then another broker led."""
    storage = MemoryStorage()
    with serve(OLD, storage=storage, brokers=3) as kafka:
        kafka.create_topic(TP.topic, 1, replication_factor=3)
        kafka.produce(TP.topic, b"a")
        leader = kafka.wait_for_leader(TP)
        kafka.crash(leader)
        kafka.wait_for_leader(TP, not_broker=leader)
        kafka.produce(TP.topic, b"b")
    storage.remove_tree(f"{OLD}/coordinator")
    with serve(NEW, adopt=OLD, storage=storage) as kafka:
        assert kafka.broker_ids == [0, 1, 2]
        assert values(kafka) == [b"a", b"b"]
        kafka.wait_for_isr(TP, (0, 1, 2))
    with serve(
        adopt=[f"{OLD}/broker-{n}" for n in (2, 0, 1)], read_only=True, storage=storage
    ) as kafka:
        assert values(kafka) == [b"a", b"b"]


@pytest.mark.slow
def test_one_of_three_brokers_serves_its_part() -> None:
    storage = MemoryStorage()
    with serve(OLD, storage=storage, brokers=3) as kafka:
        kafka.create_topic("spread", 6, replication_factor=1)
        for number in range(6):
            kafka.produce("spread", b"%d" % number, partition=number)
    storage.remove_tree(f"{OLD}/coordinator")
    with serve(NEW, adopt=f"{OLD}/broker-1", storage=storage) as kafka, connect(kafka, 1) as client:
        assert kafka.broker_ids == [1]
        request = wire.MetadataRequest((wire.MetadataRequest.MetadataRequestTopic(name="spread"),))
        (topic,) = client.ask(ApiKey.METADATA, 9, request).topics
        codes = {part.partition_index: part.error_code for part in topic.partitions}
        led = {number for number, code in codes.items() if code == ErrorCode.NONE}
        here = {
            int(entry.name.removeprefix("spread-"))
            for entry in storage.scan_dir(f"{OLD}/broker-1")
            if entry.name.startswith("spread-")
        }
        assert led == here
        assert {*codes.values()} == {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
        assert max(codes) == max(here)
    assert {f"spread-{number}" for number in here} == {
        entry.name for entry in storage.scan_dir(f"{OLD}/broker-1") if "spread" in entry.name
    }


def test_two_log_directories_of_one_broker() -> None:
    storage = MemoryStorage()
    filled(storage, log_dirs_per_broker=2)
    paths = [f"{OLD}/broker-0/logs-{number}" for number in (0, 1)]
    for adopt in (paths, []):
        with serve(NEW, storage=storage, adopt=adopt) as kafka, connect(kafka) as client:
            assert values(kafka) == [b"a", b"b"]
            assert committed(client) == 1
            assert kafka.log_dirs(0) == paths


def test_folders_without_an_owner(storage: MemoryStorage) -> None:
    """As somebody rescued them: no meta.properties, no partition.metadata."""
    for name in ("meta.properties", ".kafka_cleanshutdown", "orders-0/partition.metadata"):
        storage.remove(f"{OLD}/broker-0/{name}")
    before = contents(storage, "/")
    with serve(adopt=f"{OLD}/broker-0", read_only=True, storage=storage) as kafka:
        assert values(kafka) == [b"a", b"b"]
        assert notes(kafka)["without an id"].names == ("orders",)
    assert contents(storage, "/") == before
    config = {"node.id": 7}
    with serve(NEW, adopt=f"{OLD}/broker-0", storage=storage, config=config) as kafka:
        assert kafka.broker_ids == [7]
        assert values(kafka) == [b"a", b"b"]
    meta = MetaPropertiesFile(f"{OLD}/broker-0/meta.properties", storage).read()
    assert meta is not None
    assert meta.node_id == 7


def test_offsets_of_an_old_backup_stay(storage: MemoryStorage) -> None:
    """Its broker's offsets.retention.minutes is not known, at this start and at later ones."""
    for adopt in ([f"{OLD}/broker-0"], []):
        place = locate_files(NEW, adopt, False, storage, ServerConfig())
        config = keeping_offsets(ServerConfig(), place)
        assert config.groups.offsets_retention_minutes * 60_000 > 90 * YEAR_MS
        given = ServerConfig.from_properties({"offsets.retention.minutes": 5})
        assert keeping_offsets(given, place) == given
    place = locate_files("/ours", [], False, storage, ServerConfig())
    assert keeping_offsets(ServerConfig(), place) == ServerConfig()


@pytest.mark.slow
def test_an_adoption_survives_a_kill_anywhere() -> None:
    """Until the journal has its name nothing has happened, and it can be tried again (R-186)."""
    storage = FaultyStorage()
    filled(storage)
    before = contents(storage, OLD)

    def adopt() -> ClusterFiles:
        return locate_files(NEW, [OLD], False, storage, ServerConfig())

    interrupted = 0
    for step in itertools.count(1):
        storage.crash_after(step)
        try:
            assert adopt().report is not None
            break
        except SimulatedCrash:
            storage.crash(mode="all_kept")
        assert contents(storage, OLD) == before
        is_whole = has_tree(storage, NEW)
        if not is_whole and storage.info(f"{NEW}/{ADOPTED}") is not None:
            interrupted += 1
            with pytest.raises(ConfigError, match="was interrupted"):
                serve(NEW, storage=storage)
        assert (adopt().report is None) is is_whole
        assert adopt().report is None  # it is adopted
        storage.remove_tree(NEW)
    assert interrupted > 2
    assert contents(storage, OLD) == before


def test_two_adoptions_at_the_same_time(storage: MemoryStorage) -> None:
    """The second one does not replace what the first has written, and whose brokers may run."""
    cluster = found(storage, f"{OLD}/broker-0")
    other = cluster._replace(brokers={0: ("/other",)})
    make_home(storage, NEW, cluster)
    before = contents(storage, f"{NEW}/coordinator"), storage.read_file(f"{NEW}/{ADOPTED}")
    with pytest.raises(ConfigError, match="at the same time"):
        make_home(storage, NEW, other)
    assert before[0] == contents(storage, f"{NEW}/coordinator")
    with serve(NEW, storage=storage), pytest.raises(LogDirLockedError):
        make_home(storage, NEW, other)
    assert before[1] == storage.read_file(f"{NEW}/{ADOPTED}")


# -- refusals --------------------------------------------------------------------------------------


def refused(storage: MemoryStorage, *paths: str, home: str | None = NEW, **options: Any) -> str:
    before = contents(storage, "/")
    with pytest.raises(ConfigError) as error:
        serve(home, adopt=paths, storage=storage, **options)
    assert contents(storage, "/") == before
    return str(error.value)


def test_what_cannot_be_adopted_is_refused(storage: MemoryStorage) -> None:
    own = f"{OLD}/broker-0"
    assert "no such directory" in refused(storage, "/nowhere")
    storage.make_dir("/empty")
    assert "no log of a partition" in refused(storage, "/empty")
    assert "the same directory" in refused(storage, own, f"{OLD}/../old/broker-0")
    assert "is inside of the log directory" in refused(storage, own, home=f"{own}/home")
    assert "is inside of the log directory" in refused(storage, own, home=own)
    assert "give a directory" in refused(storage, own, home=None)
    assert "need no directory" in refused(storage, own, read_only=True)
    storage.make_dir("/full/of")
    assert "is not empty" in refused(storage, own, home="/full")
    told = refused(storage, own, config={"node.id": 3})
    assert "node.id = 3, but the directories are those of 0" in told
    for option in ("storages", "coordinator"):
        assert f"{option} does not go with" in refused(storage, own, **{option: "x"})
    assert "2 brokers, but 1 are adopted" in refused(storage, own, brokers=2)
    with pytest.raises(ConfigError, match="need directories to adopt"):
        serve(read_only=True, storage=storage)


def test_a_log_directory_is_no_place_for_a_cluster(storage: MemoryStorage) -> None:
    """A Kafka would not load it any more, with a directory of ours in it."""
    before = contents(storage, "/")
    with pytest.raises(ConfigError, match="serve it with --adopt /old/broker-0"):
        serve(f"{OLD}/broker-0", storage=storage)
    assert contents(storage, "/") == before


def copied(storage: MemoryStorage, source: str, target: str) -> None:
    storage.make_dir(target)
    for entry in storage.scan_dir(source):
        if entry.is_dir:
            copied(storage, f"{source}/{entry.name}", f"{target}/{entry.name}")
        else:
            storage.write_file(
                f"{target}/{entry.name}", storage.read_file(f"{source}/{entry.name}")
            )


def test_two_copies_of_a_broker_are_refused(storage: MemoryStorage) -> None:
    copied(storage, f"{OLD}/broker-0", "/copy")
    assert "one is a copy of the other" in refused(storage, f"{OLD}/broker-0", "/copy")
    storage.remove("/copy/meta.properties")
    assert "one is a copy of the other" in refused(storage, f"{OLD}/broker-0", "/copy")


def test_two_clusters_are_refused(storage: MemoryStorage) -> None:
    copied(storage, f"{OLD}/broker-0", "/copy")
    meta = MetaProperties(1, "another", 1)
    MetaPropertiesFile("/copy/meta.properties", storage).write(meta, 0)
    assert "several clusters" in refused(storage, f"{OLD}/broker-0", "/copy")


def test_an_adopted_cluster_is_not_adopted_as_another(storage: MemoryStorage) -> None:
    with serve(NEW, adopt=OLD, storage=storage):
        pass
    copied(storage, f"{OLD}/broker-0", "/copy")
    assert "is the cluster of /old/broker-0" in refused(storage, "/copy")
    assert "serve it as it is (--dir /new)" in refused(storage, NEW, home="/newer")
    storage.rename(OLD, "/gone")
    with pytest.raises(
        ConfigError, match=r"/old/broker-0 is not there; /new/adopted\.json names it"
    ):
        serve(NEW, storage=storage)
    assert storage.info(OLD) is None


def test_a_running_broker_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path / "old") as kafka:
        kafka.create_topic(TP.topic, 1)
        for options in ({"read_only": True}, {"directory": tmp_path / "new"}):
            with pytest.raises(LogDirLockedError):
                serve(adopt=tmp_path / "old" / "broker-0", **options)
    assert not (tmp_path / "new").exists()


def test_directories_that_cannot_be_written_are_adopted_read_only(storage: MemoryStorage) -> None:
    """As on a mount: nothing is left that a later start would take for an adoption."""

    class Mounted(MemoryStorage):
        def lock(self, path: str) -> DirLock:
            if path.startswith(OLD):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
            return super().lock(path)

    mounted = Mounted()
    mounted.root = storage.root
    with pytest.raises(OSError, match="Read-only"):
        serve(NEW, adopt=f"{OLD}/broker-0", storage=mounted)
    assert mounted.info(NEW) is None
    with serve(adopt=f"{OLD}/broker-0", read_only=True, storage=mounted) as kafka:
        assert values(kafka) == [b"a", b"b"]


def test_metadata_that_cannot_be_read_is_refused(storage: MemoryStorage) -> None:
    storage.make_dir(f"{OLD}/broker-0/__cluster_metadata-0")
    told = refused(storage, f"{OLD}/broker-0")
    assert "the metadata of the cluster cannot be read" in told
    assert "move __cluster_metadata-0 elsewhere" in told
    # A first write that is not whole is no empty cluster.
    storage.write_file(f"{OLD}/broker-0/__cluster_metadata-0/00000000000000000000.log", bytes(30))
    assert "has no whole batch" in refused(storage, f"{OLD}/broker-0")
    storage.remove(f"{OLD}/broker-0/meta.properties")
    assert "does not say which broker's it is" in refused(storage, f"{OLD}/broker-0")


@pytest.mark.parametrize("cluster_id", ["\x1b[31m", "x" * 201])
def test_a_cluster_id_that_no_broker_has_is_refused(
    storage: MemoryStorage, cluster_id: str
) -> None:
    meta = MetaPropertiesFile(f"{OLD}/broker-0/meta.properties", storage)
    meta.write(MetaProperties(1, cluster_id=cluster_id, node_id=0), 0)
    assert "no cluster.id" in refused(storage, f"{OLD}/broker-0")


# -- what is found, and what is written ------------------------------------------------------------


def found(storage: MemoryStorage, *paths: str) -> AdoptedCluster:
    return plan_adoption(paths, OverlayStorage(storage), AdoptionRules(SystemClock().wall_ms()))


def test_a_producer_of_long_ago_is_remembered() -> None:
    """Its id expired, and is still not given to another one (R-186)."""
    storage = MemoryStorage()
    with LogManager(["/d"], storage=storage, background=False) as manager:
        (log,) = manager.create_topic(TP.topic, 1)
        old_ms = SystemClock().wall_ms() - YEAR_MS
        fields = BatchFields(base_offset=0, producer_id=5000, producer_epoch=0, base_sequence=0)
        log.append_as_leader(encode_batch([(b"k", b"v", old_ms)], **fields), 0)
    adopted = found(storage, "/d")
    assert adopted.producer_id == 5000
    write_tree(storage, "/tree", adopted)
    node = read_tree(storage, "/tree").get(nodes.RESERVED_PRODUCER_IDS)
    assert node is not None
    assert nodes.decode_number(nodes.RESERVED_PRODUCER_IDS, node.data) == 5000


def test_keys_in_the_places_of_earlier_versions_stay_there() -> None:
    """W-100"""
    storage = MemoryStorage()
    filled(storage, config={"offsets.topic.num.partitions": 7})
    adopted = found(storage, f"{OLD}/broker-0")
    write_tree(storage, "/tree", adopted._replace(masked=frozenset({GROUP_METADATA})))
    tree = read_tree(storage, "/tree")
    identity, masked = tree.get(nodes.CLUSTER_ID), tree.get(nodes.MASKED_TOPICS)
    assert identity is not None
    assert masked is not None
    assert not nodes.has_kafkas_placement(identity.data)
    ids = nodes.decode_topic_ids(nodes.MASKED_TOPICS, masked.data)
    assert ids == [adopted.topics[GROUP_METADATA].topic_id]
