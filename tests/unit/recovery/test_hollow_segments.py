"""What is empty never stands against data: a file that holds no batch is only a name."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from logstore import LogConfig, LogManager, PartitionLog
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.testing import FaultyStorage
from logstore.verify import Severity, verify
from tests.crash.disk import (
    DIRECTORY,
    batches_of,
    disk_with,
    joined,
    log_bytes,
    open_log,
    segment_path,
    tree,
    written,
)

BATCHES = batches_of(20)
FILES = written(BATCHES, rolls=4)  # segments 0, 12, 24, 36, 48
END = 60
TORN = BATCHES[1].data[:70]
CONTENTS = {"empty": b"", "zeros": bytes(500), "torn": TORN, "noise": b"x" * 300}
INSIDE = (3, 4, 15, 57, 58)  # begins with a batch, inside one; in the first, another, the last
SUFFIXES = (".log", ".log.swap", ".log.cleaned", ".index", ".timeindex.swap", ".index.cleaned")


def offsets(log: PartitionLog, start: int = 0) -> list[int]:
    return [record.offset for record in log.records(start)]


def kept(storage: FaultyStorage) -> list[bytes]:
    return [data for path, data in tree(storage) if path.endswith(".cut")]


@pytest.mark.parametrize("point", [None, 0, 30, 60])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("base", INSIDE)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_file_inside_a_segment(
    suffix: str, base: int, clean: bool, point: int | None
) -> None:
    if clean and point != END:
        point = None
    storage = disk_with(FILES | {segment_path(base, suffix): b""})
    log = open_log(storage, clean=clean, recovery_point=point)
    report = log.recovery_report
    assert all(offsets(log, start) == list(range(start, END)) for start in range(0, END, 5))
    assert log.log_end_offset == END
    assert (report.bytes_cut, report.clean_doubt, kept(storage)) == (0, "", [])
    log.close()
    assert log_bytes(storage) == joined(BATCHES)
    again = open_log(storage, clean=True, recovery_point=END)
    assert not again.recovery_report.has_findings
    assert again.log_end_offset == END


@pytest.mark.parametrize("point", [None, 30, 60])
@pytest.mark.parametrize("base", INSIDE)
@pytest.mark.parametrize("suffix", [".log", ".log.swap"])
@pytest.mark.parametrize("content", ["zeros", "torn", "noise"])
def test_bytes_that_are_no_batch_inside_a_segment_after_a_crash(
    content: str, suffix: str, base: int, point: int | None
) -> None:
    storage = disk_with(FILES | {segment_path(base, suffix): CONTENTS[content]})
    log = open_log(storage, recovery_point=point)
    if point is not None and base < 36 and suffix == ".log":
        # It lies below what is scanned. Nothing was cut; the next scan of everything removes it.
        log.close()
        log = open_log(storage)
    assert offsets(log) == list(range(END))
    assert log.log_end_offset == END
    assert kept(storage) == ([] if content == "zeros" else [CONTENTS[content]])
    log.close()
    assert log_bytes(storage) == joined(BATCHES)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("suffix", [".log", ".log.swap"])
def test_behind_a_clean_stop_at_the_end(suffix: str, content: str) -> None:
    storage = disk_with(FILES | {segment_path(57, suffix): CONTENTS[content]})
    log = open_log(storage, clean=True, recovery_point=END)
    assert offsets(log) == list(range(END))
    assert offsets(log, 58) == [58, 59]
    assert log.log_end_offset == END
    assert f"{57:020d}.log" in log.recovery_report.warnings[-1]


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_active_segment_is_legal(clean: bool) -> None:
    storage = disk_with(FILES | {segment_path(END): b""})
    log = open_log(storage, clean=clean, recovery_point=END)
    assert log.log_end_offset == END
    assert not log.recovery_report.has_findings
    assert segment_path(END) in dict(tree(storage))


@pytest.mark.parametrize("clean", [True, False])
def test_empty_segments_of_a_compaction_are_legal(clean: bool) -> None:
    """Their records are gone, and with them the end of what lies before the active segment."""
    files = FILES | {segment_path(base): b"" for base in (12, 24, 48)} | {segment_path(END): b""}
    storage = disk_with(files)
    log = open_log(storage, clean=clean, recovery_point=END)
    assert log.log_end_offset == END
    assert offsets(log) == [*range(12), *range(36, 48)]
    assert not log.recovery_report.has_findings


def test_an_empty_file_behind_the_end_that_a_clean_stop_wrote() -> None:
    storage = disk_with(FILES | {segment_path(1000): b""})
    log = open_log(storage, clean=True, recovery_point=END)
    assert log.log_end_offset == END
    assert offsets(log) == list(range(END))
    assert log.recovery_report.clean_doubt == ""
    assert "1000.log" in log.recovery_report.warnings[0]


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_file_before_the_first_segment(clean: bool) -> None:
    files = {path: data for path, data in FILES.items() if "/" + "0" * 20 not in path}
    storage = disk_with(files | {segment_path(4): b""})
    log = open_log(storage, clean=clean, recovery_point=END, log_start_offset=12)
    assert offsets(log, 12) == list(range(12, END))
    assert log.log_start_offset == 12


START = pytest.mark.parametrize("clean", [True, False])


@pytest.mark.parametrize("base", [0, 12, 48])
@pytest.mark.parametrize("other", [{}, {".log": b""}, {".log": bytes(99)}])
@pytest.mark.parametrize("unfinished", ["", ".log.cleaned", ".index.cleaned"])
@START
def test_nothing_empty_condemns_the_only_copy(
    clean: bool, unfinished: str, other: dict[str, bytes], base: int
) -> None:
    """A replacement whose originals are gone has the only copy of its records."""
    files = dict(FILES)
    files[segment_path(base, ".log.swap")] = files.pop(segment_path(base))
    files |= {segment_path(base, suffix): data for suffix, data in other.items()}
    if unfinished:
        files[segment_path(0, unfinished)] = b""
    storage = disk_with(files)
    log = open_log(storage, clean=clean, recovery_point=END)
    assert offsets(log) == list(range(END))
    assert kept(storage) == []


@START
def test_an_empty_original_does_not_condemn_an_unfinished_copy(clean: bool) -> None:
    files = dict(FILES)
    only = files[segment_path(12, ".log.cleaned")] = files[segment_path(12)]
    storage = disk_with(files | {segment_path(12): b""})
    open_log(storage, clean=clean, recovery_point=END)
    assert kept(storage) == [only]


@START
def test_a_copy_behind_a_damaged_original_stays_unfinished(clean: bool) -> None:
    """It may be a piece of that original, whose other pieces are not there."""
    files = dict(FILES)
    only = files[segment_path(12, ".log.swap")] = files.pop(segment_path(12))
    damaged = FILES[segment_path(0)][:-1] + b"!"
    storage = disk_with(files | {segment_path(0): damaged, segment_path(0, ".log.cleaned"): b""})
    open_log(storage, clean=clean, recovery_point=END)
    assert only in kept(storage)


def test_a_recovery_point_alone_does_not_move_the_log_end_back() -> None:
    """Offsets that are gone, as after a compaction, must not be assigned again."""
    storage = disk_with(FILES | {segment_path(48): b"", segment_path(END): b""})
    log = open_log(storage, clean=True, recovery_point=50)
    assert log.log_end_offset == END
    assert log.recovery_report.clean_doubt


def test_a_segment_that_holds_batches_is_no_empty_one() -> None:
    """Two segments that overlap are judged by their batches."""
    storage = disk_with(FILES | {segment_path(3): joined(BATCHES[4:6])})
    actions = open_log(storage).recovery_report.actions
    assert actions
    assert not any("no batch" in action for action in actions)


@pytest.mark.parametrize("suffix", [".log", ".log.swap"])
@pytest.mark.parametrize("killed", [True, False])
def test_a_log_without_a_manager(tmp_path: Path, suffix: str, killed: bool) -> None:
    with PartitionLog.open(tmp_path / "t-0") as log:
        for number in range(20):
            log.append([(b"k", b"%d" % number)], sync=True)
    if killed:
        (tmp_path / "t-0" / "clean-stop").unlink()
    (tmp_path / "t-0" / f"{10:020d}{suffix}").touch()
    with PartitionLog.open(tmp_path / "t-0") as log:
        assert [record.offset for record in log.records()] == list(range(20))
        assert log.append([(b"k", b"20")]).first_offset == 20
        assert log.recovery_report.bytes_cut == 0


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_with_a_manager(tmp_path: Path, clean: bool) -> None:
    with LogManager([tmp_path], LogConfig(), background=False) as manager:
        log = manager.create_topic("t", 1)[0]
        for number in range(20):
            log.append([(b"k", b"%d" % number)], sync=True)
    if not clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "t-0" / f"{10:020d}.log").touch()
    with LogManager([tmp_path], LogConfig(), background=False) as manager:
        log = manager.get("t", 0)
        assert [record.offset for record in log.records()] == list(range(20))
        assert log.log_end_offset == 20


def test_the_log_start_on_file_is_believed_beside_an_empty_file(tmp_path: Path) -> None:
    """Otherwise the records that were deleted come back."""
    with PartitionLog.open(tmp_path / "t-0") as log:
        for number in range(20):
            log.append([(b"k", b"%d" % number)])
        log.delete_records(15)
    (tmp_path / "t-0" / f"{10:020d}.log").touch()
    with PartitionLog.open(tmp_path / "t-0") as log:
        assert (log.log_start_offset, log.log_end_offset) == (15, 20)


@pytest.mark.parametrize("names", [(10,), (10, 11, 30, 55), (60,)])
def test_a_reader_of_the_directory_is_not_misled(names: tuple[int, ...]) -> None:
    storage = disk_with(FILES | {segment_path(base): b"" for base in names})
    reader = DirectoryReader(DIRECTORY, storage=storage)
    assert reader.log_end_offset == END
    empty_end = disk_with(FILES | {segment_path(80): b""})
    assert DirectoryReader(DIRECTORY, storage=empty_end).log_end_offset == 80
    for start in range(0, END, 7):
        found = [record.offset for record in islice(reader.follow(start), END - start)]
        assert found == list(range(start, END))


@pytest.mark.parametrize("suffix", [".log", ".log.swap"])
def test_verify_says_what_the_next_start_does(tmp_path: Path, suffix: str) -> None:
    with PartitionLog.open(tmp_path / "t-0") as log:
        for number in range(20):
            log.append([(b"k", b"%d" % number)])
    (tmp_path / "t-0" / f"{10:020d}{suffix}").touch()
    report = verify([str(tmp_path)])
    assert report.partitions[0].log_end_offset == 20
    assert {f.severity for f in report.findings} - {Severity.INFO} == {Severity.WARNING}
    assert any("the next start removes" in f.message for f in report.findings)
