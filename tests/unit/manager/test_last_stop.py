"""What the directories of a broker prove of its last stop, log by log."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from checkpoints import CLOSED_REPLICAS, META_PROPERTIES
from logstore.common.types import TopicPartition
from logstore.manager import LastStop, LogManager
from logstore.testing import SimulatedCrash
from tests.support.builders import batch
from tests.unit.manager.test_log_manager import Machine

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID = uuid.UUID(int=1 << 100)
CLOSED = f"/logs/{CLOSED_REPLICAS}"


def start(machine: Machine) -> LogManager:
    return machine.start(replicated=True)


def closed(*directories: str, unproven: tuple[TopicPartition, ...] | None = ()) -> Machine:
    """Two logs with three records each, closed under the epochs 4 and 7."""
    machine = Machine(*directories)
    manager = start(machine)
    assert manager.last_stop.may_miss_logs  # nothing is known of a new directory
    for tp in (T0, T1):
        log = manager.get_or_create(*tp, topic_id=ID)
        for _ in range(3):
            log.append_as_leader(batch(), 5)
    manager.close(7, [4], unproven)
    return machine


def found(machine: Machine) -> LastStop:
    manager = start(machine)
    manager.crash()
    return manager.last_stop


def copied(machine: Machine, source: str, target: str) -> None:
    machine.storage.make_dir(target)
    for entry in machine.storage.scan_dir(source):
        data = machine.storage.read_file(f"{source}/{entry.name}")
        machine.storage.write_file(f"{target}/{entry.name}", data)


def emptied(machine: Machine) -> None:
    for entry in machine.storage.scan_dir("/logs/t-0"):
        machine.storage.remove(f"/logs/t-0/{entry.name}")


def of_another_topic(machine: Machine) -> None:
    path = "/logs/t-0/partition.metadata"
    machine.storage.write_file(path, machine.storage.read_file("/other"))


def test_all_logs_are_proven() -> None:
    assert found(closed()) == LastStop((4, 7), frozenset(), False, True)
    assert found(closed("/a", "/b")) == LastStop((4, 7), frozenset(), False, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.storage.rename("/logs/t-0", "/logs/t-0.0123-stray"),
        lambda m: m.storage.rename("/logs/t-0", "/other"),
        emptied,
    ],
    ids=["set aside", "gone", "emptied"],
)
def test_a_log_that_is_missing_is_not(change: Callable[[Machine], None]) -> None:
    machine = closed()
    change(machine)
    assert found(machine).unproven == {T0}


def test_a_log_of_another_time_is_not() -> None:
    """A copy from before the last records, put back into a directory that is whole."""
    machine = closed()
    copied(machine, "/logs/t-0", "/copy")
    manager = start(machine)
    manager.get(*T0).append_as_leader(batch(), 6)
    manager.close(9, [], ())
    for entry in machine.storage.scan_dir("/logs/t-0"):
        machine.storage.remove(f"/logs/t-0/{entry.name}")
    copied(machine, "/copy", "/logs/t-0")
    stop = found(machine)
    assert (stop.broker_epochs, stop.unproven) == ((9,), {T0})


def test_an_epoch_without_a_record_is_no_difference() -> None:
    machine = closed()
    manager = start(machine)
    for tp in (T0, TopicPartition("empty", 0)):
        log = manager.get_or_create(*tp, topic_id=ID)
        log.epochs.assign(8, log.log_end_offset)
    manager.close(9, [], ())
    assert found(machine).unproven == frozenset()


def test_a_log_that_was_not_there_is_not() -> None:
    machine = closed()
    copied(machine, "/logs/t-0", "/logs/u-0")
    assert found(machine).unproven == {TopicPartition("u", 0)}


def test_a_log_may_be_moved_between_the_directories_of_a_broker() -> None:
    machine = closed("/a", "/b")
    home = next(each for each in "ab" if machine.storage.info(f"/{each}/t-0"))
    other = "b" if home == "a" else "a"
    machine.storage.rename(f"/{home}/t-0", f"/{other}/t-0")
    assert not found(machine).unproven - {T0}  # its checkpoint entries did not move along
    assert T1 not in found(machine).unproven


def test_what_was_unproven_stays_so_until_a_controller_knows() -> None:
    machine = closed(unproven=(T0, TopicPartition("gone", 3)))
    assert found(machine).unproven == {T0, TopicPartition("gone", 3)}


def test_a_directory_that_is_older_than_the_others_proves_nothing() -> None:
    machine = closed("/a", "/b")
    home = next(each for each in "ab" if machine.storage.info(f"/{each}/t-0"))
    kept = {
        name: machine.storage.read_file(f"/{home}/{name}")
        for name in (".kafka_cleanshutdown", CLOSED_REPLICAS)
    }
    start(machine).close(9, [], ())
    for name, data in kept.items():
        machine.storage.write_file(f"/{home}/{name}", data)
    assert found(machine) == LastStop((9,), frozenset({T0}), True, False)


@pytest.mark.parametrize(
    "damage", ["missing", "damaged", "a directory", "of another stop", "not written"]
)
def test_without_the_file_what_is_there_counts_as_before(damage: str) -> None:
    """So do directories of a real Kafka, and of earlier versions."""
    machine = closed(unproven=None if damage == "not written" else ())
    match damage:
        case "missing":
            machine.storage.remove(CLOSED)
        case "damaged":
            machine.storage.write_file(CLOSED, b"0\n")
        case "a directory":
            machine.storage.remove(CLOSED)
            machine.storage.make_dir(CLOSED)
        case "of another stop":
            data = machine.storage.read_file(CLOSED)
            start(machine).close(9)
            machine.storage.write_file(CLOSED, data)
            assert found(machine) == LastStop((9,), frozenset(), True, False)
            return
        case _:
            assert machine.storage.info(CLOSED) is None
    assert found(machine) == LastStop((4, 7), frozenset(), True, False)


def test_after_a_crash_a_checkpoint_may_still_name_a_log() -> None:
    machine = closed()
    manager = start(machine)
    manager.housekeeper.checkpoint_recovery_points()
    manager.crash()
    machine.storage.rename("/logs/t-0", "/other")
    stop = found(machine)
    assert (stop.broker_epochs, stop.unproven, stop.proves_logs) == ((), {T0}, False)


def test_a_directory_without_its_owner_may_miss_logs() -> None:
    machine = closed()
    machine.storage.remove(f"/logs/{META_PROPERTIES}")
    assert found(machine).may_miss_logs


@pytest.mark.parametrize("mode", ["all_kept", "all_lost"])
def test_the_file_is_there_before_the_marker(mode: str) -> None:
    for step in range(1, 100):
        machine = closed()
        manager = start(machine)
        machine.storage.crash_after(step)
        try:
            manager.close(9, [], ())
            break
        except SimulatedCrash:
            pass
        machine.storage.crash(mode=mode)  # type: ignore[arg-type]
        manager.crash()
        stop = found(machine)
        assert stop.broker_epochs == () or stop.proves_logs
        assert not stop.unproven
    assert step > 3
