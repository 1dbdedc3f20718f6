"""The kernels of a verification: native and plain Python say the same, and what the rules say.

The rules of ``logstore.verify.common.batch_rules`` look at one batch after the other; a kernel
looks at a whole table, and may only pass over what they would pass over.
"""

from __future__ import annotations

import random
import struct
from array import array
from dataclasses import dataclass, field
from typing import Any

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.common.types import Record
from logstore.format.batch import encode_batch
from logstore.kernels import _constants as v
from logstore.verify.common.batch_rules import OffsetOrder, Row, check_header, check_records
from tests.reference import records as _reference
from tests.reference import verification as reference

native = pytest.importorskip("logstore.kernels._verify")

BOTH = pytest.mark.parametrize("kernels", [native, reference], ids=["native", "reference"])
SEEDS = st.integers(0, 2**32)
COLUMNS = len(v.SCAN_COLUMNS)
CAPACITY = 24
BASE = 1000


@dataclass
class Table:
    """Rows that a scan may have given, with some fields out of the ordinary."""

    rows: list[list[int]] = field(default_factory=list)

    @property
    def columns(self) -> array[int]:
        cells = array("q", bytes(8 * COLUMNS * CAPACITY))
        for number, row in enumerate(self.rows):
            for column, value in enumerate(row):
                cells[column * CAPACITY + number] = value
        return cells

    def headers(self) -> list[Row]:
        return [Row(*row[: len(Row._fields)]) for row in self.rows]


def a_table(rng: random.Random, oddity: float) -> Table:
    table, position, offset = Table(), rng.choice([0, 300]), BASE
    epoch = rng.randint(-1, 3)

    def odd(usual: int, *values: int) -> int:
        return rng.choice(values) if rng.random() < oddity else usual

    for _ in range(rng.randint(1, CAPACITY)):
        magic, count = odd(2, 0, 1), rng.randint(1, 5)
        offset = max(offset + odd(0, 0, 1, 7, -1, -5), 0)
        epoch += odd(0, 1, -1, 5)
        stamp = 10_000 + position + odd(0, -20_000, -10_001 - position)
        size = 61 + odd(10 * count, 0)
        if magic < 2:
            codec = odd(0, 1, 4, 8)
            others = [stamp, stamp, -1, -1, -1, -1, codec, -1 if codec else 1]
            delta = 0
        else:
            attributes = odd(0, 1, 4, 6, 8, 0x10, 0x20, 0x20, 0x31, 0x40, 0x80, -1, 0x48)
            producer = odd(-1, -2, 4000, 4001)
            epoch_known = -1 if producer < 0 else 0
            sequence = -1 if attributes & 0x20 else epoch_known
            delta = max(count + odd(-1, -2, 0, 2), 0)
            others = [
                stamp,
                stamp + odd(0, -5, 3),
                epoch,
                producer,
                odd(epoch_known, -1, 0),
                odd(sequence, 3, -1),
                attributes,
                odd(count, 0, count - 1, count + 1),
            ]
        table.rows.append([position, size, offset, offset + delta, *others, magic, 0, 1])
        position += size
        offset += delta + 1
    return table


def both(name: str, *arguments: Any) -> Any:
    """The answer of either, which must be the same."""
    answers = [getattr(module, name)(*arguments) for module in (native, reference)]
    assert answers[0] == answers[1]
    return answers[0]


# ---- tables ----


@given(seed=SEEDS, expected=st.sampled_from([-1, BASE, BASE - 3, BASE + 1]))
def test_a_survey_points_at_what_the_rules_tell_of(seed: int, expected: int) -> None:
    rng = random.Random(seed)
    table = a_table(rng, rng.choice([0.0, 0.02, 0.15, 0.5]))
    survey = both("survey_batches", table.columns, len(table.rows), expected, BASE, -1)
    headers = table.headers()
    assert survey.odd == [n for n, row in enumerate(headers) if any(check_header(row))]
    assert survey.holes == any(row.has_hole for row in headers)
    assert survey.horizons == any(row.has_horizon for row in headers)
    assert survey.records == sum(row.record_count for row in headers if row.record_count > 0)
    assert survey.controls == [n for n, row in enumerate(headers) if row.is_control]
    assert survey.producers == any(row.producer_id >= 0 for row in headers)
    assert survey.max_timestamp == max(row.max_timestamp for row in headers)
    runs = [n for n in range(len(headers)) if not n or _epoch(headers, n) != _epoch(headers, n - 1)]
    assert survey.epochs == runs


def _epoch(headers: list[Row], number: int) -> int:
    return headers[number].leader_epoch


@given(seed=SEEDS, expected=st.sampled_from([-1, BASE, BASE - 3]))
def test_offsets_in_order_are_those_that_the_rules_leave_alone(seed: int, expected: int) -> None:
    """I-11: what a survey calls in order has the gaps that are found row by row, and no fault."""
    rng = random.Random(seed)
    table = a_table(rng, rng.choice([0.0, 0.02, 0.1]))
    rows, faults = table.headers(), 0
    first, last = rows[0].base_offset, rows[-1].last_offset
    segment_base = rng.choice([BASE, first, first + 1, last - 2**31 + 1, last - 2**31])
    next_base = rng.choice([-1, last, last + 1, 2**40])
    survey = both("survey_batches", table.columns, len(rows), expected, segment_base, next_base)
    order = OffsetOrder(segment_base, next_base, expected)
    gaps = []
    for number, row in enumerate(rows):
        before = order.gap_count
        follows = rows[number + 1] if number + 1 < len(rows) else None
        hidden = follows is None or follows.record_count < 0
        placed = order.place(row, -1 if hidden else follows.base_offset)  # type: ignore[union-attr]
        faults += len(placed.problems) + (placed.base_offset != row.base_offset)
        if order.gap_count > before:
            gaps.append(number)
    assert (survey.gaps is not None) == (not faults)
    if survey.gaps is not None:
        assert survey.gaps == gaps


@BOTH
def test_timestamps_of_a_survey(kernels: Any) -> None:
    """The smallest is that of a record as far as the header knows: the base timestamp of a batch
    with a delete horizon, or of one stamped by its broker, is another thing (F-56, F-95)."""
    table = a_table(random.Random(1), 0.0)
    table.rows = table.rows[:1] * 3
    template = table.rows[0]
    for attributes, base, largest, smallest in [
        (0, 5, 9, 5),
        (8, 5, 9, 9),
        (0x40, 5, 9, 9),
        (0, -1, 9, -1),
        (0, -1, -1, -1),
        (0, 7, 6, 6),
    ]:
        row = list(template)
        row[4], row[5], row[10] = base, largest, attributes
        survey = kernels.survey_batches(Table([row]).columns, 1, -1, 0, -1)
        assert (survey.min_timestamp, survey.max_timestamp) == (smallest, largest)


@BOTH
def test_the_first_offset_of_a_legacy_wrapper_is_hidden(kernels: Any) -> None:
    """F-103: offsets before it are no gap, and before a single legacy message they are."""
    wrapper = [0, 60, BASE + 5, BASE + 5, 7, 7, -1, -1, -1, -1, 1, -1, 1, 0, 1]
    message = [*wrapper[:10], 0, 1, 1, 0, 1]
    for row, gaps in ((wrapper, []), (message, [0])):
        assert kernels.survey_batches(Table([row]).columns, 1, BASE, BASE, -1).gaps == gaps


@BOTH
def test_a_table_has_rows_and_room_for_them(kernels: Any) -> None:
    columns = Table().columns
    for rows in (0, -1, CAPACITY + 1):
        with pytest.raises(ValueError, match="rows"):
            kernels.survey_batches(columns, rows, 0, 0, -1)
    with pytest.raises(ValueError, match="rows"):
        kernels.irregular_batches(b"", columns, CAPACITY + 1)


# ---- indexes ----


def offset_index(rng: random.Random, count: int) -> bytes:
    offset, position, entries = 0, rng.choice([0, 50]), []
    for _ in range(count):
        offset += rng.choice([1, 2, 9]) if rng.random() < 0.97 else rng.choice([0, -1])
        position += rng.choice([1, 300]) if rng.random() < 0.97 else rng.choice([0, -90])
        entries.append(struct.pack(">ii", offset, position))
    return b"".join(entries) + bytes(rng.choice([0, 0, 3]))


def time_index(rng: random.Random, count: int) -> bytes:
    offset, timestamp, entries = 0, -1, []
    for _ in range(count):
        offset += rng.choice([0, 1, 9]) if rng.random() < 0.97 else -1
        timestamp += rng.choice([1, 300]) if rng.random() < 0.97 else rng.choice([0, -90])
        entries.append(struct.pack(">qi", timestamp, offset))
    return b"".join(entries) + bytes(rng.choice([0, 0, 3]))


@given(seed=SEEDS)
def test_how_far_entries_ascend(seed: int) -> None:
    rng = random.Random(seed)
    data = offset_index(rng, rng.randint(0, 30))
    limit = rng.choice([400, 2**31])
    found = both("ascending_offset_entries", data, limit)
    entries = list(struct.iter_unpack(">ii", data[: len(data) // 8 * 8]))
    good = [
        0 <= position < limit
        and (not n or (entries[n - 1][0] < offset, entries[n - 1][1] < position) == (True, True))
        for n, (offset, position) in enumerate(entries)
    ]
    assert found == (good.index(False) if False in good else len(entries))
    both("ascending_time_entries", time_index(rng, rng.randint(0, 30)))


@BOTH
def test_time_entries_may_share_an_offset_and_offset_entries_nothing(kernels: Any) -> None:
    """F-118, F-114."""
    times = [(5, 1), (6, 1), (6, 2)]
    assert kernels.ascending_time_entries(b"".join(struct.pack(">qi", *e) for e in times)) == 2
    offsets = [(1, 5), (2, 6), (2, 7)]
    packed = b"".join(struct.pack(">ii", *e) for e in offsets)
    assert kernels.ascending_offset_entries(packed, 100) == 2
    assert kernels.ascending_offset_entries(packed, 6) == 1
    assert kernels.ascending_offset_entries(struct.pack(">ii", 1, -1), 100) == 0


@given(seed=SEEDS)
def test_offset_entries_lead_to_batches(seed: int) -> None:
    """F-113: each row for itself, or one whose entry names the end of a batch further on."""
    rng = random.Random(seed)
    table, start = a_table(rng, 0.0), rng.choice([0, 5000])
    entries, last = [], 0
    for number, row in enumerate(table.rows):
        if number < last or rng.random() < 0.5:
            continue
        last = min(len(table.rows) - 1, number + rng.choice([0, 0, 2]))
        offset, position = table.rows[last][3] - BASE, row[0] + start
        wrong = rng.random() < 0.1
        if wrong:
            offset, position = rng.choice([(offset, position + 1), (offset + 50, position)])
        entries.append(struct.pack(">ii", offset, position))
        if wrong:
            break  # what follows would not ascend
    data = b"".join(entries)
    first = rng.randint(0, len(entries))
    stop, covered, several = both(
        "match_offset_entries",
        data,
        first,
        len(entries),
        table.columns,
        len(table.rows),
        start,
        BASE,
        rng.choice([-1, 10_000, 10**6]),
        rng.choice([-1, start, start + 200]),
    )
    assert all(first <= number < stop for number, _ in several)
    assert stop == first or covered >= struct.unpack_from(">ii", data, 8 * (stop - 1))[1]


@given(seed=SEEDS, trusted=st.booleans())
def test_time_entries_name_the_largest_timestamp_so_far(seed: int, trusted: bool) -> None:
    """F-117."""
    rng = random.Random(seed)
    table, entries, largest = a_table(rng, 0.0), [], 0
    for row in table.rows:
        row[5] += rng.choice([0, -500])
        largest = max(largest, row[5])
        if rng.random() < (0.5 if largest == row[5] else 0.1):
            wrong = rng.choice([0, 0, 0, 0, 1])
            entries.append(struct.pack(">qi", largest + wrong, row[3] - BASE - rng.randint(0, 1)))
    data = b"".join(entries)
    known = rng.choice([-1, 10_000, largest + 1])
    both(
        "match_time_entries",
        data,
        0,
        len(entries),
        table.columns,
        len(table.rows),
        BASE,
        trusted,
        rng.randint(0, 3),
        known,
    )


@BOTH
def test_entries_of_several_batches(kernels: Any) -> None:
    """F-132: with the largest timestamp up to the offset that they name."""
    rows = [
        [n * 100, 100, 10 * n, 10 * n + 9, 5, stamp, *[0] * 9]
        for n, stamp in enumerate((7, 5, 9, 8))
    ]
    columns = Table(rows).columns
    entries = [(19, 1000), (29, 1200), (39, 1300)]
    data = b"".join(struct.pack(">ii", *entry) for entry in entries)
    found = kernels.match_offset_entries(data, 0, 3, columns, 4, 1000, 0, -1, -1)
    assert found == (3, 1300, [(0, 7)])
    found = kernels.match_offset_entries(data, 0, 1, columns, 4, 1000, 0, 8, -1)
    assert found == (1, 1100, [(0, 8)])


# ---- producers ----


def a_history(rng: random.Random, oddity: float) -> Table:
    """Data batches and markers of a few producers."""
    table, offset, due = Table(), 0, dict[int, tuple[int, int]]()
    for number in range(rng.randint(1, CAPACITY)):
        producer = rng.choice([-1, 1, 1, 2, 2**40])
        epoch, sequence = due.get(producer, (0, rng.choice([0, 2**31 - 3])))
        count, control = rng.randint(1, 3), rng.random() < 0.2
        if rng.random() < 0.2:
            epoch, sequence = epoch + rng.choice([1, 1, -1]), 0
        if rng.random() < oddity:
            sequence = rng.choice([sequence + 1, 0, -1, 2**31 - 1])
        if rng.random() < oddity:
            count = 0
        row = [number * 100, 100, offset, offset + max(count, 1) - 1, 0, 0, 0, producer, epoch]
        row += [-1 if control else sequence, 0x20 if control else 0, count]
        table.rows.append([*row, 1 if rng.random() < oddity else 2, 0, 1])
        if not control:
            sequence = (sequence + max(count, 1)) & (2**31 - 1)
        due[producer] = epoch, sequence
        offset += max(count, 1)
    return table


@given(seed=SEEDS, most=st.sampled_from([1, 2, 1000]))
def test_sequences_are_watched_over_tables(seed: int, most: int) -> None:
    rng = random.Random(seed)
    watches = [module.SequenceWatch(most) for module in (native, reference)]
    for _ in range(3):
        table = a_history(rng, rng.choice([0.0, 0.2]))
        told = [watch.take(table.columns, len(table.rows)) for watch in watches]
        assert told[0] == told[1]
        assert watches[0].full == watches[1].full


@BOTH
def test_many_producers_are_watched(kernels: Any) -> None:
    watch, most = kernels.SequenceWatch(3000), 3010

    def take(first: int, sequence: int) -> tuple[list[int], list[tuple[int, int, int]]]:
        rows = [
            [n * 100, 100, n, n, 0, 0, 0, n << 20, 0, sequence, 0, 1, 2, 0, 1]
            for n in range(first, first + 10)
        ]
        found = watch.take(Table(rows).columns, 10)
        return found[0], found[1]

    for first in range(0, most, 10):
        assert take(first, 0) == (list(range(10 if first < 3000 else 0)), [])
        assert watch.full == (first >= 2990)
    for first in range(0, most, 10):
        assert take(first, 2)[1] == [(n, 1, first + n) for n in range(10 if first < 3000 else 0)]


@BOTH
def test_what_is_due(kernels: Any) -> None:
    """F-186 to F-190, of one producer: (epoch, sequence, records), or an epoch for a marker."""

    def told(*batches: tuple[int, int, int] | int) -> tuple[list[int], list[tuple[int, int]]]:
        rows, offset = [], 0
        for number, batch in enumerate(batches):
            marker = isinstance(batch, int)
            epoch, sequence, count = (batch, -1, 1) if isinstance(batch, int) else batch
            row = [number * 100, 100, offset, offset + count - 1, 0, 0, 0, 7, epoch, sequence]
            rows.append([*row, 0x20 if marker else 0, count, 2, 0, 1])
            offset += count
        firsts, jumps = kernels.SequenceWatch(9).take(Table(rows).columns, len(rows))
        return firsts, [(row, due) for row, due, _ in jumps]

    assert told((0, 5, 3), (0, 8, 1), (0, 9, 1)) == ([0], [])
    assert told((0, 5, 3), (0, 5, 3)) == ([0], [(1, 8)])
    assert told((0, 5, 3), (0, 9, 1), (0, 10, 1)) == ([0], [(1, 8)])
    assert told((0, 2**31 - 2, 2), (0, 0, 1)) == ([0], [])
    assert told((0, 5, 3), (1, 0, 1), (1, 1, 1)) == ([0], [])
    assert told((0, 5, 3), (1, 1, 1)) == ([0], [(1, 0)])
    assert told((0, 5, 3), 1, (1, 0, 1)) == ([0], [])
    assert told((0, 5, 3), 0, (0, 8, 1)) == ([0], [])
    assert told(0, (0, 8, 1), (0, 9, 1)) == ([1], [])
    assert told(0, (1, 8, 1)) == ([], [(1, 0)])
    assert told(0, 1, (1, 8, 1)) == ([], [(2, 0)])


@BOTH
def test_where_matching_stops(kernels: Any) -> None:
    """At the first entry that is wrong, or above the table."""
    rows = [[n * 100, 100, 10 * n, 10 * n + 9, 5, 5 + n, *[0] * 9] for n in range(3)]
    columns = Table(rows).columns

    def offsets(*entries: tuple[int, int], covered: int = -1, start: int = 1000) -> int:
        data = b"".join(struct.pack(">ii", *entry) for entry in entries)
        found = kernels.match_offset_entries(
            data, 0, len(entries), columns, 3, start, 0, -1, covered
        )
        return int(found[0])

    assert offsets((9, 1000), (29, 1100)) == 2
    assert offsets((19, 1000), (29, 1100)) == 1  # the first one covers that batch
    assert offsets((9, 1000), covered=1000) == 0
    assert offsets((9, 0), start=0) == 0  # no append to an empty segment makes an entry
    assert offsets((9, 1000), (19, 1150)) == 1
    assert offsets((9, 1000), (18, 1100)) == 1
    assert offsets((9, 1000), (39, 1200)) == 1
    assert offsets((9, 900)) == 0
    assert offsets((9, 1300)) == 0

    def times(*entries: tuple[int, int], trusted: bool = True) -> tuple[int, int, int]:
        data = b"".join(struct.pack(">qi", *entry) for entry in entries)
        found = kernels.match_time_entries(data, 0, len(entries), columns, 3, 0, trusted, 0, -1)
        return tuple(found)

    assert times((5, 9), (7, 29)) == (2, 3, 7)
    assert times((5, 9), (7, 25)) == (1, 1, 5)  # inside its batch
    assert times((5, 9), (6, 20)) == (1, 1, 5)
    assert times((5, 9), (6, 20), trusted=False) == (2, 3, 7)
    assert times((5, 9), (7, 30)) == (1, 1, 5)
    for bad in ((-1, 0), (1, 0), (0, 2)):
        with pytest.raises(ValueError, match="entries"):
            kernels.match_offset_entries(bytes(8), *bad, columns, 3, 0, 0, -1, -1)
        with pytest.raises(ValueError, match="entries"):
            kernels.match_time_entries(bytes(12), *bad, columns, 3, 0, True, 0, -1)


# ---- records ----


def batches(rng: random.Random) -> bytes:
    """Plain batches, and some of other kinds; then bytes are changed, checksums not."""
    parts, offset = [], 0
    for _ in range(rng.randint(1, 6)):
        records = [
            Record(
                0,
                rng.choice([5, 6, 2000, -1]),
                rng.choice([None, b"key"]),
                b"v" * rng.choice([0, 9, 200]),
                (),
            )
            for _ in range(rng.randint(1, 4))
        ]
        batch = bytearray(encode_batch(records))
        batch[:8] = offset.to_bytes(8, "big")
        batch[22] |= rng.choice([0] * 6 + [8, 1, 0x20])
        for _ in range(rng.choice([0, 0, 1])):
            at = rng.choice([rng.randrange(61, len(batch)), rng.choice([26, 42, 60])])
            batch[at] ^= 1 << rng.randrange(8)
        parts.append(bytes(batch))
        offset += len(records)
    return b"".join(parts)


def scanned(data: bytes) -> tuple[array[int], int]:
    columns = array("q", bytes(8 * COLUMNS * CAPACITY))
    rows, _, _ = _reference.scan_batches(data, 0, columns, False)
    return columns, rows


@given(seed=SEEDS)
def test_unfit_batches_are_those_with_something_to_tell(seed: int) -> None:
    """F-55, F-57, F-73, F-75: of a plain batch the rules have a fault, or it holds timestamp −1."""
    data = batches(random.Random(seed))
    columns, rows = scanned(data)
    unfit = both("irregular_batches", data, columns, rows)
    for number in range(rows):
        row = Row(*columns[number : len(Row._fields) * CAPACITY : CAPACITY])
        plain = not row.attributes & 0x27
        section = data[row.position + 61 : row.end]
        try:
            log_append = row.max_timestamp if row.attributes & 8 else None
            records = _reference.decode_records(
                section, row.base_offset, row.base_timestamp, row.record_count, log_append, -(2**63)
            )
        except v.CorruptBatchError:
            fits = False
        else:
            times = [record.timestamp for record in records]
            problems = check_records(row, [record.offset for record in records], times)
            fits = not any(problems) and min(times, default=0) >= 0
        assert both("fits_in_section", section, columns, number) == fits
        assert (number in unfit) == (not (plain and fits))


@BOTH
def test_a_batch_outside_the_bytes_is_unfit(kernels: Any) -> None:
    data = bytes(encode_batch([(b"k", b"v", 5)]))
    columns, rows = scanned(data)
    assert kernels.irregular_batches(data, columns, rows) == []
    assert kernels.irregular_batches(data[:-1], columns, rows) == [0]
    assert kernels.irregular_batches(b"", columns, rows) == [0]
    columns[0] = -1
    assert kernels.irregular_batches(data, columns, rows) == [0]


# ---- fingerprints ----


@given(seed=SEEDS, heads=st.booleans())
def test_a_fold_is_its_formula(seed: int, heads: bool) -> None:
    rng = random.Random(seed)
    data = batches(rng)
    columns, rows = scanned(data)
    offsets = array("q", [rng.randrange(-(2**63), 2**63) for _ in range(rows)])
    first = rng.randint(0, rows)
    end = rng.randint(first, rows)
    factor, offset_factor = rng.getrandbits(128), rng.getrandbits(128)
    found = both(
        "fold_batches",
        data,
        columns,
        offsets,
        first,
        end,
        factor,
        offset_factor,
        heads,
    )
    value = 0
    for number in range(first, end):
        position, size = columns[number], columns[CAPACITY + number]
        start, stop = (17, 61) if heads else (21, size)
        content = mmh3.mmh3_x64_128_uintdigest(data[position + start : position + stop])
        value = (value * factor + content + offsets[number] * offset_factor) % 2**128
    assert found == (value, pow(factor, end - first, 2**128))


@BOTH
def test_a_fold_refuses_what_is_not_there(kernels: Any) -> None:
    data = bytes(encode_batch([(b"k", b"v", 5)]))
    columns, _ = scanned(data)
    offsets = array("q", [0])

    def fold(data: bytes, end: int = 1) -> Any:
        return kernels.fold_batches(data, columns, offsets, 0, end, 3, 5)

    with pytest.raises(ValueError, match="outside"):
        fold(data[:-1])
    with pytest.raises(ValueError, match="batches"):
        fold(data, 2)
