"""One flipped bit in the header of a batch, anywhere: no other batch is lost, and none unseen."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest

from logstore.common.errors import LogstoreError
from logstore.format.batch_search import BatchSearch
from logstore.log import PartitionLog
from logstore.recovery import clean_start, crash_recovery, recovery
from logstore.recovery.clean_start import CleanEnd
from logstore.recovery.report import RecoveryReport
from logstore.recovery.set_aside import Remover
from tests.support.builders import NOW, Disk, batch, file_name
from tests.support.cases import for_each

HEADER = 61
UNCHECKED = 17  # bytes of a header that no checksum covers, or that tell where it is
SEGMENTS = 3
PER_SEGMENT = 4
RECORDS = 2
END = SEGMENTS * PER_SEGMENT * RECORDS
PLACES = {
    "first of the log": (0, 0),
    "second of the log": (0, 1),
    "last of a segment": (1, PER_SEGMENT - 1),
    "first of the last segment": (2, 0),
    "middle": (2, 2),
    "last": (2, PER_SEGMENT - 1),
}
MODES = {
    "clean": {"clean_shutdown": True, "recovery_point": END},
    "clean, nothing on file": {"clean_shutdown": True},
    "unclean, all flushed": {"clean_shutdown": False, "recovery_point": END},
    "unclean, half flushed": {"clean_shutdown": False, "recovery_point": 10},
    "unclean, nothing flushed": {"clean_shutdown": False, "recovery_point": 0},
}
EVERY_BIT = range(8 * HEADER)
DRAW = random.Random(7)
SOME_BITS = [
    *DRAW.sample(EVERY_BIT[: 8 * UNCHECKED], 24),
    *DRAW.sample(EVERY_BIT[8 * UNCHECKED :], 6),
    129,  # of the oldest format, and of a record less: an end that is too low
    208,
]


class Original(NamedTuple):
    base_offset: int
    data: bytes

    @property
    def body(self) -> bytes:
        return self.data[UNCHECKED:]


@cache
def template() -> tuple[dict[str, bytes], list[Original]]:
    """The files of a log that was closed, and its batches."""
    disk = Disk(index_interval_bytes=200)
    log = disk.open()
    for at in range(SEGMENTS * PER_SEGMENT):
        if at and at % PER_SEGMENT == 0:
            log.roll()
        value = random.Random(at).randbytes(60)
        data = batch(count=RECORDS, value=value, timestamp=NOW + at, epoch=0)
        log.replica.append_as_follower(struct.pack(">q", at * RECORDS) + data[8:])
    log.close()
    files = disk.files()
    originals = []
    for name in sorted(n for n in files if n.endswith(".log")):
        originals += split(files[name])
    assert len(originals) == SEGMENTS * PER_SEGMENT
    return files, originals


def split(data: bytes) -> list[Original]:
    found, at = [], 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        found.append(Original(base, data[at : at + 12 + length]))
        at += 12 + length
    return found


def damaged(place: tuple[int, int], bit: int) -> tuple[Disk, list[Original]]:
    """A disk with the flip, and the batches that must not be lost."""
    files, originals = template()
    disk = Disk(index_interval_bytes=200)
    for name, data in files.items():
        disk.write(name, data)
    segment, row = place
    name = file_name(segment * PER_SEGMENT * RECORDS, ".log")
    data = bytearray(files[name])
    first = segment * PER_SEGMENT
    position = sum(len(o.data) for o in originals[first : first + row])
    data[position + bit // 8] ^= 1 << bit % 8
    disk.write(name, bytes(data))
    hit = first + row
    intact = [o for at, o in enumerate(originals) if at != hit or bit // 8 < UNCHECKED]
    return disk, intact


def check(disk: Disk, intact: list[Original], reports: list[RecoveryReport], scanned: bool) -> None:
    files = disk.files()
    logs = b"".join(files[n] for n in sorted(files) if n.endswith(".log"))
    kept = [name for name in files if name.endswith(".cut")]
    told = [action for report in reports for action in report.actions]
    assert all(f"kept {name}" in told for name in kept)
    aside = b"".join(files[name] for name in kept)
    present = [original.body in logs for original in intact]
    for original, there in zip(intact, present, strict=True):
        assert there or original.body in aside, f"the batch at {original.base_offset} is lost"
    assert present == sorted(present, reverse=True), "what is left is no prefix"
    if not all(present):
        assert any(report.warnings for report in reports)
        assert any(report.bytes_cut and report.bytes_set_aside for report in reports)
    if scanned:  # an offset that is too high at the very end is a gap, which is legal
        at = -1
        home = {original.body: original.base_offset for original in intact}
        last = template()[1][-1].body
        for name in sorted(n for n in files if n.endswith(".log")):
            for found in split(files[name]):
                assert found.base_offset > at, "offsets do not ascend"
                at = found.base_offset + RECORDS - 1
                at_home = found.base_offset == home.get(found.body, found.base_offset)
                assert at_home or found.body == last, "a batch has the offset of another"


@pytest.mark.slow
@pytest.mark.every
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "bits",
    [
        pytest.param(SOME_BITS, id="some"),
        pytest.param(EVERY_BIT, id="every", marks=pytest.mark.long),
    ],
)
def test_a_flipped_bit_loses_no_other_batch(mode: str, bits: Sequence[int]) -> None:
    for place in PLACES:
        run(place, mode, bits)


def run(place: str, mode: str, bits: Sequence[int] = SOME_BITS) -> None:
    arguments = MODES[mode]
    point = int(arguments.get("recovery_point", 0))
    for bit in bits:
        disk, intact = damaged(PLACES[place], bit)
        try:
            log = disk.open(**arguments)
            reports = [log.recovery_report]
            assert 0 <= log.log_end_offset <= END + 2**31
            if reports[0].clean:  # with nothing on file, a gap before the last batch is legal
                assert log.log_end_offset == END or (log.log_end_offset > END and not point)
            if log.log_end_offset < point:
                assert reports[0].offsets_lost == (log.log_end_offset, point)
            scanned = PLACES[place][0] * PER_SEGMENT * RECORDS >= point - PER_SEGMENT * RECORDS
            scanned = scanned and not arguments["clean_shutdown"]
            log.crash()
            check(disk, intact, reports, scanned)
            again(disk, reports, intact, scanned)
        except AssertionError as error:
            raise AssertionError(f"{place}, bit {bit} (byte {bit // 8}): {error}") from error


def again(disk: Disk, reports: list[RecoveryReport], intact: list[Original], scanned: bool) -> None:
    """A second start, an append, and a third."""
    log: PartitionLog = disk.open(recovery_point=reports[0].recovery_point)
    reports.append(log.recovery_report)
    check(disk, intact, reports, scanned)
    end = log.log_end_offset
    if end < 2**62:
        assert log.append([(b"k", b"v")]).first_offset == end
    log.close()
    log = disk.open(clean_shutdown=True, recovery_point=log.log_end_offset)
    assert log.recovery_report.clean
    reports.append(log.recovery_report)
    check(disk, intact, reports, False)
    log.crash()


# -- the test can see: each of these fails it ------------------------------------------------------


def every_clean_stop_is_believed(patch: pytest.MonkeyPatch) -> None:
    clean_end = recovery.clean_end
    patch.setattr(recovery, "clean_end", lambda *args: CleanEnd(clean_end(*args).next_offset))


def headers_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clean_start, "_doubt", lambda *args: "")


def offsets_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    doubt = clean_start._doubt
    patch.setattr(
        clean_start,
        "_doubt",
        lambda span, base, previous: doubt(
            span._replace(base_offset=base, last_offset=base), base, -1
        ),
    )


def the_recovery_point_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    clean_end = recovery.clean_end
    patch.setattr(recovery, "clean_end", lambda last, point: clean_end(last, None))


def bytes_behind_the_end_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    clean_end = recovery.clean_end

    def mutant(*args: Any) -> CleanEnd:
        end = clean_end(*args)
        return CleanEnd(end.next_offset) if "follow the last" in end.doubt else end

    patch.setattr(recovery, "clean_end", mutant)


def nothing_is_found_behind_damage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchSearch, "next", lambda *args: None)
    patch.setattr(BatchSearch, "is_whole_except_header", lambda *args: False)


def a_damaged_length_hides_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchSearch, "is_whole_except_header", lambda *args: False)


def what_follows_disproves_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(crash_recovery, "disproved_from", lambda segment, scan, _: scan.valid_bytes)


def a_lonely_jump_is_believed(patch: pytest.MonkeyPatch) -> None:
    plan = crash_recovery.plan_split
    patch.setattr(crash_recovery, "plan_split", lambda *args: plan(*args[:3], 2**63))


def what_is_cut_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Remover, "_keeps", lambda *args: False)


MUTANTS = [
    (every_clean_stop_is_believed, "last", "clean"),
    (every_clean_stop_is_believed, "last", "clean, nothing on file"),
    (headers_are_not_looked_at, "last", "clean, nothing on file"),
    (offsets_are_not_looked_at, "last", "clean, nothing on file"),
    (the_recovery_point_is_not_compared, "last", "clean"),
    (bytes_behind_the_end_do_not_matter, "last", "clean, nothing on file"),
    (nothing_is_found_behind_damage, "middle", "unclean, nothing flushed"),
    (a_damaged_length_hides_the_last_batch, "last", "unclean, nothing flushed"),
    (what_follows_disproves_nothing, "middle", "unclean, nothing flushed"),
    (what_follows_disproves_nothing, "last of a segment", "unclean, half flushed"),
    (a_lonely_jump_is_believed, "last", "clean"),
    (what_is_cut_is_not_kept, "middle", "unclean, all flushed"),
]


@for_each("mutant, place, mode", MUTANTS)
def test_mutant_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None],
    place: str,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, LogstoreError)):
        run(place, mode)
