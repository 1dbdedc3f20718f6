"""A mirror, or a restored directory, becomes a cluster (X-180), in memory."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, TypeAlias

import pytest

from checkpoints.meta_properties import MetaPropertiesFile
from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, LogDirLockedError
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.control import ControlType
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner, peek
from logstore.manager.log_dir import LOCK
from logstore.segments.producer_state import AppendOrigin
from logstore.storage.memory import MemoryStorage
from logstore.testing import FaultyStorage, SimulatedCrash
from replication import ServedCluster, serve
from replication.adopt import ClusterImage, Kind, read_cluster_metadata
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import INTERNAL_TOPICS, TRANSACTION_STATE
from replication.coordinators.transactions.records import decode, encode
from replication.coordinators.transactions.state import (
    TransactionMetadata,
    TransactionState,
)
from replication.mirror import (
    Listeners,
    MirrorFile,
    MirrorIdentity,
    MirrorState,
    Promotion,
    PromotionRules,
    Why,
    promote,
)
from replication.mirror.identity import refusal
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.support.mirrors import DIRECTORY, caught_up, mirror_of
from tests.support.served import batch, connect, fetch, find_coordinator, produce
from tests.support.until import until
from tests.support.wire_client import WireClient
from tests.support.wire_producer import WireProducer

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
OLD, D, NEW = "/old", "/old/broker-0", "/new"
GROUP, IDEMPOTENT = "group", 5_000
CONFIG = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 2}


def commit(client: WireClient, offset: int) -> None:
    find_coordinator(client, GROUP)
    kind = wire.OffsetCommitRequest
    part = kind.OffsetCommitRequestPartition(A.partition, offset, -1, "")
    request = kind(GROUP, topics=(kind.OffsetCommitRequestTopic(A.topic, partitions=(part,)),))
    answer = client.ask(ApiKey.OFFSET_COMMIT, 7, request)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


def committed(client: WireClient) -> int:
    find_coordinator(client, GROUP)
    kind = wire.OffsetFetchRequest
    request = kind(GROUP, (kind.OffsetFetchRequestTopic(A.topic, (A.partition,)),))

    def answer() -> Any:
        found = client.ask(ApiKey.OFFSET_FETCH, 7, request)
        return found if found.error_code == ErrorCode.NONE else None

    found = until(answer, "the group is loaded")
    return int(found.topics[0].partitions[0].committed_offset)


def idempotent(client: WireClient, sequence: int) -> int:
    records = batch(b"i", producer_id=IDEMPOTENT, producer_epoch=0, base_sequence=sequence)
    return int(produce(client, B, records).error_code)


def filled(storage: MemoryStorage) -> None:
    """A broker's directory."""
    with serve(OLD, storage=storage, config=CONFIG) as kafka:
        fill(kafka)
    storage.remove_tree(f"{OLD}/coordinator")


def fill(kafka: ServedCluster) -> None:
    """Let there be a group, an idempotent producer, a transaction that is committed, and one that
    is open in two partitions."""
    with connect(kafka) as client:
        kafka.create_topic(A.topic, 2, config={"retention.ms": "-1"})
        for value in (b"a", b"b"):
            kafka.produce(A.topic, value, partition=0)
        commit(client, 1)
        for sequence in range(3):
            assert idempotent(client, sequence) == ErrorCode.NONE
        done, open_ = WireProducer(kafka, client, "done"), WireProducer(kafka, client, "open")
        for each in (done, open_):
            assert each.init() == ErrorCode.NONE
            each.add(A, B)
            for tp in (A, B):
                assert each.send(tp) == ErrorCode.NONE
            if each is done:
                assert each.end() == ErrorCode.NONE
                kafka.wait_until(lambda: stable(client, A) and stable(client, B), "markers")


def stable(client: WireClient, tp: TopicPartition) -> bool:
    found = fetch(client, tp)
    return bool(found.last_stable_offset == found.high_watermark)


@cache
def _original() -> MemoryStorage:
    found = MemoryStorage()
    filled(found)
    return found


def new_storage() -> FaultyStorage:
    return copy_of(_original())


@pytest.fixture
def original() -> MemoryStorage:
    return _original()


@pytest.fixture
def storage() -> FaultyStorage:
    return new_storage()


def copy_of(original: MemoryStorage) -> FaultyStorage:
    found = FaultyStorage()
    _copy(original, found, OLD)
    found.sync_dir("/")
    return found


def _copy(source: MemoryStorage, target: MemoryStorage, path: str) -> None:
    target.make_dir(path)
    for entry in source.scan_dir(path):
        below = f"{path}/{entry.name}"
        if entry.is_dir:
            _copy(source, target, below)
        else:
            target.write_file(below, source.read_file(below))
    target.sync_dir(path)


def managed(storage: MemoryStorage) -> LogManager:
    owner = ManagerOwner(replicated=True)
    return LogManager(D, storage=storage, background=False, owner=owner)


def said(storage: MemoryStorage) -> dict[str, TransactionMetadata]:
    """The last state of each transactional id on file."""
    found: dict[str, TransactionMetadata] = {}
    with managed(storage) as manager:
        for tp, log in manager.logs.items():
            if tp.topic == TRANSACTION_STATE:
                for record in log.records():
                    assert record.key is not None
                    name, metadata = decode(record.key, record.value) or ("", None)
                    assert metadata is not None
                    found[name] = metadata
    return found


def tell(storage: MemoryStorage, *states: TransactionMetadata) -> None:
    """As a coordinator would, in the partition that has the id."""
    with managed(storage) as manager:
        for state in states:
            record = encode(state)
            batch = bytes(encode_batch([(record.key, record.value, state.last_update_ms)]))
            (log,) = (
                log
                for tp, log in manager.logs.items()
                if tp.topic == TRANSACTION_STATE
                and any(each.key == record.key for each in log.records())
            )
            log.append_as_leader(batch, log.epochs.latest, AppendOrigin.COORDINATOR)


Facts: TypeAlias = tuple[int, int, int, list[tuple[int, int]]]


def logs_of(storage: MemoryStorage) -> dict[TopicPartition, Facts]:
    """Of each log its end, its last stable offset, its epoch, and what was aborted."""
    with managed(storage) as manager:
        for log in manager.logs.values():
            log.replica.update_high_watermark(log.log_end_offset)
        return {tp: _facts(log) for tp, log in manager.logs.items()}


def _facts(log: PartitionLog) -> Facts:
    aborted = log.reader.aborted_transactions(log.log_start_offset, log.log_end_offset)
    return (
        log.log_end_offset,
        log.last_stable_offset,
        log.epochs.latest,
        [(each.producer_id, each.first_offset) for each in aborted],
    )


def image_of(storage: MemoryStorage) -> ClusterImage:
    image = read_cluster_metadata(D, storage)
    assert image is not None
    return image


def done(storage: MemoryStorage, rules: PromotionRules | None = None) -> Promotion:
    found = promote(D, rules, storage=storage)
    assert found.promoted, found
    return found


# -- what a promotion gives ------------------------------------------------------------------------


def test_a_promoted_directory_is_a_cluster_of_its_own(storage: FaultyStorage) -> None:
    before = logs_of(storage)
    found = done(storage, PromotionRules(listeners=Listeners("10.0.0.1", 19092, 19093)))
    assert (found.topics, found.partitions, found.offline) == (3, 7, 0)
    assert (found.groups, found.offsets, found.transactional_ids) == (1, 1, 2)
    assert found.findings == ()
    assert Kind.AHEAD.value[0] not in {each.kind for each in found.notes}
    meta = MetaPropertiesFile(f"{D}/meta.properties", storage).read()
    assert meta is not None
    assert (meta.version, meta.cluster_id, meta.node_id) == (1, found.cluster_id, 0)
    image = image_of(storage)
    assert image.notes == ()
    assert image.topic_configs(A.topic) == {"retention.ms": "-1"}
    assert image.next_producer_id == found.next_producer_id > IDEMPOTENT
    for tp, (_, _, epoch, _) in before.items():
        state = image.partition(tp)
        assert state is not None
        assert (state.replicas, state.isr, state.leader) == ((0,), (0,), -1)
        assert state.leader_epoch >= epoch + 1000  # leaders without a record
    properties = storage.read_file(f"{D}/server.properties").decode()
    assert "controller.quorum.voters=0@10.0.0.1\\:19093\n" in properties
    assert "offsets.topic.num.partitions=3\n" in properties
    assert f"log.dirs={D}\n" in properties


def test_clients_go_on_where_they_were(storage: FaultyStorage) -> None:
    done(storage)
    goes_on(storage, D)


def test_a_mirror_of_a_running_cluster_becomes_one() -> None:
    """As the source was when the mirror saw it last."""
    storage = MemoryStorage()
    with serve(OLD, storage=storage, config=CONFIG) as kafka:
        fill(kafka)
        with mirror_of(kafka, storage) as mirror:
            mirror.start()
            caught_up(mirror)
    found = promote(DIRECTORY, storage=storage)
    assert (found.promoted, found.findings, found.groups, found.partitions) == (True, (), 1, 7)
    assert found.notes == ()
    image = read_cluster_metadata(DIRECTORY, storage)
    assert image is not None
    assert image.topic_configs(A.topic)["retention.ms"] == "-1"
    goes_on(storage, DIRECTORY)


def test_a_log_that_is_damaged_where_no_start_looks_is_a_finding() -> None:
    """One of thousands must not make the promotion of the others impossible."""
    storage = FaultyStorage()
    with serve(OLD, storage=storage, config=CONFIG) as kafka:
        kafka.create_topic(A.topic, 2, config={"segment.bytes": "10000"})
        for value in (b"a" * 9000, b"b" * 9000):
            kafka.produce(A.topic, value, partition=0)
    storage.remove_tree(f"{OLD}/coordinator")
    first = f"{D}/{A.topic}-0/{0:020}.log"
    storage.write_file(first, storage.read_file(first)[:-10])
    found = promote(D, storage=storage)
    assert not found.promoted
    damaged, without = found.findings
    assert (damaged.kind, without.kind) == (Kind.DAMAGED.value[0], Kind.WITHOUT_LOG.value[0])
    assert without.names == ("orders-0",)
    found = promote(D, PromotionRules(partial=True), storage=storage)
    assert (found.promoted, found.offline) == (True, 1)
    state = image_of(storage).partition(A)
    assert state is not None
    assert state.replicas == (1,)  # a node that nobody has


def test_empty_logs_that_the_source_did_not_let_be_read_are_named() -> None:
    """A part does not pass for the whole in silence."""
    storage = MemoryStorage()
    with serve(OLD, storage=storage, config=CONFIG) as kafka:
        fill(kafka)
        refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        kafka.faults.fail(ApiKey.FETCH, error=refusal, times=None)
        with mirror_of(kafka, storage, topics=(A.topic,), internal=False) as mirror:
            mirror.start()
            until(lambda: mirror.report.findings, "the refusal is reported")
    found = promote(DIRECTORY, storage=storage)
    (note,) = [each for each in found.notes if each.kind == "perhaps never read"]
    assert note.names == ("orders-0", "orders-1")


def test_a_group_that_has_read_more_than_a_log_has_is_named() -> None:
    """It would skip what the new cluster writes first."""
    storage = MemoryStorage()
    with serve(OLD, storage=storage, config=CONFIG) as kafka:
        fill(kafka)
        with connect(kafka) as client:
            commit(client, 100)
    end = logs_of(storage)[A][0]
    storage.remove_tree(f"{OLD}/coordinator")
    found = promote(D, storage=storage)
    (note,) = [each for each in found.notes if each.kind == Kind.AHEAD.value[0]]
    assert note.names == (f"{GROUP} of orders-0: 100 above {end}",)
    assert found.offsets == 1


def test_configurations_that_the_mirror_could_not_see_delete_nothing() -> None:
    """By READ rights alone they stay unknown; what was seen before stays known (X-180)."""
    storage = MemoryStorage()
    with serve(OLD, storage=storage, config=CONFIG) as kafka:
        fill(kafka)
        kafka.create_topic("seen", config={"retention.ms": "777777"})
        with mirror_of(kafka, storage, topics=("seen",), internal=False) as mirror:
            mirror.start()
            caught_up(mirror)
        refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        kafka.faults.fail(ApiKey.DESCRIBE_CONFIGS, error=refusal, times=None)
        with mirror_of(kafka, storage) as mirror:
            mirror.start()
            caught_up(mirror)
    assert storage.info(f"{DIRECTORY}/{A.topic}-0/topic.properties") is None
    found = promote(DIRECTORY, storage=storage)
    assert found.promoted
    assert [each.names for each in found.notes if each.kind == Kind.KEEP_ALL.value[0]] == [
        (A.topic,)
    ]
    image = read_cluster_metadata(DIRECTORY, storage)
    assert image is not None
    kept = {"retention.ms": "-1", "retention.bytes": "-1"}
    assert image.topic_configs(A.topic) == kept
    assert image.topic_configs("seen")["retention.ms"] == "777777"
    for internal in INTERNAL_TOPICS:
        assert image.topic_configs(internal) == {"cleanup.policy": "compact"}


def goes_on(storage: MemoryStorage, directory: str) -> None:
    """What clients of the new cluster see, and do."""
    with serve(NEW, adopt=directory, storage=storage) as kafka, connect(kafka) as client:
        assert committed(client) == 1
        assert idempotent(client, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert idempotent(client, 3) == ErrorCode.NONE
        for tp in (A, B):
            assert stable(client, tp)
        values = [record.value for record in kafka.read_all(A.topic, isolation="read_committed")[0]]
        assert values == [b"a", b"b", b"done-0"]
        again = WireProducer(kafka, client, "open")
        assert again.init() == ErrorCode.NONE
        assert again.epoch == 2  # the abort had the one before
        again.add(A)
        assert again.send(A) == ErrorCode.NONE
        assert again.end() == ErrorCode.NONE
        other = WireProducer(kafka, client, "other")
        assert other.init() == ErrorCode.NONE
        assert other.producer_id > IDEMPOTENT


def test_open_transactions_are_aborted_in_each_partition(storage: FaultyStorage) -> None:
    found = done(storage)
    facts = logs_of(storage)
    assert [(each.open.tp, each.commits, each.why) for each in found.endings] == [
        (A, False, Why.UNDECIDED),
        (B, False, Why.UNDECIDED),
    ]
    producer_id = found.endings[0].open.producer_id
    for tp in (A, B):
        end, stable_end, _, aborted = facts[tp]
        assert stable_end == end
        assert [each for each, _ in aborted] == [producer_id]
    state = said(storage)["open"]
    assert (state.state, state.producer_epoch) == (TransactionState.COMPLETE_ABORT, 1)
    assert found.ended.ids == ("open",)


def test_a_commit_that_was_prepared_is_completed(storage: FaultyStorage) -> None:
    known = said(storage)["open"]
    tell(storage, known.moved(TransactionState.PREPARE_COMMIT, known.last_update_ms + 5))
    found = done(storage)
    assert {(each.commits, each.why) for each in found.endings} == {(True, Why.DECIDED)}
    facts = logs_of(storage)
    for tp in (A, B):
        assert facts[tp][0] == facts[tp][1]
        assert facts[tp][3] == []
    assert said(storage)["open"].state is TransactionState.COMPLETE_COMMIT
    with serve(NEW, adopt=D, storage=storage) as kafka:
        values = [record.value for record in kafka.read_all(A.topic, isolation="read_committed")[0]]
        assert values == [b"a", b"b", b"done-0", b"open-0"]


def test_a_marker_in_one_partition_commits_the_others(storage: FaultyStorage) -> None:
    """The coordinator's log is the one that is behind."""
    known = said(storage)["open"]
    marker = end_transaction_marker(
        ControlType.COMMIT,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        coordinator_epoch=0,
        timestamp=known.start_ms + 1,
    )
    with managed(storage) as manager:
        log = manager.logs[A]
        log.append_as_leader(bytes(marker), log.epochs.latest, AppendOrigin.COORDINATOR)
    (ending,) = done(storage).endings
    assert (ending.open.tp, ending.commits, ending.why) == (B, True, Why.MARKED)
    assert said(storage)["open"].state is TransactionState.COMPLETE_COMMIT


def test_without_the_coordinators_log_all_is_aborted(storage: FaultyStorage) -> None:
    for number in range(2):
        storage.remove_tree(f"{D}/{TRANSACTION_STATE}-{number}")
    assert {each.why for each in done(storage).endings} == {Why.UNKNOWN}


# -- whole, or not at all --------------------------------------------------------------------------


def test_a_part_does_not_pass_for_the_whole(storage: FaultyStorage) -> None:
    """A partition that is missing is refused, or stays offline, also for who adopts."""
    storage.remove_tree(f"{D}/{A}")
    before = storage.operations
    found = promote(D, storage=storage)
    assert not found.promoted
    assert [(each.kind, each.names) for each in found.findings] == [
        ("without a log", ("orders-0",))
    ]
    assert storage.operations == before
    partial = done(storage, PromotionRules(partial=True, node_id=1))
    assert (partial.offline, partial.findings) == (1, found.findings)
    state = image_of(storage).partition(A)
    assert state is not None
    assert state.replicas == state.isr == (0,)
    with serve(NEW, adopt=D, storage=storage) as kafka:
        assert kafka.adoption is not None
        assert (kafka.adoption.partitions, kafka.adoption.led) == (7, 6)


def test_a_dry_run_says_all_and_changes_nothing(storage: FaultyStorage) -> None:
    before = storage.operations
    found = promote(D, PromotionRules(dry_run=True, listeners=Listeners()), storage=storage)
    assert storage.operations == before
    assert not found.promoted
    assert len(found.endings) == 2
    assert promote(D, storage=storage).endings == found.endings


@pytest.mark.slow
def test_a_promotion_survives_a_kill_anywhere(original: MemoryStorage) -> None:
    """Until the metadata has its name nothing has happened that a repetition does not do as well:
    each record stays, each transaction ends once, and a mirror is one no more from the moment on
    from which its logs differ from the source's."""
    storage = copy_of(original)
    as_mirror(storage)
    ends = {tp: facts[0] for tp, facts in logs_of(storage).items()}
    interrupted = 0
    for step in itertools.count(1):
        storage = copy_of(original)
        as_mirror(storage)
        storage.crash_after(step)
        try:
            done(storage, PromotionRules(listeners=Listeners()))
            break
        except SimulatedCrash:
            storage.crash(mode="all_kept" if step % 2 else "all_lost")
        if storage.info(f"{D}/server.properties") is not None:  # nobody starts a Kafka too early
            assert storage.info(f"{D}/__cluster_metadata-0") is not None
        if storage.info(f"{D}/__cluster_metadata-0") is None:
            interrupted += 1
            if mirror_state(storage) is MirrorState.MIRRORING:
                assert {tp: facts[0] for tp, facts in logs_of(storage).items()} == ends
            assert promote(D, storage=storage).promoted
        assert promote(D, storage=storage).before
        for tp, (end, stable_end, _, aborted) in logs_of(storage).items():
            assert end == stable_end
            is_data = tp.topic == A.topic
            assert end == ends[tp] + is_data or tp.topic == TRANSACTION_STATE
            assert len(aborted) == is_data
        assert said(storage)["open"].state is TransactionState.COMPLETE_ABORT
    assert interrupted > 10


def as_mirror(storage: MemoryStorage) -> None:
    MirrorFile.of(D, storage).write(MirrorIdentity("A" * 22, "host:9092", topics=("orders",)))


def test_what_is_decided_is_durable_before_it_is_told(storage: FaultyStorage) -> None:
    """In the order of a coordinator: the decision, all markers, the end."""
    durable: list[str] = []
    flush = PartitionLog.flush

    def noted(log: PartitionLog, offset: int | None = None) -> None:
        flush(log, offset)
        if log.recovery_point == log.log_end_offset:
            durable.append(log.topic_partition.topic)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionLog, "flush", noted)
        done(storage)
    assert durable[:4] == [TRANSACTION_STATE, A.topic, A.topic, TRANSACTION_STATE]


def mirror_state(storage: MemoryStorage) -> MirrorState:
    identity = MirrorFile.of(D, storage).read()
    assert identity is not None
    assert identity.topics == ("orders",)
    return identity.state


# -- which directories -----------------------------------------------------------------------------


def test_a_mirror_follows_no_more(storage: FaultyStorage) -> None:
    as_mirror(storage)
    first = done(storage)
    assert mirror_state(storage) is MirrorState.PROMOTED
    known = MirrorFile.of(D, storage).read()
    assert "was promoted" in (refusal(peek(D, storage), known, None) or "")
    again = promote(D, storage=storage)
    assert (again.before, again.promoted) == (True, False)
    assert (again.cluster_id, again.node_id) == (first.cluster_id, first.node_id)
    late = promote(D, PromotionRules(listeners=Listeners()), storage=storage)
    assert late.server_properties == f"{D}/server.properties"
    properties = storage.read_file(f"{D}/server.properties").decode()
    assert "node.id=0\n" in properties
    assert "offsets.topic.num.partitions=3\n" in properties
    with pytest.raises(ConfigError, match="was promoted already, as node 0"):
        promote(D, PromotionRules(node_id=3), storage=storage)


def test_another_listener_than_before_is_named(storage: FaultyStorage) -> None:
    as_mirror(storage)
    done(storage, PromotionRules(listeners=Listeners("a", 19092, 19093)))
    with pytest.raises(ConfigError, match="such as another --listener"):
        promote(D, PromotionRules(listeners=Listeners()), storage=storage)


def test_groups_that_a_kafka_has_are_not_said_to_be_lost(storage: FaultyStorage) -> None:
    """Their records are in the logs, and a Kafka reads them."""
    keys = [kind.to_bytes(2, "big") + b"\0\1" + name for kind, name in ((3, b"c"), (11, b"s"))]
    with managed(storage) as manager:
        log = manager.logs[TopicPartition("__consumer_offsets", 0)]
        batch = bytes(encode_batch([(key, b"\0\0", 1) for key in keys]))
        log.append_as_leader(batch, max(log.epochs.latest, 0), AppendOrigin.COORDINATOR)
    found = done(storage)
    assert not found.findings
    notes = {note.kind: str(note) for note in found.notes}
    assert "a Kafka has them as they were" in notes["groups of the new protocol"]
    assert "a Kafka has them once share.version is 1" in notes["share groups"]
    assert not [kind for kind in notes if kind.startswith("not carried") and "group" in kind]


def test_metadata_of_the_source_in_a_mirror_is_set_aside(storage: FaultyStorage) -> None:
    """Its directory began as a copy of a broker's."""
    done(storage)
    as_mirror(storage)
    old = image_of(storage)
    found = done(storage)
    assert image_of(storage) != old
    names = [entry.name for entry in storage.scan_dir(D) if entry.name.startswith("__cluster")]
    assert len(names) == 2
    assert sum(name.endswith("-stray") for name in names) == 1
    assert found.cluster_id


def test_the_directory_of_a_cluster_is_left_alone(storage: FaultyStorage) -> None:
    done(storage)
    before = storage.operations
    with pytest.raises(ConfigError, match="is the directory of a cluster already"):
        promote(D, storage=storage)
    assert storage.operations == before


def test_a_configuration_that_is_there_is_not_replaced(storage: FaultyStorage) -> None:
    storage.write_file(f"{D}/server.properties", b"node.id=5\n")
    with pytest.raises(ConfigError, match="is there already"):
        promote(D, PromotionRules(listeners=Listeners()), storage=storage)
    assert storage.read_file(f"{D}/server.properties") == b"node.id=5\n"
    assert storage.info(f"{D}/__cluster_metadata-0") is None


def test_a_directory_that_is_open_is_refused(storage: FaultyStorage) -> None:
    as_mirror(storage)
    lock = storage.lock(f"{D}/{LOCK}")
    with pytest.raises(LogDirLockedError):
        promote(D, storage=storage)
    lock.release()
    assert mirror_state(storage) is MirrorState.MIRRORING


def test_a_directory_of_brokers_is_refused_whether_they_run_or_not(storage: FaultyStorage) -> None:
    """Its name is that of a partition: ``broker-0``."""
    lock, before = storage.lock(f"{D}/{LOCK}"), [each.name for each in storage.scan_dir(OLD)]
    with pytest.raises(ConfigError, match=f"give {D}"):
        promote(OLD, storage=storage)
    lock.release()
    assert [each.name for each in storage.scan_dir(OLD)] == before


@pytest.mark.parametrize("cluster_id", ["", "short", "x" * 23, "!" * 22])
def test_a_cluster_id_that_kafka_does_not_know_is_refused(cluster_id: str) -> None:
    with pytest.raises(ConfigError, match="is no cluster id"):
        PromotionRules(cluster_id=cluster_id)


def test_ids_that_are_given_are_taken(storage: FaultyStorage) -> None:
    found = done(storage, PromotionRules(cluster_id="bG9nc3RvcmUtaW50ZXJvcA", node_id=7))
    assert (found.cluster_id, found.node_id) == ("bG9nc3RvcmUtaW50ZXJvcA", 7)
    state = image_of(storage).partition(B)
    assert state is not None
    assert state.replicas == (7,)
