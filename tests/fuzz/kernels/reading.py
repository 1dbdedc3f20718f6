"""Fuzzers of what reads: ``_scan``, the decoding half of ``_codec``, and ``_verify``."""

from __future__ import annotations

import random
import threading
import zlib
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from logstore.kernels import ReadBounds, _codec, _scan, _verify
from logstore.kernels import _constants as v
from tests.fuzz.kernels.compare import attributes, outcome, same
from tests.fuzz.kernels.inputs import (
    LONG,
    batch_of,
    buffer_of,
    exact,
    index,
    log,
    number,
    originals,
    section,
    table,
    varint,
)
from tests.reference import records as reference
from tests.reference import verification as _verify_reference

ANALYSIS = (
    "batch_count",
    "record_count",
    "size",
    "first_offset",
    "last_offset",
    "base_timestamp",
    "max_timestamp",
    "offset_of_max_timestamp",
    "first_batch_max_timestamp",
    "min_epoch",
    "max_epoch",
    "last_epoch",
    "magic_min",
    "magic_max",
    "largest_batch_size",
    "attributes_or",
    "attributes_and",
    "codec_mask",
    "ascending",
    "dense",
    "has_producer",
    "all_base_zero",
    "too_large_position",
    "offsets_dense",
    "has_null_key",
    "min_timestamp",
    "record_max_timestamp",
)
RECOVERY = (
    "status",
    "valid_bytes",
    "needed_bytes",
    "next_offset",
    "max_timestamp",
    "offset_of_max_timestamp",
    "first_batch_max_timestamp",
    "batch_count",
    "record_count",
    "epoch_falls",
    "first_fall_offset",
    "offset_index",
    "time_index",
    "epochs",
)


def checksums(rng: random.Random) -> None:
    data = rng.randbytes(
        rng.choice((0, 1, 7, 63, 191, 192, 193, 254, 511, 575, 3100, 9000)) + rng.randrange(4)
    )
    value = rng.getrandbits(32)
    buffer = buffer_of(rng, data)
    wanted = reference.crc32c(data, value)
    assert _scan.crc32c(buffer, value) == wanted
    assert _scan.crc32(buffer, value) == zlib.crc32(data, value)
    for variant in (0, 1, 2):
        assert _scan.crc32c_variant(variant, buffer, value) in (None, wanted)
    outcome(lambda: _scan.crc32c(buffer, number(rng)))


def varints(rng: random.Random) -> None:
    n = number(rng)
    for name in ("encode_varint", "encode_varlong"):
        same(
            lambda name=name: getattr(_scan, name)(n), lambda name=name: getattr(reference, name)(n)
        )
    body = b"\0" + varint(rng, n) + rng.randbytes(rng.choice((0, 0, 1, 9)))
    data = rng.choice((reference.encode_varint(len(body)), varint(rng, number(rng)))) + body
    buffer = buffer_of(rng, data[: rng.randint(0, len(data))])
    same(
        lambda: _codec.decode_records(buffer, 0, 0, 1),
        lambda: reference.decode_records(buffer, 0, 0, 1),
    )


def scan(rng: random.Random) -> None:
    data = log(rng)
    buffer, start = buffer_of(rng, data), rng.choice((0, 0, 0, index(rng, len(data))))
    capacity, flags = rng.choice((0, 1, 3, 40)), (rng.random() < 0.5, rng.random() < 0.5)
    cells = table(capacity) + array("q", [7]) * rng.choice((0, 0, 1, 14))
    cells *= 1
    plain = cells * 1
    same(
        lambda: _scan.scan_batches(buffer, start, cells, *flags),
        lambda: reference.scan_batches(buffer, start, plain, *flags),
    )
    assert cells == plain
    odd = exact(bytes(8 * 15 + 1))[1:]
    assert outcome(lambda: _scan.scan_batches(buffer, 0, odd))[0] in ("ValueError", "returned")
    assert outcome(lambda: _scan.scan_batches(buffer, 0, bytes(240)))[0] == "BufferError"


def every_cut(rng: random.Random) -> None:
    """A short batch cut at each byte."""
    whole = rng.choice([batch for batch in originals() if len(batch) < 260])
    for end in range(len(whole) + 1):
        data, cells, plain = exact(whole[:end]), table(2), table(2)
        same(
            lambda data=data, cells=cells: _scan.scan_batches(data, 0, cells, False),
            lambda data=data, plain=plain: reference.scan_batches(data, 0, plain, False),
        )
        assert cells == plain
        same(
            lambda data=data: _codec.decode_run(data, 0, [], 99, ReadBounds(check_crc=False)),
            lambda data=data: reference.decode_run(data, 0, [], 99, ReadBounds(check_crc=False)),
        )
        same(
            lambda data=data, end=end: _codec.decode_records(data[min(end, 61) :], 0, 0, 4),
            lambda data=data, end=end: reference.decode_records(data[min(end, 61) :], 0, 0, 4),
        )


def recovery(rng: random.Random) -> None:
    data = log(rng)
    arguments = rng.choice((0, 0, 5, number(rng))), rng.choice((0, 100, 4096, number(rng)))
    options = {
        "expected_offset": rng.choice((-1, 0, 5, number(rng))),
        "last_epoch": rng.choice((-1, 0, 3, number(rng))),
        "strict": rng.random() < 0.7,
        "contiguous": rng.random() < 0.3,
    }
    made = outcome(lambda: _scan.RecoveryScan(*arguments, **options))
    if made[0] != "returned":
        assert made == outcome(lambda: reference.RecoveryScan(*arguments, **options))
        return
    native, plain = made[1], reference.RecoveryScan(*arguments, **options)
    position = 0 if rng.random() < 0.9 else number(rng)
    start, window = position, rng.choice((1, 100, 700, 10_000))
    for _ in range(30):
        piece = data[position - start : position - start + window]
        buffer, last = buffer_of(rng, piece), rng.random() < 0.3
        kind, walked = same(
            lambda position=position, buffer=buffer, last=last: native.feed(buffer, position, last),
            lambda position=position, buffer=buffer, last=last: plain.feed(buffer, position, last),
        )
        assert attributes(native, RECOVERY) == attributes(plain, RECOVERY)
        assert native.take_producer_batches() == plain.take_producer_batches()
        assert native.final_time_entry() == plain.final_time_entry()
        if kind != "returned" or not piece:
            break
        position += walked
        window = max(window, native.needed_bytes)
        if rng.random() < 0.02:
            position = number(rng)


def analysis(rng: random.Random) -> None:
    buffer = buffer_of(rng, log(rng))
    options = {
        "max_batch_size": rng.choice((2**31 - 1, 100, number(rng))),
        "check_crc": rng.random() < 0.5,
        "deep": rng.random() < 0.7,
    }
    same(
        lambda: attributes(_scan.analyse_batches(buffer, **options), ANALYSIS),
        lambda: attributes(reference.analyse_batches(buffer, **options), ANALYSIS),
    )


# ---- decoding ----


def records(rng: random.Random) -> None:
    data, count = section(rng)
    buffer = buffer_of(rng, data)
    time = rng.choice((None, None, 7, number(rng)))
    numbers = rng.choice((0, number(rng))), rng.choice((0, 10**12, number(rng)))
    start = rng.choice((0, 5, -(2**63), number(rng)))
    same(
        lambda: _codec.decode_records(buffer, *numbers, count, time, start),
        lambda: reference.decode_records(buffer, *numbers, count, time, start),
    )


def read_bounds(rng: random.Random) -> ReadBounds:
    aborted = [
        (rng.choice((1, 9, number(rng))), rng.choice((0, 3, number(rng))), rng.choice((9, LONG)))
        for _ in range(rng.choice((0, 0, 1, 5)))
    ]
    return ReadBounds(
        rng.choice((0, 0, 3, number(rng))),
        rng.choice((LONG, LONG, 9, number(rng))),
        rng.random() < 0.5,
        rng.random() < 0.5,
        aborted,
        rng.choice((None, None, 7, 1000, number(rng))),
        rng.choice((None, None, 8, 1001, number(rng))),
    )


def runs(rng: random.Random) -> None:
    data = log(rng)
    buffer = buffer_of(rng, data)
    position = rng.choice((0, 0, 0, index(rng, len(data))))
    limit, bounds = rng.choice((0, 3, 1000, number(rng))), read_bounds(rng)
    found: list[Any] = ["before"]
    wanted: list[Any] = ["before"]
    same(
        lambda: _codec.decode_run(buffer, position, found, limit, bounds),
        lambda: reference.decode_run(buffer, position, wanted, limit, bounds),
    )
    assert found == wanted


def columns(rng: random.Random) -> None:
    """One builder over runs and sections, against the same calls of its twin."""
    flags = [rng.random() < 0.8 for _ in range(3)] + [rng.random() < 0.5]
    native, plain = (m.ColumnBuilder(*flags, runs=True) for m in (_codec, reference))
    for _ in range(rng.randrange(1, 4)):
        bounds = read_bounds(rng)
        if rng.random() < 0.5:
            data = log(rng)
            buffer = buffer_of(rng, data)
            position = rng.choice((0, 0, index(rng, len(data))))
            limits = rng.choice((0, 9, 10_000, number(rng))), rng.choice((2000, LONG, number(rng)))
            run = (buffer, position, *limits, bounds)
            kind, _ = same(lambda r=run: native.add_run(*r), lambda r=run: plain.add_run(*r))
            if kind == "CorruptBatchError":  # of a run, batches before the bad one stay
                break
        else:
            payload, count = section(rng)
            buffer = buffer_of(rng, payload)
            bases = rng.choice((0, 100, number(rng))), rng.choice((0, number(rng)))
            time = rng.choice((None, 8, number(rng)))
            said = (buffer, *bases, count, time, bounds, number(rng))
            same(lambda s=said: native.add_payload(*s), lambda s=said: plain.add_payload(*s))
        assert native.rows == plain.rows
        assert native.runs() == plain.runs()
    assert comparable(native.finish()) == comparable(plain.finish())
    assert native.rows == 0
    assert comparable(native.finish()) == comparable(plain.finish())


def counts(rng: random.Random) -> None:
    """One count over runs and sections, against the same calls of its twin."""
    asked = [rng.random() < 0.4 for _ in range(4)]
    native, plain = _codec.RecordCount(*asked), reference.RecordCount(*asked)
    for _ in range(rng.randrange(1, 4)):
        bounds = read_bounds(rng)
        if rng.random() < 0.7:
            data = log(rng)
            run = (buffer_of(rng, data), rng.choice((0, 0, index(rng, len(data)))), bounds)
            kind, _ = same(lambda r=run: native.add_run(*r), lambda r=run: plain.add_run(*r))
            if kind == "CorruptBatchError":  # of a run, batches before the bad one count
                break
        else:
            payload, count = section(rng)
            bases = rng.choice((0, 100, number(rng))), rng.choice((0, number(rng)))
            said = (buffer_of(rng, payload), *bases, count, rng.choice((None, 8)), bounds)
            same(lambda s=said: native.add_payload(*s), lambda s=said: plain.add_payload(*s))
    for name in ("rows", "min_offset", "max_offset", "min_timestamp", "max_timestamp"):
        assert getattr(native, name) == getattr(plain, name)


def comparable(finished: dict[str, Any]) -> dict[str, Any]:
    """The columns as bytes; names of headers as text, for only the twin has replaced bad UTF-8."""
    out: dict[str, Any] = {
        k: None if c is None else bytes(memoryview(c).cast("B")) for k, c in finished.items()
    }
    if "header_name_data" in out:
        data, ends = out.pop("header_name_data"), array("i", out.pop("header_name_offsets"))
        out["names"] = [data[a:b].decode("utf-8", "replace") for a, b in pairwise(ends)]
    return out


def bounded_columns(rng: random.Random) -> None:
    """Columns with little room: full, or filled, but never beyond."""
    room = rng.choice((0, 1, 100, 500, number(rng)))
    kind, builder = outcome(lambda: _codec.ColumnBuilder(True, True, True, True, room))
    if kind != "returned":
        return
    data = buffer_of(rng, log(rng))
    outcome(lambda: builder.add_run(data, 0, 10_000, LONG, ReadBounds(check_crc=False)))
    for column, content in builder.finish().items():
        view = memoryview(content or b"")
        assert view.nbytes == view.itemsize * len(view)
        assert view.nbytes <= room or not column.endswith("_data")


def racing(rng: random.Random) -> None:
    """Lengths and counts that another thread changes while they are read, as in a mapped file."""
    batch, count = originals()[5], 6000  # enough for the other thread to come in between
    data = b"".join(offset.to_bytes(8, "big") + batch[8:] for offset in range(count))
    view, stop = exact(data), threading.Event()
    place = rng.randrange(count // 2, count) * len(batch) + rng.choice((8, 8, 9, 10, 60, 61, 65))
    before, after = view[place], rng.choice((0x7F, 0x80, 0xFF))

    def change() -> None:
        while not stop.is_set():
            view[place] = after
            view[place] = before

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        for _ in range(3):
            scan, cells = _scan.RecoveryScan(0, 100), table(count)
            assert 0 <= scan.feed(view, 0, True) <= len(view)
            outcome(lambda c=cells: _scan.scan_batches(view, 0, c, True, False))
            outcome(lambda: _scan.analyse_batches(view, deep=True))
            outcome(
                lambda: _codec.ColumnBuilder(headers=True).add_run(
                    view, 0, LONG, LONG, ReadBounds()
                )
            )
            rows, _, _ = _scan.scan_batches(data, 0, cells)
            _verify.irregular_batches(view, cells, rows)
    finally:
        stop.set()
        thread.join()


# ---- tables ----


def scanned(rng: random.Random, data: Any) -> tuple[Any, int, bool]:
    """A table of the batches in ``data``; whether it is one that a scan of sound ones left."""
    cells = table(rng.choice((1, 4, 20)))
    stops = rng.random() < 0.8
    rows, _, _ = _scan.scan_batches(data, 0, cells, False, stops)
    sound = stops and rng.random() < 0.7
    for _ in range(0 if sound else rng.randrange(1, 6)):
        cells[rng.randrange(len(cells))] = number(rng)
    if rng.random() < 0.1:
        return memoryview(cells)[1:], rows, False
    if rng.random() < 0.1:
        return exact(b"\1" + cells.tobytes())[1:], rows, False
    return cells, rows if rng.random() < 0.9 else index(rng, 20), sound and rows > 0


def judge(sound: bool, native: Callable[[], Any], plain: Callable[[], Any]) -> None:
    """Compared where the table is one that a scan filled: the twin promises nothing for others."""
    if sound:
        same(native, plain)
    else:
        outcome(native)


def surveys(rng: random.Random) -> None:
    cells, rows, sound = scanned(rng, log(rng))
    rest = rng.choice((-1, 0, number(rng))), rng.choice((0, 0, number(rng))), number(rng)
    judge(
        sound and rest[1] >= 0,
        lambda: _verify.survey_batches(cells, rows, *rest),
        lambda: _verify_reference.survey_batches(cells, rows, *rest),
    )


def entries(rng: random.Random, layout: str, base: int, cells: Any) -> bytes:
    made = array("q", cells.tolist() if isinstance(cells, array) else [])
    capacity, out = len(made) // len(v.SCAN_COLUMNS), []
    for row in range(rng.choice((0, capacity, capacity))):
        last, at = made[3 * capacity + row], made[row]
        time = made[5 * capacity + row]
        first, second = ((last - base, at), (time, last - base))[layout == "time"]
        if rng.random() < 0.1:
            first, second = number(rng, 64 if layout == "time" else 32), number(rng, 32)
        width = 8 if layout == "time" else 4
        first = (first + (1 << (8 * width - 1))) % (1 << 8 * width) - (1 << (8 * width - 1))
        second = (second + 2**31) % 2**32 - 2**31
        out.append(
            first.to_bytes(width, "big", signed=True) + second.to_bytes(4, "big", signed=True)
        )
    return b"".join(out)


def indexes(rng: random.Random) -> None:
    cells, rows, _ = scanned(rng, log(rng))
    base = rng.choice((0, 0, 5, number(rng)))
    size = rng.choice((0, 100, 10**6, number(rng)))
    for layout, width in (("offset", 8), ("time", 12)):
        data = entries(rng, layout, base, cells) + rng.randbytes(rng.choice((0, 0, 5, 30)))
        buffer = buffer_of(rng, data)
        if layout == "offset":
            same(
                lambda b=buffer: _verify.ascending_offset_entries(b, size),
                lambda b=buffer: _verify_reference.ascending_offset_entries(b, size),
            )
        else:
            same(
                lambda b=buffer: _verify.ascending_time_entries(b),
                lambda b=buffer: _verify_reference.ascending_time_entries(b),
            )
        first = rng.choice((0, 0, index(rng, len(data) // width)))
        end = rng.choice((len(data) // width, index(rng, len(data) // width)))
        if layout == "offset":
            outcome(
                lambda b=buffer, f=first, e=end: _verify.match_offset_entries(
                    b, f, e, cells, rows, number(rng), base
                )
            )
        else:
            outcome(
                lambda b=buffer, f=first, e=end: _verify.match_time_entries(
                    b, f, e, cells, rows, base, rng.random() < 0.5, index(rng, 20), number(rng)
                )
            )


def fits(rng: random.Random) -> None:
    data = buffer_of(rng, log(rng))
    cells, rows, sound = scanned(rng, data)
    judge(
        sound,
        lambda: _verify.irregular_batches(data, cells, rows),
        lambda: _verify_reference.irregular_batches(data, cells, rows),
    )
    payload, count = section(rng)
    whole = batch_of(payload, count, 0, rng.choice((0, 8)), rng.choice((0, 10**12, LONG)))
    one = table(1)
    if _scan.scan_batches(whole, 0, one)[0]:
        payload = whole[v.HEADER_SIZE :]
        same(
            lambda: _verify.fits_in_section(payload, one, 0),
            lambda: _verify_reference.fits_in_section(payload, one, 0),
        )
    outcome(lambda: _verify.fits_in_section(buffer_of(rng, payload), cells, index(rng, 20)))


def folds(rng: random.Random) -> None:
    data = buffer_of(rng, log(rng))
    cells, rows, sound = scanned(rng, data)
    offsets = array("q", [number(rng) for _ in range(rng.choice((rows % 30, 25)))])
    first = rng.choice((0, 0, index(rng, 20)))
    end = rng.choice((rows, index(rng, 20)))
    factors = rng.getrandbits(128), rng.getrandbits(128)
    heads = rng.random() < 0.5
    judge(
        sound,
        lambda: _verify.fold_batches(data, cells, offsets, first, end, *factors, heads),
        lambda: _verify_reference.fold_batches(data, cells, offsets, first, end, *factors, heads),
    )
    shifted = exact(b"\1" + offsets.tobytes())[1:]
    outcome(lambda: _verify.fold_batches(data, cells, shifted, 0, end, *factors))
    outcome(lambda: _verify.fold_batches(data, cells, offsets, 0, end, 1 << 128, 1))


FUZZERS = {
    "checksums": checksums,
    "varints": varints,
    "scan": scan,
    "every_cut": every_cut,
    "recovery": recovery,
    "analysis": analysis,
    "records": records,
    "runs": runs,
    "columns": columns,
    "counts": counts,
    "bounded_columns": bounded_columns,
    "racing": racing,
    "surveys": surveys,
    "indexes": indexes,
    "fits": fits,
    "folds": folds,
}
