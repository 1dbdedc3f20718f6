"""What a report of a start says: what this start did or found lost, and nothing of it twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.log import LogOwner, PartitionLog
from logstore.testing import FaultyStorage
from tests.support.builders import batch, log_config

GOLDEN = Path(__file__).parents[2] / "golden" / "data"
EPOCHS = "/d/t-0/leader-epoch-checkpoint"


def open_log(storage: FaultyStorage, *, clean: bool, flushed: int | None = None) -> PartitionLog:
    return PartitionLog.open(
        "/d/t-0",
        log_config(),
        storage=storage,
        owner=LogOwner(managed=True, clean_shutdown=clean, recovery_point=flushed),
    )


@pytest.fixture
def storage() -> FaultyStorage:
    storage = FaultyStorage()
    storage.make_dir("/d/t-0")
    return storage


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", ["v0-gzip", "v1-none"])
def test_a_log_without_epochs_lacks_none(storage: FaultyStorage, name: str, clean: bool) -> None:
    for path in (GOLDEN / name).glob("*.log"):
        storage.write_file(f"/d/t-0/{path.name}", path.read_bytes())
    for _ in range(2):  # the file is missing, then empty
        log = open_log(storage, clean=clean)
        assert log.log_end_offset > 0
        assert log.recovery_report.warnings == []
        log.close()
    storage.write_file(EPOCHS, b"nonsense")
    log = open_log(storage, clean=clean)
    assert len(log.recovery_report.warnings) == 1
    log.close()
    assert open_log(storage, clean=clean).recovery_report.warnings == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_epochs_that_were_rebuilt_are_told_once(
    storage: FaultyStorage, content: bytes | None, clean: bool
) -> None:
    log = open_log(storage, clean=True)
    log.replica.append_as_follower(batch(0, 2, epoch=3))
    log.close()
    storage.remove(EPOCHS)
    if content is not None:
        storage.write_file(EPOCHS, content)
    log = open_log(storage, clean=clean, flushed=2)
    (warning,) = log.recovery_report.warnings
    assert "leader-epoch-checkpoint" in warning
    assert "rebuilt from the batches" in warning
    log.close()
    assert open_log(storage, clean=clean, flushed=2).recovery_report.warnings == []


def test_a_kill_before_the_first_flush_leaves_nothing_to_tell(storage: FaultyStorage) -> None:
    """That flush makes the file of epochs."""
    log = open_log(storage, clean=True)
    log.epochs.assign(3)
    log.append_as_leader(batch(0, 2), 3)
    assert storage.info(EPOCHS) is None
    again = open_log(storage, clean=False)
    assert again.recovery_report.warnings == []
    assert [*again.epochs.entries] == [(3, 0)]


@pytest.mark.parametrize(("content", "told"), [(b"", 0), (b'{"version": 1', 1)])
def test_a_kill_before_a_list_of_replaced_segments_was_written(
    storage: FaultyStorage, content: bytes, told: int
) -> None:
    """No segment was replaced yet, so nothing is amiss; half a list no kill leaves."""
    open_log(storage, clean=True).replica.append_as_follower(batch(0, 2))
    storage.write_file("/d/t-0/00000000000000000000.log.cleaned", batch(0, 2))
    storage.write_file("/d/t-0/replaced-segments", content)
    log = open_log(storage, clean=False)
    assert (log.log_end_offset, len(log.recovery_report.warnings)) == (2, told)
    assert not [e.name for e in storage.scan_dir("/d/t-0") if e.name.startswith("replaced")]


@pytest.mark.parametrize("suffix", [".log", ".log.swap", ".index"])
@pytest.mark.parametrize("number", ["99999999999999999999", "5", "+0000000000000000005"])
def test_what_has_no_name_of_a_segment_is_told(
    storage: FaultyStorage, number: str, suffix: str
) -> None:
    """At every start: what it holds is in no log, and nothing takes it away."""
    storage.write_file(f"/d/t-0/{number}{suffix}", batch(5))
    for _ in range(2):
        log = open_log(storage, clean=True)
        assert log.recovery_report.warnings == [
            f"'{number}{suffix}': not the name of a segment, ignored"
        ]
        log.close()
    assert storage.read_file(f"/d/t-0/{number}{suffix}") == batch(5)
