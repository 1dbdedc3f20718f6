"""What a broker at work, a kill or a new controller leaves is no fault.

Elsewhere the same bytes are one.

A clean stop promises the whole log, a recovery point what lies below it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, cast

import pytest
from verify_logs import LOG_DIR, PARTITION, SMALL, log_dir

from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH
from checkpoints.offset_checkpoint import RECOVERY_POINT
from logstore.format.index_entry import OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY
from logstore.log import run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.storage import Storage
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from logstore.verify import Severity, VerifyOptions, VerifyReport, verify
from logstore.verify.common.report import error, warning
from logstore.verify.partition.ends import LogDirFacts, Standing, standing_at, weigh

ONE_THREAD = VerifyOptions(threads=1)
HALF = {
    ".index": OFFSET_ENTRY.pack(5, 0),
    ".timeindex": TIME_ENTRY.pack(2**60, 0),
    ".txnindex": bytes(TXN_ENTRY.size // 2),
    ".snapshot": b"\0\1\1",
}
"""What is there when a broker is killed between the two writes of an entry, or in one."""


def told(storage: MemoryStorage) -> dict[str, Severity]:
    """The worst severity of each rule."""
    found: dict[str, Severity] = {}
    for finding in check(storage).findings:
        worst = min(finding.severity, found.get(finding.rule, Severity.INFO), key=[*Severity].index)
        found[finding.rule] = worst
    return found


def check(storage: MemoryStorage) -> VerifyReport:
    report = verify([LOG_DIR], ONE_THREAD, storage=storage)
    assert not report.unusable
    return report


def bases(storage: MemoryStorage) -> list[int]:
    names = [entry.name for entry in storage.scan_dir(PARTITION)]
    return sorted(int(name[:20]) for name in names if name.endswith(".log"))


def leave(storage: MemoryStorage, suffix: str, base: int) -> None:
    """Half an entry behind the last one of an index, or the beginning of a snapshot."""
    path = f"{PARTITION}/{base:020d}{suffix}"
    there = storage.read_file(path) if storage.info(path) and suffix != ".snapshot" else b""
    storage.write_file(path, there.rstrip(b"\0") + HALF[suffix])


@pytest.mark.parametrize("suffix", HALF)
def test_half_an_entry_where_the_next_start_rebuilds(suffix: str) -> None:
    storage = log_dir(clean=False)
    first, last = bases(storage)[0], bases(storage)[-1]
    storage.write_file(f"{LOG_DIR}/{RECOVERY_POINT}", f"0\n1\norders 0 {last}\n".encode())
    assert check(storage).findings == []
    above = last + 1 if suffix == ".snapshot" else last
    leave(storage, suffix, above)
    report = check(storage)
    assert report.clean, [str(finding) for finding in report.findings]
    assert any("the next start builds it anew" in f.message for f in report.findings)
    leave(storage, suffix, first)  # below the recovery point
    assert not check(storage).clean


@pytest.mark.parametrize("suffix", HALF)
def test_half_an_entry_behind_a_clean_stop(suffix: str) -> None:
    storage = log_dir()
    leave(storage, suffix, bases(storage)[-1])
    assert Severity.ERROR in told(storage).values() or Severity.WARNING in told(storage).values()


def test_a_broker_that_starts_meanwhile_promises_nothing() -> None:
    """It removes the marker, and then writes."""
    storage = log_dir()
    last = bases(storage)[-1]

    class Starting:
        def __getattr__(self, name: str) -> Any:
            return getattr(storage, name)

        def open(self, path: str, **options: bool) -> Any:
            if path.endswith(".index") and storage.info(f"{LOG_DIR}/{CLEAN_SHUTDOWN}"):
                storage.remove(f"{LOG_DIR}/{CLEAN_SHUTDOWN}")
                leave(storage, ".index", last)
                leave(storage, ".timeindex", last)
            return storage.open(path, **options)

    storage.write_file(f"{LOG_DIR}/{RECOVERY_POINT}", f"0\n1\norders 0 {last}\n".encode())
    report = verify([LOG_DIR], ONE_THREAD, storage=cast(Storage, Starting()))
    assert report.clean, [str(finding) for finding in report.findings]
    assert report.findings


@pytest.mark.parametrize(
    ("clean", "recovery_point", "expected"),
    [
        (True, 0, Standing.CLOSED),
        (False, 11, Standing.FLUSHED),
        (False, 10, Standing.OPEN),
        (False, -1, Standing.OPEN),
        (None, -1, Standing.ALONE),
        (None, 11, Standing.FLUSHED),
    ],
)
def test_what_is_promised_of_an_offset(
    clean: bool | None, recovery_point: int, expected: Standing
) -> None:
    assert standing_at(LogDirFacts(clean=clean, recovery_point=recovery_point), 10) is expected


def test_only_what_is_rebuilt_is_excused() -> None:
    found = error("index-entry", 8, 5, "leads nowhere")
    for standing in Standing:
        excused = weigh(found, ".index", standing).severity is Severity.INFO
        assert excused == (standing is Standing.OPEN)
        assert weigh(found, ".log", standing) == found
        huge = error("too-large", 0, 5, "no writer makes it so large")
        assert weigh(huge, ".index", standing) == huge
    assert weigh(warning("index-zeros", 0, 0, ""), ".timeindex", Standing.OPEN).message


# -- leader epochs -----------------------------------------------------------------------------


def written(epochs: Iterable[int], *, kill: bool = False, batches: int = 6) -> MemoryStorage:
    """A log with batches of these leader epochs in turn, closed; or killed and started before."""
    storage, clock = MemoryStorage(), ManualClock()
    manager = LogManager(
        [LOG_DIR], SMALL, storage=storage, clock=clock, owner=ManagerOwner(run_later=run_inline)
    )
    log = manager.create_topic("orders", 1)[0]
    for epoch in epochs:
        for _ in range(batches):
            log.append([(b"k", bytes(300))], leader_epoch=epoch)
    if kill:
        manager.crash()
        manager = LogManager(
            [LOG_DIR], SMALL, storage=storage, clock=clock, owner=ManagerOwner(run_later=run_inline)
        )
        manager.get_or_create("orders", 0)
    manager.close()
    return storage


def epochs_on_file(storage: MemoryStorage) -> list[str]:
    return storage.read_file(f"{PARTITION}/{LEADER_EPOCH}").decode().splitlines()[2:]


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize(
    "epochs",
    [(4, 0), (4, 0, 1), (2, 4, 0, 3), (4, 0, 3, 0), (7, 3, 5, 1, 2), (1, 0), (4, 0, 4)],
)
def test_epochs_fall_where_a_controller_begins_anew(epochs: tuple[int, ...], kill: bool) -> None:
    """F-204 and F-232: the checkpoint has the lower epoch, or after a recovery the highest."""
    storage = written(epochs, kill=kill and epochs[-1] < max(epochs))
    found = told(storage)
    assert set(found.values()) == {Severity.INFO}, found
    assert "log-epoch-falls" in found


@pytest.mark.parametrize("on_file", ["right", "missing"])
@pytest.mark.parametrize("wrong", [0, 3, 5, 4 | 1 << 30])
@pytest.mark.parametrize("number", [1, 5, 12, 17])
def test_one_batch_of_another_epoch_in_the_middle_is_damage(
    number: int, wrong: int, on_file: str
) -> None:
    storage = written([4, 4, 4])
    if on_file == "missing":
        storage.remove(f"{PARTITION}/{LEADER_EPOCH}")
    _set_epoch(storage, number, wrong)
    last = number == 17
    if last and (on_file == "missing" or wrong < 4):
        return  # so it is after a fall
    found = told(storage)
    assert found["log-epoch" if on_file == "right" else "log-epoch-falls"] is Severity.ERROR


def _set_epoch(storage: MemoryStorage, number: int, epoch: int) -> None:
    """Of the batch with this number; each has one record."""
    base = max(base for base in bases(storage) if base <= number)
    path = f"{PARTITION}/{base:020d}.log"
    data = bytearray(storage.read_file(path))
    at = 0
    for _ in range(number - base):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    data[at + 12 : at + 16] = epoch.to_bytes(4, "big")
    storage.write_file(path, bytes(data))


def test_a_fallen_epoch_that_the_checkpoint_does_not_know() -> None:
    """A whole run in the middle, where the file has the epoch before: files of two moments."""
    storage = written([1, 2, 3])
    assert epochs_on_file(storage) == ["1 0", "2 6", "3 12"]
    text = b"0\n2\n1 0\n3 12\n"
    storage.write_file(f"{PARTITION}/{LEADER_EPOCH}", text)
    assert told(storage)["log-epoch"] is Severity.ERROR


def test_random_falls_are_no_faults() -> None:
    rng = random.Random(3)
    for _ in range(12):
        reigns = [sorted(rng.sample(range(1, 9), rng.randint(0, 4))) for _ in range(2)]
        storage = written([*reigns[0], 0, *reigns[1]], batches=2)
        assert set(told(storage).values()) <= {Severity.INFO}


def test_epochs_cut_for_records_that_come_back() -> None:
    """The log start is on file later than the epochs: a kill between them brings records back."""
    storage = written([0, 0])
    storage.write_file(f"{PARTITION}/{LEADER_EPOCH}", b"0\n1\n0 7\n")
    assert told(storage) == {"epochs-start": Severity.INFO}
