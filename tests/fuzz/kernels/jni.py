"""The kernels as the JVM calls them, without one: the library of the jar, beside ``_codec``."""

from __future__ import annotations

import ctypes
import functools
import random
import sys
import tempfile
import zipfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import logstore
from logstore.kernels import ReadBounds, _codec
from tests.fuzz.kernels.compare import outcome
from tests.fuzz.kernels.inputs import (
    LONG,
    batch_of,
    damaged,
    index,
    log,
    number,
    section,
    with_field,
)
from tests.fuzz.kernels.reading import read_bounds

JAR = Path(logstore.__file__).parent / "spark" / "logstore-spark.jar"
FUNCTIONS = 235
"""Of JNI's table, and the places of four of them there."""
GET_LENGTH, GET_BYTES, GET_LONGS, SET_LONGS = 171, 200, 204, 212

BAD_BATCH = 16
MAX_TIMESTAMP = 8
BLOCKS = (
    "offsets", "timestamps", "header_list_offsets",
    *(
        f"{column}_{part}"
        for column in ("key", "value", "header_name", "header_value")
        for part in ("offsets", "data", "validity")
    ),
)  # fmt: skip

_Region = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p
)
_Length = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def content() -> bytes | None:
    """The library; ``None`` where the jar, or that in it, could not be built."""
    if not JAR.exists():
        return None
    with zipfile.ZipFile(JAR) as jar:
        names = [n for n in jar.namelist() if n.startswith(f"native/{sys.platform}-")]
        return jar.read(names[0]) if names else None


class Library:
    """Calls functions of ``Native``. An array of Java is one of Python."""

    def __init__(self, data: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(data)
            file.flush()
            self._library = ctypes.CDLL(file.name)
        self._arrays: dict[int, array[int]] = {}
        self._kept = {
            GET_LENGTH: _Length(lambda _, name: len(self._arrays[name])),
            GET_BYTES: _Region(self._get),
            GET_LONGS: _Region(self._get),
            SET_LONGS: _Region(self._set),
        }
        table = (ctypes.c_void_p * FUNCTIONS)()
        for place, function in self._kept.items():
            table[place] = ctypes.cast(function, ctypes.c_void_p).value
        self._table = table
        self._env = ctypes.pointer(ctypes.c_void_p(ctypes.addressof(table)))
        self.outside = 0
        """Regions that Java would refuse."""

    def _at(self, name: int, start: int, count: int) -> tuple[int, int]:
        values = self._arrays[name]
        if not 0 <= start <= start + count <= len(values):
            self.outside += 1
            return 0, 0
        return values.buffer_info()[0] + values.itemsize * start, values.itemsize * count

    def _get(self, _: int, name: int, start: int, count: int, to: int) -> None:
        address, size = self._at(name, start, count)
        ctypes.memmove(to, address, size)

    def _set(self, _: int, name: int, start: int, count: int, source: int) -> None:
        address, size = self._at(name, start, count)
        ctypes.memmove(address, source, size)

    def call(self, name: str, *arguments: int | array[int], kind: Any = ctypes.c_int64) -> int:
        function = getattr(self._library, f"Java_logstore_Native_{name}")
        function.restype = kind
        given: list[Any] = []
        for each in arguments:
            if isinstance(each, array):
                self._arrays[id(each)] = each
                given.append(ctypes.c_void_p(id(each)))
            else:
                given.append(ctypes.c_int64(each))
        found = function(self._env, None, *given)
        self._arrays.clear()
        assert not self.outside
        return 0 if found is None else int(found)


@functools.cache
def library() -> Library:
    found = content()
    assert found is not None
    return Library(found)


class Reader:
    """As the classes ``NativeRecords`` and ``Blocks`` use the library."""

    def __init__(self, columns: int, is_summary: bool, extremes: int) -> None:
        self._state = array("q", [0, 0, 0])
        self._reader = library().call("create", columns, int(is_summary), extremes)

    @property
    def rows(self) -> int:
        return self._state[1]

    def bound(self, bounds: ReadBounds) -> None:
        numbers = (
            bounds.from_offset, bounds.end_offset, bounds.start_timestamp, bounds.end_timestamp,
            int(bounds.check_crc), int(bounds.include_control),
        )  # fmt: skip
        aborted = array("q", [n for each in sorted(bounds.aborted) for n in each])
        assert library().call("bound", self._reader, array("q", numbers), aborted)

    def run(self, data: array[int], at: int, max_rows: int, max_bytes: int) -> tuple[str, Any]:
        self._state[0] = at
        given = (data.buffer_info()[0], len(data), 0, max_rows, max_bytes, self._state)
        status = library().call("run", self._reader, *given, kind=ctypes.c_int)
        if status >= BAD_BATCH:
            return "CorruptBatchError", self._state[0]
        return "returned", (self._state[0], status)

    def section(self, batch: array[int], payload: array[int], position: int) -> int:
        sizes = (*batch.buffer_info(), *payload.buffer_info())
        given = (*sizes, position, self._state)
        return library().call("section", self._reader, *given, kind=ctypes.c_int)

    def summary(self) -> list[int]:
        found = array("q", bytes(5 * 8))
        library().call("summary", self._reader, found)
        return list(found)

    def runs(self) -> list[tuple[int, int]]:
        """Where each ends and where its batch is."""
        count = library().call("runs", self._reader, array("q"), kind=ctypes.c_int)
        found = array("q", bytes(8 * 9 * count))
        library().call("runs", self._reader, found, kind=ctypes.c_int)
        return [(found[at], found[at + 1]) for at in range(0, len(found), 9)]

    def finish(self) -> dict[str, bytes]:
        found = array("q", bytes(8 * (3 * len(BLOCKS) + 8)))
        assert library().call("finish", self._reader, found)
        made = {}
        for number_of, name in enumerate(BLOCKS):
            address, size, capacity = found[3 * number_of : 3 * number_of + 3]
            made[name] = ctypes.string_at(address, size) if size else b""
            library().call("free", address, capacity)
        return made

    def close(self) -> None:
        library().call("destroy", self._reader)


def jni_columns(rng: random.Random) -> None:
    flags = [rng.random() < 0.8 for _ in range(3)] + [rng.random() < 0.5]
    native = Reader(sum(flag << bit for bit, flag in enumerate(flags)) | 16, False, 0)
    plain = _codec.ColumnBuilder(*flags, runs=True)
    for _ in range(rng.randrange(1, 4)):
        limits = rng.choice((0, 9, 10_000)), rng.choice((2000, LONG))
        if not _given(
            rng, native, lambda *run, limits=limits: plain.add_run(*run[:2], *limits, run[2]),
            plain.add_payload, limits,
        ):  # fmt: skip
            break
        assert native.rows == plain.rows
    ends, positions = plain.runs()
    assert native.runs() == list(zip(ends, positions, strict=True))
    made, wanted = native.finish(), plain.finish()
    for name, column in wanted.items():
        assert made[name] == (b"" if column is None else bytes(memoryview(column).cast("B"))), name
    assert not any(library_empty(native))
    native.close()


def library_empty(native: Reader) -> list[bytes]:
    """What has content after all was handed out."""
    return [data for name, data in native.finish().items() if not name.endswith("offsets") and data]


def jni_summaries(rng: random.Random) -> None:
    asked = [rng.random() < 0.4 for _ in range(4)]
    native = Reader(0, True, sum(flag << bit for bit, flag in enumerate(asked)))
    plain = _codec.RecordCount(*asked)
    for _ in range(rng.randrange(1, 4)):
        if not _given(rng, native, plain.add_run, plain.add_payload, (0, 0)):
            break
    rows, *extremes = native.summary()
    assert rows == plain.rows
    names = ("min_offset", "max_offset", "min_timestamp", "max_timestamp")
    for name, wanted, value in zip(names, asked, extremes, strict=True):
        assert not wanted or not rows or value == getattr(plain, name)
    assert native.summary() == [0, LONG, -LONG - 1, LONG, -LONG - 1]
    native.close()


def jni_lies(rng: random.Random) -> None:
    """Sections with a header that is not theirs."""
    for is_summary in (False, True):
        native = Reader(31, is_summary, 15)
        native.bound(read_bounds(rng))
        payload, count = section(rng)
        stored = array("B", damaged(rng, batch_of(payload, count, 5, rng.choice((0, 8)), 9)))
        other = array("B", section(rng)[0])
        native.section(stored, other, number(rng))
        library().call("isSound", *stored.buffer_info(), kind=ctypes.c_uint8)
        native.finish()
        native.close()


def _given(
    rng: random.Random,
    native: Reader,
    add_run: Callable[..., Any],
    add_payload: Callable[..., Any],
    limits: tuple[int, int],
) -> bool:
    """A run or a section to both; whether they go on."""
    bounds = read_bounds(rng)
    native.bound(bounds)
    if rng.random() < 0.6:
        data = array("B", log(rng))
        at = min(max(rng.choice((0, 0, index(rng, len(data)))), 0), len(data))
        found = native.run(data, at, *limits)
        assert found == outcome(lambda: add_run(memoryview(data), at, bounds))
        return found[0] == "returned"
    payload, count = section(rng)
    base, time = rng.choice((0, 100, 2**40)), rng.choice((0, 5, 2**62))
    attributes = rng.choice((0, 8))
    stored = array("B", batch_of(payload, count, base, attributes, time))
    if not attributes:  # what is described without a header may be of any time
        stored = array("B", with_field(bytes(stored), MAX_TIMESTAMP, LONG))
    status = native.section(stored, array("B", payload), 7)
    said = (payload, base, time, count, time if attributes else None, bounds, 7)
    kind, value = outcome(lambda: add_payload(*said))
    assert status == value if kind == "returned" else status >= BAD_BATCH
    return kind == "returned"


def jni_bits(rng: random.Random) -> None:
    """What Spark's columns have and Kafka's have not, at the end of memory."""
    count = rng.randrange(1, 40)
    times, bits = array("q", [number(rng) for _ in range(count)]), array("B", bytes(-(-count // 8)))
    known = [abs(time) <= LONG // 1000 for time in times]
    wanted = [time * 1000 if fits else time for time, fits in zip(times, known, strict=True)]
    given = (times.buffer_info()[0], count, bits.buffer_info()[0])
    assert library().call("micros", *given) == known.count(False)
    assert list(times) == wanted
    assert [bits[i >> 3] >> (i & 7) & 1 for i in range(count)] == known
    offsets = array("i", [0])
    for _ in range(count):
        offsets.append(offsets[-1] + rng.choice((0, 0, 3)))
    given = (offsets.buffer_info()[0], count, bits.buffer_info()[0])
    empty = [offsets[i] == offsets[i + 1] for i in range(count)]
    assert library().call("emptyLists", *given) == empty.count(True)
    assert [bits[i >> 3] >> (i & 7) & 1 for i in range(count)] == [not each for each in empty]
    text = array("B", rng.choice((b"", b"name" * 9, b"n\xc3\xa4me" * 3)))
    ascii_only = library().call("isAscii", *text.buffer_info(), kind=ctypes.c_uint8)
    assert bool(ascii_only) == bytes(text).isascii()


FUZZERS: dict[str, Callable[[random.Random], None]] = {}
if content() is not None:
    FUZZERS = {each.__name__: each for each in (jni_columns, jni_summaries, jni_lies, jni_bits)}
