"""Segments that wait for their final name: rolls that a crash left unsettled, splits (F-243)."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from logstore.format.filenames import roll_marks
from logstore.log import PartitionLog
from logstore.storage.base import Storage
from tests.crash.checks import check_lookups, check_producers, check_state
from tests.crash.disk import (
    CONFIG,
    DIRECTORY,
    T0,
    Disk,
    Files,
    assert_nothing_gone,
    batches_of,
    disk_with,
    joined,
    log_bytes,
    open_log,
    opening_crashes,
    segment_path,
    tree,
    written,
)
from tests.crash.model import Batch, data_batch, marker_batch, segment_files

BATCHES = batches_of(20)
SIZE = len(BATCHES[0].data)
FILES = written(BATCHES, rolls=4)  # segments 0, 12, 24, 36, 48


def bases_of(storage: Storage) -> list[int]:
    return [base for base, _ in segment_files(storage, DIRECTORY)]


def kept(storage: Storage) -> dict[str, bytes]:
    return {p.rpartition("/")[2]: d for p, d in tree(storage) if p.endswith(".cut")}


def unsettled(files: Files) -> list[str]:
    return [p for p in files if p.endswith((".swap", ".cleaned", ".deleted", ".tmp"))]


# -- rolls -----------------------------------------------------------------------------------------


def rolled(*bases: int, files: Files = FILES) -> Files:
    """The segments of ``bases`` still have the name of a roll; their indexes do not."""
    return {p + ".swap" if p in map(segment_path, bases) else p: d for p, d in files.items()}


def without(files: Files, *bases: int) -> Files:
    return {p: d for p, d in files.items() if not any(f"/{base:020}." in p for base in bases)}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("bases", [(48,), (36, 48), (12, 24, 36, 48)])
def test_a_roll_that_follows_the_segment_before_it_is_settled(
    bases: tuple[int, ...], clean: bool
) -> None:
    storage = disk_with(rolled(*bases))
    log = open_log(storage, clean=clean)
    assert bases_of(storage) == [0, 12, 24, 36, 48]
    assert log_bytes(storage) == joined(BATCHES)
    assert not unsettled(dict(tree(storage)))
    check_state(log, BATCHES, whole=True)
    check_lookups(log, BATCHES, random.Random(1))
    report = log.recovery_report
    assert (report.bytes_cut, kept(storage)) == (0, {})
    assert log.append([(b"k", b"v")]).first_offset == 60


def test_what_comes_to_rest_stays_after_a_power_cut() -> None:
    storage = disk_with(rolled(36, 48))
    open_log(storage).crash()
    storage.crash(mode="all_lost")
    assert bases_of(storage) == [0, 12, 24, 36, 48]


@pytest.mark.parametrize("bases", [(24,), (24, 36), (24, 36, 48)])
@pytest.mark.parametrize("torn", [1, SIZE, 4 * SIZE])
def test_a_roll_whose_predecessor_lost_its_tail_is_set_aside(
    bases: tuple[int, ...], torn: int
) -> None:
    """With all that follow it: they would stand behind a hole."""
    gone = [base for base in (24, 36, 48) if base not in bases]
    files = rolled(*bases, files=without(FILES, *gone))
    files[segment_path(12)] = files[segment_path(12)][:-torn]
    storage = disk_with(files)
    log = open_log(storage)
    left = 8 - -(-torn // SIZE)
    assert log_bytes(storage) == joined(BATCHES[:left])
    check_state(log, BATCHES[:left], whole=True)
    assert kept(storage) == {f"{b:020}.log.0.cut": FILES[segment_path(b)] for b in bases}
    assert not unsettled(dict(tree(storage)))
    assert not [p for p, _ in tree(storage) if "/" + f"{24:020}.index" in p]
    report = log.recovery_report
    assert report.bytes_set_aside == 4 * SIZE * len(bases)
    for base in bases:
        assert any(f"segment {base}," in warning for warning in report.warnings)
    assert log.append([(b"k", b"v")]).first_offset == 3 * left
    log.close()
    assert open_log(storage, clean=True).recovery_report.warnings == []


def test_rolls_behind_a_damaged_roll_are_set_aside() -> None:
    files = rolled(24, 36, 48)
    path = segment_path(36) + ".swap"
    files[path] = files[path][: 2 * SIZE + 80] + b"\xee" + files[path][2 * SIZE + 81 :]
    storage = disk_with(files)
    log = open_log(storage)
    assert log_bytes(storage) == joined(BATCHES[:14])
    check_state(log, BATCHES[:14], whole=True)
    assert list(kept(storage)) == [f"{36:020}.log.{2 * SIZE}.cut", f"{48:020}.log.0.cut"]
    assert_nothing_gone(storage, BATCHES[:14] + BATCHES[15:])


def test_an_empty_roll() -> None:
    empty = {segment_path(60, ".log.swap"): b"", segment_path(60, ".index"): b""}
    storage = disk_with(FILES | empty)
    log = open_log(storage)
    assert (bases_of(storage)[-1], log.log_end_offset) == (60, 60)
    log.crash()
    torn = {segment_path(48): FILES[segment_path(48)][:-1]}
    storage = disk_with(FILES | empty | torn)
    log = open_log(storage)
    assert (bases_of(storage)[-1], log.log_end_offset) == (48, 57)
    assert (kept(storage), log.recovery_report.bytes_set_aside) == ({}, 0)
    assert not unsettled(dict(tree(storage)))


@pytest.mark.parametrize(("start", "stays"), [(0, False), (11, False), (12, True), (20, True)])
def test_a_roll_with_nothing_before_it_stands_only_at_the_log_start(
    start: int, stays: bool
) -> None:
    """Either the name of the first segment never reached the disk, or retention removed it."""
    storage = disk_with(rolled(12, files=without(FILES, 0, 24, 36, 48)))
    log = open_log(storage, log_start_offset=start)
    if stays:
        assert (bases_of(storage), log.log_start_offset, log.log_end_offset) == ([12], start, 24)
        return
    assert (bases_of(storage), log.log_end_offset) == ([start], start)
    assert kept(storage) == {f"{12:020}.log.0.cut": FILES[segment_path(12)]}
    assert log.recovery_report.warnings


def test_what_is_missing_below_the_log_start_was_deleted() -> None:
    files = rolled(48)
    files[segment_path(36)] = files[segment_path(36)][:-SIZE]
    log = open_log(disk_with(files), log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset) == (50, 60)
    assert [r.offset for r in log.records()] == list(range(50, 60))


def test_below_the_recovery_point_it_is_what_a_compaction_left() -> None:
    """Whatever was flushed has its final name; so this replaces what lies in its range."""
    files = rolled(48)
    files[segment_path(36)] = files[segment_path(36)][:-SIZE]
    storage = disk_with(files)
    log = open_log(storage, recovery_point=60)
    assert (bases_of(storage)[-1], log.log_end_offset) == (48, 60)


NAMES: list[tuple[tuple[str, ...], int, list[int]]] = [
    (("0.log", "8.log.swap"), 0, [8]),
    (("0.log", "8.log.swap", "8.index", "8.timeindex", "8.snapshot"), 0, [8]),
    (("0.log", "8.log.swap", "9.log.swap"), 0, [8, 9]),
    (("0.log", "8.log.swap"), 9, []),
    (("0.log", "8.log.swap"), 8, [8]),
    (("0.log", "8.log.swap", "8.index.swap"), 0, []),
    (("0.log", "8.log.swap", "8.timeindex.swap"), 0, []),
    (("0.log", "8.log.swap", "8.txnindex.swap"), 0, []),
    (("0.log", "8.log.swap", "8.index.cleaned"), 0, []),
    (("0.log", "8.log.swap", "8.log.cleaned"), 0, [8]),
    (("0.log", "8.log.swap", "4.log.cleaned"), 0, [8]),
    (("0.log", "8.log.swap", "8.log"), 0, []),
    (("0.log", "8.log.swap", "9.log"), 0, []),
    (("0.log", "8.log.swap", "9.log.deleted"), 0, [8]),
    (("0.log", "8.index.swap"), 0, []),
    ((), 0, []),
]


@pytest.mark.parametrize(("names", "point", "marks"), NAMES)
def test_which_files_are_rolls(names: tuple[str, ...], point: int, marks: list[int]) -> None:
    full = [f"{int(name.partition('.')[0]):020}.{name.partition('.')[2]}" for name in names]
    assert roll_marks(full, point) == marks


@pytest.mark.parametrize("shape", ["settled", "set aside", "damaged"])
@pytest.mark.slow
def test_no_crash_loses_a_roll_or_leaves_a_hole(shape: str) -> None:
    files, alive = rolled(24, 36, files=without(FILES, 48)), BATCHES[:16]
    if shape == "set aside":
        files[segment_path(12)] = files[segment_path(12)][:-SIZE]
        alive = BATCHES[:7] + BATCHES[8:16]
    if shape == "damaged":
        path = segment_path(24) + ".swap"
        files[path] = files[path][: SIZE + 80] + b"\xee" + files[path][SIZE + 81 :]
        alive = BATCHES[:9] + BATCHES[10:16]
    end = {"settled": 16, "set aside": 7, "damaged": 9}[shape]
    for storage, place in opening_crashes(lambda: disk_with(files), open_log):
        assert_nothing_gone(storage, alive, place)
        log = open_log(storage)
        assert log_bytes(storage) == joined(BATCHES[:end]), place
        assert not unsettled(dict(tree(storage))), place
        check_state(log, BATCHES[:end], whole=True)
        assert_nothing_gone(storage, alive, place)
        log.crash()


@pytest.mark.slow
def test_a_roll_is_settled_only_once_what_lies_before_it_is_on_the_disk() -> None:
    """The end of the segment before is in the page cache only: killed, started, no power."""

    def killed() -> Disk:
        files = rolled(24, 36, files=without(FILES, 48))
        files[segment_path(12)] = files[segment_path(12)][: 2 * SIZE]
        whole = files[segment_path(24, ".log.swap")]
        files[segment_path(24, ".log.swap")] = whole[:SIZE]
        storage = disk_with(files)
        for path, data in (
            (segment_path(12), FILES[segment_path(12)]),
            (segment_path(24, ".log.swap"), whole),
        ):
            file = storage.open(path)
            file.write_at(0, data)
            file.close()
        storage.crash(mode="all_kept")
        return storage

    ends = set()
    for storage, place in opening_crashes(killed, open_log):
        log = open_log(storage)
        end = log.log_end_offset // 3
        assert log_bytes(storage) == joined(BATCHES[:end]), place
        ends.add(end)
        log.crash()
    assert ends >= {6, 16}, "the power cuts did not tell"


@pytest.mark.slow
def test_a_replacement_is_named_on_the_disk_before_what_it_replaces_goes() -> None:
    """Its name is in the cache only: killed in a compaction, started, no power."""

    originals = {segment_path(base): FILES[segment_path(base)] for base in (0, 12)}
    replacement = {".log.cleaned": joined(BATCHES[:8]), ".index.swap": b""}

    def killed() -> Disk:
        pieces = {segment_path(0, suffix): data for suffix, data in replacement.items()}
        storage = disk_with(originals | pieces)
        storage.rename(segment_path(0, ".log.cleaned"), segment_path(0, ".log.swap"))
        storage.crash(mode="all_kept")
        return storage

    bases = set()
    for storage, place in opening_crashes(killed, open_log):
        log = open_log(storage)
        assert log_bytes(storage) == joined(BATCHES[:8]), place
        bases.add(tuple(bases_of(storage)))
        log.crash()
    assert bases == {(0, 12), (0,)}, "the power cuts did not tell"


# -- splits ----------------------------------------------------------------------------------------

FAR, FARTHER = 2**31 + 7, 2**33
WIDE = [*batches_of(4), *batches_of(3, base=FAR), *batches_of(2, base=FARTHER, epoch=2)]
WIDE_FILES: Files = {segment_path(0): joined(WIDE)}
AFTER = batches_of(3, base=FARTHER + 6, epoch=2)


def assert_split(storage: Storage, log: PartitionLog, batches: list[Batch], *more: int) -> None:
    assert bases_of(storage) == [0, FAR, FARTHER, *more]
    assert log_bytes(storage) == joined(batches)
    assert log.log_end_offset == batches[-1].last + 1
    check_state(log, batches, whole=True)
    check_lookups(log, batches, random.Random(1))
    assert not unsettled(dict(tree(storage)))
    for segment, following in pairwise(log.segments):
        assert segment.state.next_offset <= following.base_offset or following.size == 0


@pytest.mark.parametrize("more", [False, True])
def test_a_segment_that_spans_too_many_offsets_is_split(more: bool) -> None:
    files, batches, bases = dict(WIDE_FILES), WIDE, []
    if more:
        files[segment_path(FARTHER + 6)] = joined(AFTER)
        batches, bases = [*WIDE, *AFTER], [FARTHER + 6]
    storage = disk_with(files)
    log = open_log(storage)
    assert_split(storage, log, batches, *bases)
    report = log.recovery_report
    assert (report.segments_split, report.bytes_cut, kept(storage)) == (1, 0, {})
    assert [tuple(entry) for entry in log.epochs.entries] == [(0, 0), (2, FARTHER)]
    log.append([(b"k", b"v")])
    log.close()
    log = open_log(storage, clean=True)
    assert log.recovery_report.actions == []
    assert len(list(log.records())) == 3 * len(batches) + 1


def test_a_roll_behind_a_segment_that_is_split() -> None:
    rolled_after = {segment_path(FARTHER + 6, ".log.swap"): joined(AFTER)}
    storage = disk_with(WIDE_FILES | rolled_after)
    log = open_log(storage)
    assert_split(storage, log, [*WIDE, *AFTER], FARTHER + 6)


def test_a_split_keeps_the_age_of_the_file() -> None:
    storage = disk_with(WIDE_FILES)
    storage.set_mtime(segment_path(0), T0)
    open_log(storage).crash()
    for base in (0, FAR, FARTHER):
        info = storage.info(segment_path(base))
        assert info is not None
        assert info.mtime_ms == T0


@pytest.mark.parametrize("indexes", ["missing", "of the whole"])
def test_on_a_clean_start_a_segment_is_split_where_the_next_one_is_far(indexes: str) -> None:
    files = WIDE_FILES | {segment_path(FARTHER + 6): joined(AFTER)}
    if indexes == "of the whole":
        files |= {segment_path(0, suffix): b"" for suffix in (".index", ".timeindex")}
    storage = disk_with(files)
    log = open_log(storage, clean=True, recovery_point=AFTER[-1].last + 1)
    assert_split(storage, log, [*WIDE, *AFTER], FARTHER + 6)
    assert log.recovery_report.bytes_cut == 0


def test_a_far_segment_is_no_cause_for_a_split() -> None:
    files = {segment_path(0): joined(WIDE[:4]), segment_path(FAR): joined(WIDE[4:7])}
    for clean in (True, False):
        storage = disk_with(files)
        assert open_log(storage, clean=clean).recovery_report.segments_split == 0
        assert log_bytes(storage) == joined(WIDE[:7])


def test_a_first_batch_far_above_the_base() -> None:
    storage = disk_with({segment_path(0): joined(WIDE[4:])})
    log = open_log(storage)
    assert bases_of(storage) == [0, FAR, FARTHER]
    assert log_bytes(storage) == joined(WIDE[4:])
    assert log.log_end_offset == WIDE[-1].last + 1


@pytest.mark.parametrize("tail", [b"\xee" * 200, bytes(300), WIDE[-1].data[:100], WIDE[5].data])
def test_damage_behind_what_is_split_is_cut_first(tail: bytes) -> None:
    files = WIDE_FILES | {segment_path(0): joined(WIDE) + tail}
    storage = disk_with(files | {segment_path(FARTHER + 6): joined(AFTER)})
    log = open_log(storage)
    assert_split(storage, log, WIDE)
    assert log.recovery_report.bytes_cut == len(tail) + len(joined(AFTER))
    assert_nothing_gone(storage, [*WIDE, *AFTER])


@pytest.mark.parametrize(("pieces", "segments"), [(64, 64), (65, 1)])
def test_more_jumps_than_a_compaction_leaves_are_damage(pieces: int, segments: int) -> None:
    """No checksum covers base offsets, and each piece takes four files."""
    batches = [batches_of(1, base=at << 32)[0] for at in range(pieces)]
    storage = disk_with({segment_path(0): joined(batches)})
    report = open_log(storage, recovery_point=(pieces << 32) + 3).recovery_report
    assert len(bases_of(storage)) == segments
    assert_nothing_gone(storage, batches)
    assert (report.bytes_cut > 0) == (segments == 1)
    assert report.bytes_cut == report.bytes_set_aside == report.bytes_valid_behind_cut


def test_a_jump_that_what_follows_contradicts_is_damage() -> None:
    """No checksum covers base offsets: a flipped bit looks like a jump (F-62)."""
    liar = batches_of(1, base=(1 << 40) + 12)[0]
    data = joined([*BATCHES[:4], liar, *BATCHES[5:7]])
    storage = disk_with({segment_path(0): data})
    log = open_log(storage)
    assert (bases_of(storage), log.log_end_offset) == ([0], 12)
    assert_nothing_gone(storage, [*BATCHES[:4], liar, *BATCHES[5:7]])
    assert log.recovery_report.bytes_valid_behind_cut == len(data) - 4 * SIZE


def test_a_jump_past_the_next_segment_is_damage() -> None:
    liar = batches_of(1, base=1 << 40)[0]
    files = {segment_path(0): joined([*BATCHES[:4], liar]), segment_path(15): joined(BATCHES[5:7])}
    storage = disk_with(files)
    log = open_log(storage)
    assert (bases_of(storage), log.log_end_offset) == ([0], 12)
    assert_nothing_gone(storage, [*BATCHES[:4], liar, *BATCHES[5:7]])


def test_an_offset_at_the_end_of_all_offsets_is_damage() -> None:
    data = bytearray(BATCHES[4].data)
    data[:8] = (2**63 - 2).to_bytes(8, "big")
    storage = disk_with({segment_path(0): joined(BATCHES[:4]) + data})
    log = open_log(storage)
    assert (bases_of(storage), log.log_end_offset) == ([0], 12)


def transactions() -> list[Batch]:
    """Aborted and committed transactions, some of which span the jumps; one stays open."""
    found: list[Batch] = []
    sequences: dict[int, int] = {}

    def data(base: int, producer: int) -> None:
        sequence = sequences.get(producer, 0)
        found.append(
            data_batch(
                base,
                0,
                [(b"k", b"v" * 30, T0 + len(found))] * 2,
                producer=producer,
                producer_epoch=0,
                sequence=sequence,
                transactional=True,
            )
        )
        sequences[producer] = sequence + 2

    def end(base: int, producer: int, commit: bool) -> None:
        found.append(marker_batch(base, 0, producer, 0, commit, T0 + len(found)))

    data(0, 1)
    data(2, 2)
    end(4, 1, False)
    data(FAR, 1)
    end(FAR + 2, 2, False)
    data(FAR + 3, 3)
    end(FAR + 5, 1, True)
    end(FARTHER, 3, False)
    data(FARTHER + 1, 2)
    return found


TXNS = transactions()


def test_transactions_across_a_split() -> None:
    storage = disk_with({segment_path(0): joined(TXNS)})
    log = open_log(storage)
    assert_split(storage, log, TXNS)
    check_producers(log, TXNS, whole=True)
    assert log.recovery_report.segments_split == 1
    snapshots = [int(p[-29:-9]) for p, _ in tree(storage) if p.endswith(".snapshot")]
    assert snapshots == [FAR, FARTHER, TXNS[-1].last + 1]  # as Kafka's split leaves them


SPLITS: dict[str, tuple[Files, list[Batch], list[int]]] = {
    "alone": (WIDE_FILES, WIDE, []),
    "with more": (
        WIDE_FILES | {segment_path(FARTHER + 6): joined(AFTER)},
        [*WIDE, *AFTER],
        [FARTHER + 6],
    ),
    "damaged": ({segment_path(0): joined(WIDE) + b"\xee" * 90}, WIDE, []),
    "transactions": ({segment_path(0): joined(TXNS)}, TXNS, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", list(SPLITS))
def test_no_crash_loses_anything_of_a_split(shape: str) -> None:
    """At each step the whole segment is there, or all of its pieces."""
    files, batches, more = SPLITS[shape]
    for storage, place in opening_crashes(lambda: disk_with(files), open_log):
        assert_nothing_gone(storage, batches, place)
        log = open_log(storage)
        assert_split(storage, log, batches, *more)
        check_producers(log, batches, whole=True)
        log.crash()


Opening = Callable[[Disk], PartitionLog]


@pytest.mark.slow
@pytest.mark.parametrize(
    "opening",
    [
        lambda disk: open_log(disk, clean=True, recovery_point=AFTER[-1].last + 1),
        lambda disk: open_log(disk, recovery_point=FAR + 1),
        lambda disk: open_log(disk, CONFIG, recovery_point=FARTHER + 1),
    ],
    ids=["clean", "recovery point in the middle", "recovery point in the last piece"],
)
def test_no_crash_loses_anything_of_a_split_wherever_recovery_begins(opening: Opening) -> None:
    """The start after the crash is an unclean one with the same recovery point."""
    files, batches, more = SPLITS["with more"]
    for storage, place in opening_crashes(lambda: disk_with(files), opening):
        assert_nothing_gone(storage, batches, place)
        log = open_log(storage, recovery_point=FAR + 1)
        assert_split(storage, log, batches, *more)
        log.crash()
