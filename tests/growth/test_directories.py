"""Log directories: what their partitions cost, each and beside so many."""

from __future__ import annotations

from logstore.log import run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.testing import FaultyStorage, ManualClock
from tests.growth.work import Act, Case, Per, check, for_cases
from tests.support.builders import NOW, batch, log_config

OWNER = ManagerOwner(run_later=run_inline)  # in one thread


def opened(storage: FaultyStorage, policy: str = "compact,delete") -> LogManager:
    return LogManager(
        ["/logs"],
        log_config(cleanup_policy=policy),
        storage=storage,
        clock=ManualClock(),
        background=False,
        owner=OWNER,
    )


def holding(partitions: int) -> LogManager:
    manager = opened(FaultyStorage())
    manager.create_topic("t", partitions)
    return manager


def written(partitions: int) -> LogManager:
    """With a record in each, which is on the disk; and one that is not."""
    manager = holding(partitions)
    write(manager)
    manager.housekeeper.checkpoint_recovery_points()
    write(manager)
    return manager


def write(manager: LogManager) -> None:
    for log in manager.logs.values():
        log.append_as_leader(batch(key=b"k"), 0)


# -- topics ---------------------------------------------------------------------------------------


def create_each(size: int) -> Act:
    manager = holding(1)
    return lambda: manager.create_topic("new", size)


def create_beside(size: int) -> Act:
    manager = written(size)
    return lambda: manager.create_topic("new", 1)


def grow_each(size: int) -> Act:
    manager = holding(1)
    return lambda: manager.create_partitions("t", 1 + size)


def grow_beside(size: int) -> Act:
    manager = written(size)
    return lambda: manager.create_partitions("t", 1 + size)


def delete_each(size: int) -> Act:
    manager = written(size)
    return lambda: manager.delete_topic("t")


def delete_beside(size: int) -> Act:
    manager = written(size)
    return lambda: manager.delete("t", size - 1)


def configure_each(size: int) -> Act:
    manager = written(size)
    return lambda: manager.alter_topic("t", {"retention.ms": "1000"})


# -- starts ---------------------------------------------------------------------------------------


def clean_start(size: int) -> Act:
    storage = FaultyStorage()
    with opened(storage) as manager:
        manager.create_topic("t", size)
        write(manager)
    return lambda: opened(storage)


def recovery(size: int) -> Act:
    storage = FaultyStorage()
    manager = opened(storage)
    manager.create_topic("t", size)
    write(manager)
    manager.crash()
    return lambda: opened(storage)


def stop(size: int) -> Act:
    return written(size).close


def cut_each(size: int) -> Act:
    manager = written(size)
    return lambda: manager.truncate_to(dict.fromkeys(manager.logs, 0))


def cut_beside(size: int) -> Act:
    manager = written(size)
    (*_, one) = manager.logs
    manager.housekeeper.checkpoint_recovery_points()
    return lambda: manager.truncate_to({one: 0})


# -- logs -----------------------------------------------------------------------------------------


def append_beside(size: int) -> Act:
    manager = written(size)
    return lambda: manager.get("t", size - 1).append_as_leader(batch(key=b"k"), 0)


def read_beside(size: int) -> Act:
    manager = written(size)
    return lambda: manager.get("t", size - 1).read(0)


# -- duties ---------------------------------------------------------------------------------------


def flush_due(size: int) -> Act:
    return written(size).housekeeper.flush_dirty_logs


def checkpoint_each(size: int) -> Act:
    return written(size).housekeeper.checkpoint_recovery_points


def starts_each(size: int) -> Act:
    manager = written(size)
    for log in manager.logs.values():
        log.delete_records(1)
    return manager.housekeeper.checkpoint_log_start_offsets


def marks_each(size: int) -> Act:
    return written(size).housekeeper.checkpoint_high_watermarks


def retention_idle(size: int) -> Act:
    return written(size).housekeeper.clean_up


def producers_idle(size: int) -> Act:
    return written(size).housekeeper.remove_expired_producers


def purge_idle(size: int) -> Act:
    return written(size).housekeeper.purge_deleted


def purge_each(size: int) -> Act:
    manager = written(size)
    manager.delete_topic("t")
    return lambda: manager.housekeeper.purge_deleted(at_once=True)


def to_compact(partitions: int) -> LogManager:
    manager = written(partitions)
    write(manager)
    for log in manager.logs.values():
        log.roll()
    return manager


def compact_each(size: int) -> Act:
    return to_compact(size).cleaner.clean_all


def compact_idle(size: int) -> Act:
    manager = to_compact(size)
    manager.cleaner.clean_all()
    return manager.cleaner.clean_all


def compact_keys(size: int) -> Act:
    manager = holding(1)
    log = manager.get("t", 0)
    for number in 2 * tuple(range(size)):
        log.append_as_leader(batch(key=str(number).encode(), timestamp=NOW), 0)
    log.roll()
    return manager.cleaner.clean_all


def compact_segments(size: int) -> Act:
    manager = holding(1)
    log = manager.get("t", 0)
    for number in range(size):
        log.append_as_leader(batch(key=str(number % 2).encode(), timestamp=NOW), 0)
        log.roll()
    return manager.cleaner.clean_all


@for_cases(
    Case("create partitions", create_each),
    Case(
        "create beside partitions",
        create_beside,
        Per.ONE,
        known="a new name is compared with each topic of the directories",
    ),
    Case("grow by partitions", grow_each),
    Case(
        "grow beside partitions",
        grow_beside,
        Per.ONE,
        known="the partitions of a topic are sought among all logs",
    ),
    Case("delete partitions", delete_each),
    Case(
        "delete beside partitions",
        delete_beside,
        Per.ONE,
        known="the partitions of a topic are sought, and checkpoints written whole",
    ),
    Case("configure partitions", configure_each),
    Case("clean start", clean_start),
    Case("recovery", recovery),
    Case("clean stop", stop),
    Case(
        "cut partitions",
        cut_each,
        known="a cut writes the recovery points of its directory before it returns",
    ),
    Case(
        "cut beside partitions",
        cut_beside,
        Per.ONE,
        known="a cut writes the recovery points of its directory before it returns",
    ),
    Case("append beside partitions", append_beside, Per.ONE),
    Case("read beside partitions", read_beside, Per.ONE),
    Case("flush partitions", flush_due),
    Case("checkpoint of partitions", checkpoint_each),
    Case("checkpoint of log starts", starts_each),
    Case("checkpoint of high watermarks", marks_each),
    Case("retention of idle partitions", retention_idle),
    Case("producers of idle partitions", producers_idle),
    Case("purge of idle partitions", purge_idle),
    Case("purge partitions", purge_each),
    Case(
        "compact partitions",
        compact_each,
        known="what to clean next is chosen among all logs, as Kafka does",
    ),
    Case("compact idle partitions", compact_idle),
    Case("compact keys", compact_keys),
    Case(
        "compact segments",
        compact_segments,
        known="each group looks at the sealed segments, and for transactions at all later ones",
    ),
)
def test_directories_cost_what_they_do(case: Case) -> None:
    check(case)
