"""A log that is too damaged to be opened, and the others beside it."""

from __future__ import annotations

from errno import ENOENT

import pytest

from checkpoints import HIGH_WATERMARK, LOG_START, RECOVERY_POINT, OffsetCheckpoint
from checkpoints.offset_checkpoint import CLEANER
from checkpoints.types import TopicPartition
from logstore.common.errors import (
    ConfigError,
    InvalidTopicError,
    LogUnavailableError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from logstore.manager.log_dir import Creation, CreationFiles
from replication.common.error_codes import ErrorCode
from tests.support.builders import batch
from tests.support.replica_managers import TP, Host, part
from tests.support.special_files import make_other
from tests.unit.manager.test_log_manager import Machine

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
FIRST = "/logs/t-0/00000000000000000000.log"
KEPT = "/logs/elsewhere"


def damaged(*, clean: bool = True) -> Machine:
    """``t-0`` cannot be opened; ``t-1`` and ``u-0`` can. Each has 4 records from offset 0 on."""
    machine = Machine(segment_bytes=200)
    with machine.start() as manager:
        manager.create_topic("t", 2, {"retention.ms": "-1"})
        manager.create_topic("u", 1)
        for log in manager.logs.values():
            for _ in range(4):
                log.append_as_leader(batch(), 0)
        manager.get(*T0).delete_records(1)
        checkpoint(machine, CLEANER).write({T0: 3, U0: 2})
    if not clean:
        machine.storage.remove("/logs/.kafka_cleanshutdown")
    hide(machine)
    return machine


def hide(machine: Machine) -> None:
    machine.storage.rename(FIRST, KEPT)
    make_other(machine.storage, FIRST)


def mend(machine: Machine) -> None:
    machine.storage.rename(KEPT, FIRST)


def checkpoint(machine: Machine, name: str) -> OffsetCheckpoint:
    return OffsetCheckpoint(f"/logs/{name}", machine.storage)


def stored(machine: Machine) -> dict[str, int | None]:
    """What each checkpoint says of ``t-0``."""
    return {
        name: checkpoint(machine, name).read().get(T0)
        for name in (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER)
    }


@pytest.mark.parametrize("clean", [True, False])
def test_the_others_are_served(clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    machine = damaged(clean=clean)
    with machine.start() as manager:
        assert manager.live_directories == ["/logs"]
        assert sorted(manager.logs) == [T1, U0]
        assert manager.topics() == {"t": [1], "u": [0]}
        assert list(manager.unavailable_logs) == [T0]
        why = manager.unavailable_logs[T0]
        assert (why.path, why.reason) == ("/logs/t-0", f"{FIRST} at byte 0: is no regular file")
        assert str(why) in caplog.text
        for log in manager.logs.values():
            assert log.log_end_offset == 4
            log.append_as_leader(batch(), 0)
    assert machine.failures == []


def test_it_is_refused_by_its_reason() -> None:
    machine = damaged()
    with machine.start() as manager:
        for call in (
            lambda: manager.get(*T0),
            lambda: manager.get_or_create(*T0),
            lambda: manager.get_or_create(*T0, is_new=False),
            lambda: manager.create_topic("t", 1),
        ):
            with pytest.raises(LogUnavailableError, match="is no regular file"):
                call()
        with pytest.raises(TopicExistsError):
            manager.create_topic("u", 1)
        with pytest.raises(InvalidTopicError, match="has 2 partitions"):
            manager.create_partitions("t", 1)
        assert [log.topic_partition for log in manager.create_partitions("t", 3)] == [("t", 2)]
        manager.alter_topic("t", {"retention.ms": "5"})
        topic_id = manager.get(*T1).topic_id
    mend(machine)
    with machine.start() as manager:
        assert sorted(manager.logs) == [T0, T1, ("t", 2), U0]
        assert manager.get(*T0).config.retention_ms == 5
        assert {manager.get("t", p).topic_id for p in range(3)} == {topic_id}


def test_a_topic_of_which_nothing_is_left_is_not_guessed() -> None:
    """Its id and its configuration lie in its partitions."""
    machine = damaged()
    with machine.start() as manager:
        manager.delete(*T1)
        for call in (
            lambda: manager.get_or_create(*T1),
            lambda: manager.create_partitions("t", 3),
            lambda: manager.alter_topic("t", {}),
        ):
            with pytest.raises(LogUnavailableError):
                call()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("crash", [False, True])
def test_mended_it_comes_back_whole(crash: bool, clean: bool) -> None:
    machine = damaged(clean=clean)
    before = stored(machine)
    assert before == {RECOVERY_POINT: 4, LOG_START: 1, HIGH_WATERMARK: 4, CLEANER: 3}
    for _ in range(3):
        manager = machine.start()
        for log in manager.logs.values():
            log.append_as_leader(batch(), 0)
            log.flush()
        manager.housekeeper.checkpoint_recovery_points()
        manager.housekeeper.checkpoint_log_start_offsets()
        manager.housekeeper.checkpoint_high_watermarks()
        manager.get(*U0).maintenance.truncate_fully_and_start_at(0)
        manager.get(*U0).append_as_leader(batch(), 0)
        manager.get_or_create("new", 0)
        manager.delete("new", 0)
        assert stored(machine) == before
        manager.crash() if crash else manager.close()
        assert machine.marker("/logs") is None  # it would speak of this log too
        assert stored(machine) == before
    mend(machine)
    with machine.start() as manager:
        assert manager.unavailable_logs == {}
        assert manager.previous_broker_epoch == -1
        log = manager.get(*T0)
        assert (log.log_start_offset, log.log_end_offset) == (1, 4)
        assert [record.offset for record in log.records()] == [1, 2, 3]
    assert machine.marker("/logs") is not None


def test_a_damaged_checkpoint_says_nothing_of_it() -> None:
    machine = damaged()
    machine.storage.write_file(f"/logs/{HIGH_WATERMARK}", b"?")
    with machine.start() as manager:
        manager.housekeeper.checkpoint_high_watermarks()
        manager.delete(*U0)
    assert stored(machine) == {RECOVERY_POINT: 4, LOG_START: 1, HIGH_WATERMARK: None, CLEANER: 3}


@pytest.mark.parametrize("whole", [True, False])
def test_deleted_its_name_is_free_for_another(whole: bool) -> None:
    machine = damaged()
    with machine.start() as manager:
        manager.delete_topic("t") if whole else manager.delete(*T0)
        assert manager.unavailable_logs == {}
        assert set(stored(machine).values()) == {None}
        with pytest.raises(UnknownTopicOrPartitionError):
            manager.delete(*T0)
        with pytest.raises(UnknownTopicOrPartitionError):
            manager.get(*T0)
        assert manager.get_or_create(*T0).log_end_offset == 0
        machine.clock.advance(100_000)
        assert manager.housekeeper.purge_deleted() > 0
    names = [entry.name for entry in machine.storage.scan_dir("/logs")]
    assert not any(name.endswith("-delete") for name in names)
    assert machine.marker("/logs") is not None
    with machine.start() as manager:
        assert manager.get(*T0).log_end_offset == 0


def test_in_two_directories_it_is_refused() -> None:
    """F-7: nobody can say which of them is the log."""
    for first, second in (("/a", "/b"), ("/b", "/a")):
        machine = Machine("/a")
        machine.start().get_or_create(*T0)
        machine.directories = ("/b",)
        machine.start().get_or_create(*T0)
        machine.storage.crash(mode="all_kept")
        machine.storage.remove("/b/meta.properties")
        machine.storage.remove(f"{first}/t-0/00000000000000000000.log")
        make_other(machine.storage, f"{first}/t-0/00000000000000000000.log")
        machine.directories = (first, second)
        with pytest.raises(ConfigError, match="is both in"):
            machine.start()


def test_a_creation_of_it_is_not_undone() -> None:
    """Whether its partitions are empty cannot be seen."""
    machine = Machine()
    manager = machine.start()
    (log, _) = manager.create_topic("t", 2)
    assert log.topic_id is not None
    CreationFiles("/logs", machine.storage).begin(Creation(log.topic_id, frozenset({T0, T1})))
    manager.crash()
    hide(machine)
    machine.start().close()
    assert machine.storage.info("/logs/t-1") is not None
    mend(machine)
    with machine.start() as manager:
        assert sorted(manager.logs) == [T0, T1]


def test_a_log_that_held_batches_is_no_creation_to_undo() -> None:
    machine = Machine()
    with machine.start() as manager:
        (log,) = manager.create_topic("t", 1)
        for _ in range(4):
            log.append_as_leader(batch(), 0)
    assert log.topic_id is not None
    data = bytearray(machine.storage.read_file(FIRST))
    data[40] ^= 1
    machine.storage.write_file(FIRST, bytes(data))
    machine.storage.remove("/logs/.kafka_cleanshutdown")
    for cut in (len(data), 0):
        CreationFiles("/logs", machine.storage).begin(Creation(log.topic_id, frozenset({T0, T1})))
        with machine.start() as manager:
            assert list(manager.logs) == [T0]
            assert [report.bytes_cut for report in manager.recovery_reports] == [cut]
            manager.housekeeper.purge_deleted()
    assert machine.storage.read_file(f"{FIRST}.0.cut") == data


def test_a_file_that_vanishes_meanwhile_concerns_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = damaged(clean=False)
    mend(machine)
    rename = machine.storage.rename

    def vanishes(source: str, target: str) -> None:
        if source.startswith("/logs/t-0/"):
            raise FileNotFoundError(ENOENT, "no such file", source)
        rename(source, target)

    make_other(machine.storage, "/logs/t-0/leader-epoch-checkpoint.tmp")
    monkeypatch.setattr(machine.storage, "rename", vanishes)
    with machine.start() as manager:
        assert sorted(manager.logs) == [T1, U0]
        assert "no such file" in str(manager.unavailable_logs[T0])
    monkeypatch.undo()
    with machine.start() as manager:
        assert manager.get(*T0).log_end_offset == 4


class TestReplica:
    @staticmethod
    def host() -> Host:
        host = Host()
        host.lead()
        host.produce(batch(), acks=1)
        host.log_manager.housekeeper.checkpoint_high_watermarks()
        host.log_manager.close(broker_epoch=7)
        path = f"/logs/{TP.topic}-{TP.partition}/00000000000000000000.log"
        host.storage.remove(path)
        make_other(host.storage, path)
        return Host(storage=host.storage, runtime=host.runtime)

    def test_it_is_offline(self) -> None:
        host = self.host()
        assert list(host.log_manager.unavailable_logs) == [TP]
        assert host.log_manager.previous_broker_epoch == -1
        for change in (host.change(), host.change(leader=2, epoch=2)):
            assert [code for _, code in host.order(change).partitions] == [
                ErrorCode.KAFKA_STORAGE_ERROR
            ]
        assert host.produce(acks=1).only.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert host.fetch(part(0)).only.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert host.manager.partitions[TP].offline
        assert TP not in host.log_manager.logs

    def test_it_can_be_deleted(self) -> None:
        host = self.host()
        assert host.stop().partitions == ((TP, ErrorCode.NONE),)
        assert host.log_manager.unavailable_logs == {}
        assert host.order(host.change(epoch=9)).partitions == ((TP, ErrorCode.NONE),)
        assert host.log_manager.get(*TP).log_end_offset == 0
