"""What opening a log believes of ``.swap`` and ``.cleaned`` files; whatever it does not is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore.kernels import crc32c
from logstore.storage.base import File
from logstore.testing import FaultyStorage
from tests.crash.disk import (
    DIRECTORY,
    T0,
    Files,
    assert_nothing_gone,
    batches_of,
    disk_with,
    joined,
    log_bytes,
    open_log,
    segment_path,
    tree,
    written,
)
from tests.crash.model import Batch, data_batch

BATCHES = batches_of(20)
SIZE = len(BATCHES[0].data)
FILES = written(BATCHES, rolls=4)  # segments 0, 12, 24, 36, 48
SWAP = segment_path(12, ".log.swap")
BOTH = joined(BATCHES[4:12])  # of the segments 12 and 24
START = pytest.mark.parametrize("clean", [True, False])


def kept(files: Files) -> dict[str, bytes]:
    return {p.rpartition("/")[2]: d for p, d in files.items() if p.endswith(".cut")}


def flipped_crc(data: bytes) -> bytes:
    return data[: 5 * SIZE + 70] + bytes([data[5 * SIZE + 70] ^ 1]) + data[5 * SIZE + 71 :]


def far_last_offset(data: bytes) -> bytes:
    at = len(data) - SIZE
    return data[:at] + (33 + (1 << 20)).to_bytes(8, "big") + data[at + 8 :]


def low_last_offset(data: bytes) -> bytes:
    at = len(data) - SIZE
    return data[:at] + (3).to_bytes(8, "big") + data[at + 8 :]


@START
def test_a_whole_replacement_takes_the_place_of_its_originals(clean: bool) -> None:
    compacted = joined([*BATCHES[4:6], BATCHES[11]])
    storage = disk_with(FILES | {SWAP: compacted, segment_path(12, ".index.swap"): b""})
    log = open_log(storage, clean=clean, recovery_point=60)
    assert log_bytes(storage) == joined([*BATCHES[:6], BATCHES[11], *BATCHES[12:]])
    assert kept(dict(tree(storage))) == {}
    assert not log.recovery_report.has_findings


@START
@pytest.mark.parametrize(
    "change",
    [
        flipped_crc,
        far_last_offset,
        low_last_offset,
        lambda data: data[:-1],
        lambda data: data[: 5 * SIZE],
        lambda data: data[: 2 * SIZE],
        lambda data: data + b"\0" * 10,
    ],
)
def test_a_replacement_that_is_not_as_its_originals_is_kept_aside(
    change: Callable[[bytes], bytes], clean: bool
) -> None:
    swap = change(BOTH)
    storage = disk_with(FILES | {SWAP: swap, segment_path(12, ".index.swap"): b""})
    log = open_log(storage, clean=clean, recovery_point=60)
    assert log_bytes(storage) == joined(BATCHES)
    files = dict(tree(storage))
    assert kept(files) == {f"{12:020}.log.0.cut": swap}
    assert not any(".swap" in path for path in files)
    report = log.recovery_report
    assert report.bytes_set_aside == len(swap)
    assert [w for w in report.warnings if f"{12:020}.log.swap" in w]
    assert report.has_findings
    assert report.clean == clean
    log.close()
    assert not open_log(storage, clean=True, recovery_point=60).recovery_report.has_findings


@START
@pytest.mark.parametrize(
    "kept_batches",
    [
        {7: 15},  # it ends where the next original ends
        {0: 0, 1: 5, 7: 7},
        {0: 0, 5: 1, 7: 7},
    ],
)
def test_a_replacement_whose_offset_is_of_another_batch_is_kept_aside(
    kept_batches: dict[int, int], clean: bool
) -> None:
    batches = batches_of(32, records=1)
    files = written(batches, rolls=8)  # segments 0, 8, 16, 24
    swap = b"".join(
        told.to_bytes(8, "big") + batches[at].data[8:] for at, told in kept_batches.items()
    )
    swaps = {segment_path(0, ".log.swap"): swap, segment_path(0, ".index.swap"): b""}
    storage = disk_with(files | swaps)
    log = open_log(storage, clean=clean, recovery_point=32)
    assert log_bytes(storage) == joined(batches)
    assert kept(dict(tree(storage))) == {f"{0:020}.log.0.cut": swap}
    assert log.recovery_report.has_findings


def compacted(at: int) -> Batch:
    """Batch ``at`` of ``BATCHES`` as a compaction leaves it that keeps two of its records."""
    batch = BATCHES[at]
    records = [(b"k", b"%08d" % row, T0 + at * 10 + row) for row in range(2)]
    smaller = bytearray(data_batch(batch.base, 0, records).data)
    smaller[23:27] = (2).to_bytes(4, "big")  # the last offset delta stays
    smaller[17:21] = crc32c(smaller[21:]).to_bytes(4, "big")
    return batch._replace(data=bytes(smaller))


@START
@pytest.mark.parametrize("last_is_whole", [True, False])
def test_a_compacted_batch_is_one_of_its_originals(last_is_whole: bool, clean: bool) -> None:
    last = BATCHES[11] if last_is_whole else compacted(11)
    swap = joined([compacted(5), last])
    storage = disk_with(FILES | {SWAP: swap, segment_path(12, ".index.swap"): b""})
    log = open_log(storage, clean=clean, recovery_point=60)
    if last_is_whole:
        assert log_bytes(storage) == joined(BATCHES[:4]) + swap + joined(BATCHES[12:])
        assert not log.recovery_report.has_findings
    else:  # how far it reaches is the word of its last batch
        assert log_bytes(storage) == joined(BATCHES)
        assert kept(dict(tree(storage))) == {f"{12:020}.log.0.cut": swap}


@START
@pytest.mark.parametrize("swap", [b"", bytes(500), b"\xee" * 500])
def test_a_replacement_without_a_batch_destroys_nothing(swap: bytes, clean: bool) -> None:
    storage = disk_with(FILES | {SWAP: swap})
    open_log(storage, clean=clean, recovery_point=60)
    assert log_bytes(storage) == joined(BATCHES)
    assert kept(dict(tree(storage))) == {}


@START
def test_a_damaged_replacement_is_recovered_where_its_originals_are_gone(clean: bool) -> None:
    files = {p: d for p, d in FILES.items() if f"/{12:020}" not in p and f"/{24:020}" not in p}
    storage = disk_with(files | {SWAP: flipped_crc(BOTH)})
    log = open_log(storage, clean=clean, recovery_point=60)
    assert log_bytes(storage) == joined(BATCHES[:9])
    assert_nothing_gone(storage, [*BATCHES[:9], *BATCHES[10:]])
    report = log.recovery_report
    assert report.offsets_lost == (27, 60)
    assert not report.clean


@START
def test_an_unfinished_copy_goes_where_there_are_originals(clean: bool) -> None:
    storage = disk_with(FILES | {segment_path(12, ".log.cleaned"): joined(BATCHES[4:6])})
    log = open_log(storage, clean=clean, recovery_point=60)
    assert log_bytes(storage) == joined(BATCHES)
    assert kept(dict(tree(storage))) == {}
    assert not log.recovery_report.has_findings


@START
@pytest.mark.parametrize("transition", [".log.cleaned", ".log.swap"])
def test_an_unfinished_copy_of_a_damaged_original_is_kept(transition: str, clean: bool) -> None:
    """It may have the only whole copy of the batch that its original lost."""
    whole = joined(BATCHES[4:8])
    damaged = whole[:-1] + bytes([whole[-1] ^ 1])
    files = FILES | {segment_path(12): damaged, segment_path(12, transition): whole}
    if transition == ".log.swap":
        files |= {segment_path(0, ".log.cleaned"): b""}
    storage = disk_with(files)
    log = open_log(storage, clean=clean, recovery_point=60)
    assert_nothing_gone(storage, BATCHES)
    assert kept(dict(tree(storage))).get(f"{12:020}.log.0.cut") == whole
    assert log.recovery_report.has_findings


@START
@pytest.mark.parametrize("transition", [".log.cleaned", ".log.swap"])
def test_an_original_is_read_once_however_many_files_it_is_compared_with(
    transition: str, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time would grow with the product of files and bytes."""
    files = FILES | {segment_path(base, transition): b"" for base in range(1, 40)}
    files |= {segment_path(base, ".index.swap"): b"" for base in range(1, 40)}
    storage = disk_with(files)
    opened: list[str] = []

    def counted(path: str, *, create: bool = False, writable: bool = True) -> File:
        opened.append(path)
        return FaultyStorage.open(storage, path, create=create, writable=writable)

    monkeypatch.setattr(storage, "open", counted)
    open_log(storage, clean=clean, recovery_point=60)
    assert log_bytes(storage) == joined(BATCHES)
    assert max(opened.count(path) for path in FILES) < 8


@START
def test_an_unfinished_copy_that_is_all_there_is_is_kept(clean: bool) -> None:
    files = {p: d for p, d in FILES.items() if f"/{12:020}" not in p}
    storage = disk_with(files | {segment_path(12, ".log.cleaned"): joined(BATCHES[4:8])})
    log = open_log(storage, clean=clean, recovery_point=60)
    assert kept(dict(tree(storage))) == {f"{12:020}.log.0.cut": joined(BATCHES[4:8])}
    assert log.recovery_report.has_findings


@START
@pytest.mark.parametrize("end", [36, 33 + (1 << 20)])
def test_originals_behind_one_that_is_gone_are_never_removed(end: int, clean: bool) -> None:
    """How far a replacement reaches is the word of a base offset, which no checksum covers."""
    files = {p: d for p, d in FILES.items() if f"/{12:020}" not in p}
    last = joined([BATCHES[11]])
    told = (end - 3).to_bytes(8, "big") + last[8:]
    storage = disk_with(files | {SWAP: BOTH[:-SIZE] + told, segment_path(12, ".index.swap"): b""})
    log = open_log(storage, clean=clean, recovery_point=60)
    assert_nothing_gone(storage, BATCHES)
    report = log.recovery_report
    assert report.has_findings
    assert report.warnings
    if end == 36:
        assert log_bytes(storage) == joined(BATCHES)
        assert kept(dict(tree(storage))) == {f"{24:020}.log.0.cut": joined(BATCHES[8:12])}


def test_another_spelling_of_a_name_is_no_file_of_the_log() -> None:
    odd = f"{DIRECTORY}/12.log.swap"
    storage = disk_with(FILES | {odd: BOTH[:SIZE]})
    open_log(storage)
    assert log_bytes(storage) == joined(BATCHES)
    assert storage.read_file(odd) == BOTH[:SIZE]


def test_any_number_of_files_can_be_kept() -> None:
    others = {segment_path(12, ".log.0.cut"): b"0"}
    others |= {segment_path(12, f".log.0.{n}.cut"): b"x" for n in range(1, 1000)}
    storage = disk_with(FILES | others | {SWAP: BOTH[:SIZE]})
    report = open_log(storage).recovery_report
    assert storage.read_file(segment_path(12, ".log.0.1000.cut")) == BOTH[:SIZE]
    assert report.bytes_set_aside == SIZE
