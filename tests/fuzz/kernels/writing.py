"""Fuzzers of what writes: the encoding half of ``_codec``, and ``_append``."""

from __future__ import annotations

import errno
import os
import random
import tempfile
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from logstore.common.errors import InvalidRecordError, LogClosedError
from logstore.format.batch import encode_batch
from logstore.kernels import _append, _codec
from tests.fuzz.kernels.compare import attributes, outcome, same
from tests.fuzz.kernels.inputs import (
    LONG,
    buffer_of,
    damaged,
    exact,
    index,
    log,
    number,
    originals,
    with_field,
)
from tests.reference import appends as _append_reference
from tests.reference import partitions as _partition_reference
from tests.reference import records as reference

EPOCH = 5
STATE = (
    "base_offset",
    "size",
    "next_offset",
    "max_timestamp",
    "offset_of_max_timestamp",
    "rolling_timestamp",
    "bytes_since_index_entry",
    "offset_entries",
    "time_entries",
    "last_time_entry",
    "attached",
)
INFO = (
    "first_offset",
    "last_offset",
    "max_timestamp",
    "log_append_time",
    "log_start_offset",
    "record_count",
    "size",
    "duplicate",
)
SNAPSHOT = (
    "sealed",
    "active",
    "size",
    "offset_entries",
    "time_entries",
    "max_timestamp",
    "offset_of_max_timestamp",
    "log_start_offset",
    "log_end_offset",
    "high_watermark",
    "last_stable_offset",
    "version",
)
ENCODED = ("buffer", "base_timestamp", "max_timestamp", "offset_of_max", "count")


# ---- records ----


class LyingBytes(bytearray):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 1 << 20


def value_of(rng: random.Random) -> Any:
    data = rng.randbytes(rng.choice((0, 1, 3, 15, 16, 17, 33, 64, 65, 129, 500)))
    kind = rng.random()
    if kind < 0.15:
        return None
    if kind < 0.3:
        return buffer_of(rng, data)
    return rng.choice((3, "text", object, [b"x"])) if kind > 0.99 else data


def time_of(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.05:
        return rng.choice((number(rng), 2**64, 1.5, "now", datetime(2000, 1, 1)))
    return rng.choice((None, -1, 0, 10**12, LONG, datetime(2024, 1, 1, tzinfo=UTC)))


def headers_of(rng: random.Random) -> Any:
    if rng.random() < 0.02:
        return rng.choice((7, "text", [3], [("a",)], [(b"a", b"")], [("\ud800", b"")]))
    pairs = [
        (rng.choice(("", "name", "é" * 70)), value_of(rng)) for _ in range(rng.choice((0, 1, 3)))
    ]
    return rng.choice((None, (), pairs, tuple(pairs)))


def row_of(rng: random.Random) -> Any:
    row = (value_of(rng), value_of(rng), time_of(rng), headers_of(rng))
    return row[: rng.choice((2, 3, 4, 4))] if rng.random() < 0.99 else rng.choice((row[:1], [1], 5))


def rows(rng: random.Random) -> None:
    made = [row_of(rng) for _ in range(rng.choice((0, 1, 5, 230)))]
    default, keys = time_of(rng), rng.random() < 0.1
    same(
        lambda: attributes(_codec.encode_records(made, default, keys_required=keys), ENCODED),
        lambda: attributes(reference.encode_records(made, default, keys_required=keys), ENCODED),
    )
    encoded = _codec.encode_records([(LyingBytes(b"key"), memoryview(b"abc")[::2])])
    assert encoded.buffer[-10:].endswith(b"key\x04ac\0")


def lists(rng: random.Random) -> None:
    count = rng.choice((0, 1, 4, 210))
    other = count if rng.random() < 0.95 else count + 1
    times: Any = rng.choice(
        (
            None,
            time_of(rng),
            [time_of(rng) for _ in range(other)],
            array("q", [rng.choice((0, -1, LONG, 5)) for _ in range(other)]) * 1,
            array("q", [number(rng)] * count) * 1,
            exact(bytes(8 * other + 1))[1:],
            bytes(rng.randrange(20)),
            array("d", [0.5] * count),
        )
    )
    arguments = (
        rng.choice((None, [value_of(rng) for _ in range(count)])),
        [value_of(rng) for _ in range(count)],
        times,
        rng.choice((None, [headers_of(rng) for _ in range(other)])),
        time_of(rng),
    )
    same(
        lambda: attributes(_codec.encode_lists(*arguments), ENCODED),
        lambda: attributes(reference.encode_lists(*arguments), ENCODED),
    )


def strings(rng: random.Random, count: int, narrow: bool) -> tuple[Any, Any, Any]:
    """Buffers of an Arrow column of ``count`` values; some of them too short, or with a lie."""
    values = [rng.randbytes(rng.choice((0, 1, 2, 3, 4, 5, 30))) for _ in range(count)]
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        ends[rng.randrange(count + 1)] = number(rng, 32 if narrow else 64)
    kind = array("i" if narrow else "q", ends)
    data = b"".join(values)
    if rng.random() < 0.1:
        del kind[rng.randint(0, count) :]
    if rng.random() < 0.1:
        data = data[: rng.randint(0, len(data))]
    bits = rng.randbytes((count + 7) // 8 - (rng.random() < 0.1 and count > 0))
    return (
        rng.choice((kind * 1, exact(kind.tobytes()), buffer_of(rng, kind.tobytes()))),
        None if not data and rng.random() < 0.5 else buffer_of(rng, data),
        rng.choice((None, buffer_of(rng, bits))),
    )


def arrow(rng: random.Random) -> None:
    count = rng.choice((0, 1, 3, 4, 9, 33))
    narrow = rng.random() < 0.6
    start = rng.choice((0, 0, index(rng, count)))
    stop = rng.choice((count, count, index(rng, count)))
    nothing = (None, None, None)
    keys = strings(rng, count, narrow) if rng.random() < 0.8 else nothing
    values = strings(rng, count, narrow) if rng.random() < 0.9 else nothing
    if keys is nothing and values is nothing and stop - start > 100_000:
        return  # as many rows as the caller says: of nulls there is no buffer that could be short
    sizes = {"key_offset_size": 4 if narrow else 8, "value_offset_size": 4 if narrow else 8}
    if rng.random() < 0.02:
        sizes["key_offset_size"] = rng.choice((0, 3, -8, 16))
    headers = None
    if rng.random() < 0.3:
        names = rng.choice((0, 2, 5))
        places = sorted(rng.choices(range(names + 1), k=count + 1))
        if rng.random() < 0.2:
            places[rng.randrange(count + 1)] = number(rng, 32)
        lists_validity = rng.choice((None, rng.randbytes((count + 7) // 8)))
        said = names if rng.random() < 0.95 else number(rng, 32)
        headers = (array("i", places) * 1, lists_validity, said)
        headers += (*strings(rng, names, True), *strings(rng, names, True))
    times: Any = rng.choice((None, time_of(rng), exact(bytes(8 * count)), exact(bytes(8))))
    arguments = (start, stop, *keys, *values, times, rng.choice((-1, 5, number(rng))))
    native = outcome(
        lambda: attributes(_codec.encode_columns(*arguments, headers=headers, **sizes), ENCODED)
    )
    sane = headers is None or 0 <= said <= names
    if sane and max(abs(start), abs(stop)) < 100_000:
        plain = outcome(
            lambda: attributes(
                reference.encode_columns(*arguments, headers=headers, **sizes), ENCODED
            )
        )
        # Of two faults each tells the one that it meets first; and a name that is no UTF-8 is
        # refused by the twin alone: Arrow's strings are UTF-8.
        refused = "returned" not in (native[0], plain[0])
        assert native == plain or refused or headers is not None, f"{native}\n{plain}"


def seals(rng: random.Random) -> None:
    size = rng.choice((0, 60, 61, 62, 200, 20_000))
    fields = {
        "base_offset": number(rng),
        "leader_epoch": number(rng, 32),
        "attributes": number(rng, 16),
        "last_offset_delta": number(rng, 32),
        "base_timestamp": number(rng),
        "max_timestamp": number(rng),
        "producer_id": number(rng),
        "producer_epoch": number(rng, 16),
        "base_sequence": number(rng, 32),
        "record_count": number(rng, 32),
    }
    if rng.random() < 0.1:
        fields[rng.choice(sorted(fields))] = 2**63
    content = rng.randbytes(size)
    native, plain = exact(content), bytearray(content)
    same(lambda: _codec.seal_batch(native, **fields), lambda: reference.seal_batch(plain, **fields))
    assert native == plain
    assert outcome(lambda: _codec.seal_batch(bytes(100), **fields))[0] in (
        "BufferError",
        "OverflowError",
    )


def partitions(rng: random.Random) -> None:
    count = rng.choice((0, 1, 3, 4, 9, 33))
    column = strings(rng, count, True)
    stop = rng.choice((count, count, index(rng, count)))
    among = rng.choice((1, 2, 7, 2**31 - 1, number(rng, 32)))
    kind = rng.choice(("murmur2", "murmur3"))
    same(
        lambda: _codec.partition_column(kind, among, stop, *column),
        lambda: _partition_reference.partition_column(kind, among, stop, *column),
    )
    outcome(lambda: _codec.partition_column("other", 1, 0, *column))


# ---- appends ----


class File:
    """A segment's file for both twins; refuses to write beyond ``room``."""

    path = "a segment"

    def __init__(self, descriptor: int = -1, room: int = LONG) -> None:
        self.descriptor, self.room, self.content = descriptor, room, bytearray()

    def fileno(self) -> int:
        return self.descriptor

    def write_at(self, position: int, data: Any) -> None:
        if position + len(data) > self.room:
            raise OSError(errno.ENOSPC, "no room")
        if len(self.content) < position:
            self.content += bytes(position - len(self.content))
        self.content[position : position + len(data)] = data


class Map:
    """An index, exactly as large as it says."""

    def __init__(self, size: int) -> None:
        self.buffer, self.reserved = exact(bytes(size)), 0

    def reserve(self, end: int) -> None:
        self.reserved = end


def batches(rng: random.Random) -> bytes:
    """What is appended: plain batches, or whatever a log may hold."""
    if rng.random() < 0.3:
        return log(rng)
    made = []
    for _ in range(rng.choice((1, 1, 2, 6, 40))):
        batch = originals()[rng.choice((0, 5, 6, 7))]
        if rng.random() < 0.1:
            batch = rng.choice(originals())
        made.append(with_field(batch, 0, 0) if len(batch) > 61 else batch)
        if rng.random() < 0.05:
            made[-1] = damaged(rng, made[-1])
    return b"".join(made)


def appends(rng: random.Random) -> None:
    """Appends of all kinds to one segment and its twin: states, files and indexes stay equal."""
    base = rng.choice((0, 0, 0, 7, 2**31, LONG - 20, LONG))
    sizes = 8 * rng.choice((0, 1, 3, 50)) + rng.choice((0, 3)), 12 * rng.choice((0, 1, 2, 50))
    common = {
        "index_interval_bytes": rng.choice((0, 150, 4096, LONG, -1)),
        "segment_bytes": rng.choice((1 << 30, 2000, 0)),
        "max_segment_ms": rng.choice((LONG, 0, 10**9)),
        "rolling_timestamp": rng.choice((-1, 0, 10**12)),
    }
    with twin_segments(rng, base, sizes, common) as pair:
        for _ in range(rng.choice((1, 4))):
            append_once(rng, *pair)
            assert attributes(pair[0], STATE) == attributes(pair[1], STATE)


def log_appends(rng: random.Random) -> None:
    """Appends to a log and its twin, most of which are plain: one call does the same as many."""
    base = rng.choice((0, 0, 0, 7, 2**31, LONG - 20))
    sizes = 8 * rng.choice((3, 50, 50)), 12 * rng.choice((2, 50, 50))
    common = {
        "index_interval_bytes": rng.choice((0, 150, 4096, LONG)),
        "segment_bytes": rng.choice((1 << 30, 1 << 30, 20_000)),
        "max_segment_ms": rng.choice((LONG, LONG, 1)),
        "rolling_timestamp": rng.choice((0, 0, 0, -1)),
    }
    with twin_segments(rng, base, sizes, common) as pair:
        logs = twin_logs(rng, *pair)
        for _ in range(6):
            append_to_twins(rng, logs)
            assert attributes(pair[0], STATE) == attributes(pair[1], STATE)


@contextmanager
def twin_segments(
    rng: random.Random, base: int, sizes: tuple[int, int], common: dict[str, int]
) -> Iterator[tuple[Any, Any]]:
    """A segment of either kind with indexes of these sizes. At the end their files are equal."""
    native: Any = _append.SegmentState(base)
    plain: Any = _append_reference.SegmentState(base)
    maps = [Map(size) for size in sizes], [Map(size) for size in sizes]
    with tempfile.TemporaryFile(buffering=0) as disk:
        through = rng.random() < 0.3
        room = rng.choice((LONG, LONG, 900)) if through else LONG
        files = File(-1 if through else disk.fileno(), room), File(room=room)
        for state, (offsets, times), file in zip((native, plain), maps, files, strict=True):
            for name, value in common.items():
                setattr(state, name, value)
            state.attach(file, offsets, times)
        yield native, plain
        written = files[0].content if through else os.pread(disk.fileno(), native.size, 0)
        assert bytes(written[: native.size]) == bytes(files[1].content[: plain.size])
        for mine, its, width in zip(*maps, (8, 12), strict=True):
            end = width * (native.offset_entries if width == 8 else native.time_entries)
            assert mine.buffer[:end] == its.buffer[:end]
        native.detach()
        assert outcome(lambda: native.append(b"", 0, 0, 0))[0] == "ValueError"


def append_once(rng: random.Random, native: Any, plain: Any) -> None:
    data = batches(rng)
    buffer, epoch = buffer_of(rng, data), rng.choice((0, 5, -1, 2**31 - 1))
    pair, kind = (native, plain), rng.randrange(6)
    if kind < 4:
        size = rng.choice((len(data), len(data), index(rng, len(data))))
        first = rng.choice((native.next_offset, -1, number(rng)))
        same(*((lambda s=s: s.append(buffer, size, first, epoch)) for s in pair))
    elif kind == 4:
        same(*((lambda s=s: s.add_time_entry()) for s in pair))
        same(*((lambda s=s: s.reserve()) for s in pair))
    else:
        marks = number(rng), number(rng), rng.choice((-1, 0, number(rng))), number(rng)
        same(*((lambda s=s: attributes(s.snapshot((), 1, *marks), SNAPSHOT)) for s in pair))
        roll = rng.randrange(2**31), number(rng), rng.randrange(LONG), rng.randrange(LONG)
        same(*((lambda s=s: s.must_roll(*roll)) for s in pair))
        outcome(lambda: native.must_roll(*(number(rng) for _ in range(4))))
        native.cut_pending = plain.cut_pending = rng.random() < 0.1


# ---- appends to a log ----


class Core(_append.LogCell):
    """What the parts of a log share, for either twin."""

    def fail(self, operation: str, error: OSError) -> Exception:
        self.failure = LogClosedError(operation)
        return OSError(error.errno, operation)


class PlainCore(Core):
    snapshot: Any = None


class Listeners(_append.ListenerCell):
    calls = 0

    def wake_all(self) -> None:
        self.calls, self.waiting = self.calls + 1, ()


class Recent:
    """What a log keeps in memory, until it is interrupted at that."""

    def __init__(self, room: int) -> None:
        self.kept: list[Any] = []
        self.room = room

    def add(self, data: Any, *where: int) -> None:
        if len(self.kept) == self.room:
            raise InvalidRecordError("interrupted")
        self.kept.append((bytes(data), *where))

    def clear(self) -> None:
        self.kept.clear()


class NativeLog(_append.AppendState):
    def forget_recent_locked(self) -> None:
        self.recent.clear()


def twin_logs(rng: random.Random, native: Any, plain: Any) -> tuple[Any, Any]:
    """A log of either kind, whose active segments these are."""

    def seldom(usual: Any, other: Any) -> Any:
        return other if rng.random() < 0.04 else usual

    fields = {
        "is_plain": seldom(True, False),
        "largest_decides": seldom(True, False),
        "keys_required": rng.random() < 0.2,
        "led_epoch": seldom(None, rng.choice((EPOCH, 4))),
        "followed_epoch": seldom(None, rng.choice((EPOCH, 4))),
        "truncation": seldom(False, True),
        "upkeep_due": seldom(False, True),
        "epochs_due": seldom(False, True),
        "timestamp_limit": seldom(LONG, rng.choice((1000, -1))),
        "flush_at": seldom(LONG, 10),
        "max_batch_size": seldom(2**31 - 1, 150),
        "replicated": rng.random() < 0.5,
        "high_watermark": number(rng),
        "log_start_offset": number(rng),
        "first_unstable": rng.choice((-1, -1, 0, number(rng))),
        "version": number(rng),
    }
    latest, room = seldom(EPOCH, rng.choice((0, -1, 2**31 - 1))), rng.choice((None, 1, 9))
    waiting = rng.choice(((), (print,)))
    made: list[Any] = []
    for kind, core, state in (
        (NativeLog, Core(), native),
        (_append_reference.AppendState, PlainCore(), plain),
    ):
        listeners, epochs = Listeners(), _append.EpochCell()
        listeners.waiting, epochs.latest_epoch = waiting, latest
        core.snapshot = state.snapshot((), state, 0, -1, -1, 0)
        log = kind(core, listeners, threading.Lock())
        log.epochs, log.recent = epochs, None if room is None else Recent(room)
        for name, value in fields.items():
            setattr(log, name, value)
        made.append((log, listeners))
    return made[0], made[1]


def plain_batches(rng: random.Random, base: int) -> bytes:
    """Batches that ask for nothing special, with offsets from ``base`` on if it is not 0."""
    made = []
    for _ in range(rng.choice((1, 1, 1, 2, 5, 30))):
        count, key = rng.choice((1, 1, 3)), rng.choice((b"k", b"k", None))
        rows = [(key, bytes(rng.choice((0, 9, 5000))), stamp) for stamp in range(count)]
        batch = with_field(with_field(bytes(encode_batch(rows)), 0, base), 2, EPOCH)
        made.append(damaged(rng, batch) if rng.random() < 0.03 else batch)
        base += count if 0 < base < LONG - count else 0
    return b"".join(made)


def append_to_twins(rng: random.Random, pair: tuple[Any, Any]) -> None:
    """One append that is plain or not; what becomes of both logs stays the same."""
    how = rng.choice(("as_leader", "own", "as_follower"))
    end = pair[1][0].core.snapshot.log_end_offset
    if rng.random() < 0.2:
        data = batches(rng)
    else:
        data = plain_batches(
            rng,
            min(rng.choice((end, end, end + 2, max(end - 2, 0))), LONG)
            if how == "as_follower"
            else 0,
        )
    buffer, epoch = buffer_of(rng, data), rng.choice((EPOCH, EPOCH, EPOCH, 0, 7))
    deep = rng.random() < 0.5
    asked = rng.choice((None, epoch))
    arguments = {
        "as_leader": (buffer, epoch, deep),
        "own": (buffer, asked),
        "as_follower": (asked, buffer),
    }[how]

    def append(log: Any) -> Any:
        info = getattr(log, f"append_plain_{how}")(*arguments)
        return info and attributes(info, INFO)

    same(*((lambda log=log: append(log)) for log, _ in pair))
    seen = [
        (
            attributes(log.core.snapshot, SNAPSHOT) | {"active": None},
            repr(log.core.failure),
            log.recent and log.recent.kept,
            listeners.calls,
            log.lock.locked(),
        )
        for log, listeners in pair
    ]
    assert seen[0] == seen[1]


def changing_appends(rng: random.Random) -> None:
    """Bytes that another thread changes while they are appended: refused, and nothing counted."""
    data = exact(originals()[5] * rng.choice((2, 5)))
    at, value = rng.choice((0, 1)) * len(originals()[5]) + 8, number(rng, 32)
    by_writing, through = rng.random() < 0.5, rng.random() < 0.5

    def change(_: object) -> None:
        data[at : at + 4] = value.to_bytes(4, "big", signed=True)

    class Changed(File):
        def write_at(self, position: int, content: Any) -> None:
            super().write_at(position, content)
            if by_writing:
                change(None)

    state = _append.SegmentState(0)
    with tempfile.TemporaryFile(buffering=0) as disk:
        offsets, times = Map(800), Map(1200)
        if not by_writing:
            offsets.reserve = change  # type: ignore[method-assign]
        state.attach(Changed(-1 if through else disk.fileno()), offsets, times)
        state.index_interval_bytes, state.bytes_since_index_entry = -1, 0
        before = attributes(state, STATE)
        kind, _ = outcome(lambda: state.append(data, len(data), rng.choice((0, -1)), 0))
        assert kind == "ValueError" or state.size == len(data)
        assert kind == "returned" or attributes(state, STATE) == before
        state.detach()


FUZZERS = {
    "rows": rows,
    "lists": lists,
    "arrow": arrow,
    "seals": seals,
    "partitions": partitions,
    "appends": appends,
    "log_appends": log_appends,
    "changing_appends": changing_appends,
}
