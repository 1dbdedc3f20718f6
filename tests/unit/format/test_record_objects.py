"""Records that the native decoder makes: it writes dropped ones anew, and nobody may notice."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import sys
import tracemalloc
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from logstore.common.types import Record
from logstore.format.batch import encode_batch
from logstore.format.reader import read_records
from logstore.kernels import decode_records, encode_records
from tests.support.waiting import eager_switching, race

T0 = 1_700_000_000_000
# Around the sizes at which a number takes another digit, or is one that the interpreter shares.
BASES = [0, 250, 65_530, 2**30 - 20, 2**30 + 5, 2**60 - 20, 2**61]


@pytest.fixture
def nothing_older() -> Iterator[None]:
    """The collector looks at no object that was there before: of a long run there are millions."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def section(rows: list[Any]) -> bytes:
    return bytes(encode_records(rows, T0).buffer[61:])


def any_rows(chance: random.Random, count: int) -> list[Any]:
    """Mostly of few sizes, so that dropped fields fit again; some nulls, long values, headers."""
    return [
        (
            chance.choice([None, b"", b"a", chance.randbytes(2), chance.randbytes(8)]),
            chance.choice([None, chance.randbytes(100), chance.randbytes(chance.choice([2, 600]))]),
            chance.choice([T0, T0, 0, 7, 2**30, 2**62]),
            chance.choice([(), (), (("h", b"x"),)]),
        )
        for _ in range(count)
    ]


def decode(rows: list[Any], base_offset: int) -> list[Record]:
    first: int = rows[0][2]
    return decode_records(section(rows), base_offset, first, len(rows))


def plain(base_offset: int, rows: list[Any]) -> list[tuple[Any, ...]]:
    return [(base_offset + i, row[2], row[0], row[1], row[3]) for i, row in enumerate(rows)]


def test_what_is_held_of_dropped_records_never_changes() -> None:
    chance = random.Random(3)
    held: list[tuple[Any, Any]] = []
    for _ in range(60):
        rows, base_offset = any_rows(chance, 300), chance.choice(BASES)
        records = decode(rows, base_offset)
        expected = plain(base_offset, rows)
        assert records == expected
        for i in chance.sample(range(300), 60):
            hash(records[i]), hash(records[i].value)
            field = chance.randrange(6)
            held.append(
                (records[i], expected[i]) if field == 5 else (records[i][field], expected[i][field])
            )
        del records
        assert all(got == want for got, want in held)
        held = held[-2000:]


def test_hashes_are_those_of_the_new_content() -> None:
    for number in range(5):
        (record,) = decode([(b"key-%d" % number, b"value-%d" % number, T0, ())], 70_000 + number)
        assert hash(record.value) == hash(b"value-%d" % number)
        assert {b"key-%d" % number: 1}[record.key or b""] == 1
        assert hash(record) == hash((70_000 + number, T0, record.key, record.value, ()))
        del record


def test_a_record_is_a_named_tuple_like_any_other() -> None:
    rows = [(b"key", b"value", T0, ()), (None, b"", 5, (("h", None),))]
    records = decode(rows, 10**6)
    assert all(type(record) is Record for record in records)
    assert pickle.loads(pickle.dumps(records)) == copy.deepcopy(records) == records
    assert records[0]._replace(offset=1) == (1, T0, b"key", b"value", ())
    offset, timestamp, key, value, headers = records[1]
    assert (offset, timestamp, key, value, headers) == (10**6 + 1, 5, None, b"", (("h", None),))
    assert repr(records[0]).startswith("Record(offset=1000000, timestamp=")


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_older")
def test_records_of_others_are_dropped_as_tuples_are() -> None:
    class Kept(Record):
        pass

    class Slim(Record):
        __slots__ = ()

    for kind in (Record, Kept, Slim):
        nested: Any = None
        for _ in range(100_000):  # deeper than the C stack
            nested = kind(1, 2, nested, None)
        del nested
        cycle: list[Any] = []
        cycle.append(kind(1, 2, cycle, None))  # type: ignore[arg-type]
        del cycle
        assert gc.collect() >= 2
    odd: tuple[Any, ...] = tuple.__new__(Record, (b"too", b"short"))
    assert len(odd) == 2
    counts = [sys.getrefcount(kind) for kind in (Kept, Slim)]
    for _ in range(100):
        Kept(1, 2, b"k", b"v"), Slim(1, 2, b"k", b"v")
    assert [sys.getrefcount(kind) for kind in (Kept, Slim)] == counts


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_older")
def test_what_is_kept_is_bounded_and_nothing_leaks() -> None:
    rows = [(b"%08d" % i, b"%0250d" % i, T0, ()) for i in range(12_000)]
    payload = section(rows)
    decode_records(payload, 0, T0, len(rows))
    tracemalloc.start()
    try:
        for _ in range(3):
            decode_records(payload, 10**6, T0, len(rows))
        gc.collect()
        first, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            decode_records(payload, 10**6, T0, len(rows))
        gc.collect()
        last, _ = tracemalloc.get_traced_memory()
        large = section([(b"k", bytes(3000), T0, ())] * 3000)
        small = section([(b"k", bytes(100), T0, ())] * 3000)
        for _ in range(3):  # records without and with large fields, alive together
            mixed = decode_records(small, 10**6, T0, 3000) + decode_records(large, 0, T0, 3000)
            del mixed[1::2], mixed
        del large, small
        gc.collect()
        of_large, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert first < 6 << 20
    assert abs(last - first) < 100_000
    assert of_large < first + (1 << 20)


def test_threads_do_not_get_each_others_records() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(20):
            rows = any_rows(chance, 200)
            if decode(rows, seed << 40) != plain(seed << 40, rows):
                wrong.append(seed)

    with eager_switching():
        race(*(partial(work, seed) for seed in range(1, 5)))
    assert not wrong


@pytest.mark.parametrize("count", [1, 5000])
def test_reading_gives_lists_of_their_own(count: int) -> None:
    batch = encode_batch([(b"%06d" % i, b"v" * 50, T0 + i) for i in range(count)])
    first = read_records(batch)
    second = read_records(batch)
    assert first == second
    assert not any(a is b for a, b in zip(first, second, strict=True))
