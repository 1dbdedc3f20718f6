"""Hostile messages: real ones, changed in a few fields, against a plain decoder of the same schema.

    python -m tests.fuzz.protocol --seconds 300 --seed 1 [--only FetchRequest,MetadataResponse]

For every case the compiled decoder and the plain one agree: the same message, or both refuse it. A
decoder raises nothing but MalformedMessageError. What was accepted is
written, and read as the same message again. A case depends on its number alone.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
import tracemalloc
from typing import Any, NamedTuple

from replication.protocol import ApiKey, MalformedMessageError, parse_request_header, request_header
from replication.protocol.codecs import decoder, encoder
from replication.protocol.compiler import uvarint
from tests.support.protocol_reference import Place, ReferenceDecoder, Refused
from tests.support.protocol_values import EVERY_VERSION, draw

LENGTHS = ("length", "count", "tags", "tag", "tag size")
FIXED = {"bool": 1, "mark": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f64": 8}
UNKNOWN_TAGS = (  # two tagged fields each
    b"\x62\0\x63\1\0",
    b"\x62\0\x62\1\0",  # one tag twice
    b"\x63\0\x62\1\0",  # descending
    b"\x62\0\xe3\x01\0",
    b"\0\0\1\0",
)
NOT_UTF_8 = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xc3", b"\xf5\x80\x80\x80")
MEMORY_OF_A_BYTE = 50
"""Bytes that a decoder may take for one byte of a message, at the peak. The dearest is an array
whose element is two bytes on the wire, and a tuple of one field in memory."""
MEMORY_CONSTANT = 100_000


class Outcome(NamedTuple):
    """``accepted`` or not, with how the case was made; `wrong` says what broke, "" if nothing."""

    name: str
    version: int
    data: bytes
    accepted: bool
    wrong: str


def case(number: int, only: tuple[str, ...] = ()) -> Outcome:
    """Make the case with this number and judge it."""
    rng = random.Random(number)
    choice = [each for each in EVERY_VERSION if not only or each[0] in only]
    name, version = choice[rng.randrange(len(choice))]
    data = b"".join(encoder(name, version)(draw(name, version, rng)))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = changed(name, version, data, rng)
    return judged(name, version, data)


def judged(name: str, version: int, data: bytes) -> Outcome:
    """Decode ``data`` both ways."""
    try:
        expected = ReferenceDecoder(name, version, data).decode()
    except Refused:
        expected = None
    try:
        found = decoder(name, version)(memoryview(data), 0)
    except MalformedMessageError as error:
        wrong = "" if expected is None else f"refused what is right: {error}"
        return Outcome(name, version, data, False, wrong)
    except Exception as error:
        return Outcome(name, version, data, False, f"raised {error!r}")
    return Outcome(name, version, data, True, _compared(name, version, found, expected))


def _compared(name: str, version: int, found: Any, expected: Any) -> str:
    if expected is None:
        return f"accepted what is wrong: {found}"
    if not _same(found, expected):
        return f"read {found}, not {expected}"
    again = b"".join(encoder(name, version)(found))
    if not _same(decoder(name, version)(memoryview(again), 0), found):
        return f"written again it is another: {found}"
    return ""


def _same(one: Any, other: Any) -> bool:
    """Also where a number is none: such a one differs from itself."""
    return one == other or repr(one) == repr(other)


def header_case(number: int) -> str:
    """One frame whose header is changed; what went wrong, or ""."""
    rng = random.Random(number)
    key = rng.choice(list(ApiKey))
    frame = bytearray(request_header(key, rng.randrange(15), 7, rng.choice((None, "", "client"))))
    frame += rng.randbytes(rng.randrange(8))
    for _ in range(rng.randrange(4)):
        frame[rng.randrange(len(frame))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    frame = frame[: rng.choice((len(frame), rng.randrange(len(frame) + 1)))]
    try:
        header = parse_request_header(memoryview(bytes(frame)))
    except MalformedMessageError:
        return ""
    except Exception as error:
        return f"raised {error!r}"
    return "" if 10 <= header.body_offset <= len(frame) else f"the body is at {header.body_offset}"


def changed(name: str, version: int, data: bytes, rng: random.Random) -> bytes:
    """``data`` with one thing in it changed."""
    places = _places(name, version, data)
    if not places or rng.random() < 0.1:
        return _flipped(data, rng)
    place = rng.choice(places)
    roll = rng.random()
    before, inside, after = data[: place.start], data[place.start : place.stop], data[place.stop :]
    if roll < 0.1:
        return before + after
    if roll < 0.2:
        return before + inside + inside + after
    if roll < 0.25:
        return before + inside[: rng.randrange(len(inside) + 1)]
    return before + _other(place, inside, after, rng) + after


def _places(name: str, version: int, data: bytes) -> list[Place]:
    """Where things lie, up to the first that is wrong."""
    decode = ReferenceDecoder(name, version, data)
    with contextlib.suppress(Refused):
        decode.decode()
    return decode.places


def _other(place: Place, inside: bytes, after: bytes, rng: random.Random) -> bytes:
    """Something else in the place of one field."""
    size = len(inside)
    if place.kind == "tags" and size == 1 and rng.random() < 0.5:
        return bytes([inside[0] + 2]) + rng.choice(UNKNOWN_TAGS)
    if place.kind in LENGTHS:
        left = len(after)
        near = rng.choice((0, 1, 2, left - 1, left, left + 1, left // 2, 127, 128, 32_767))
        if size not in (2, 4) or rng.random() < 0.2:
            numbers = (near, near, 1 << 14, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, 1 << 40)
            number = uvarint(max(0, rng.choice(numbers)))
            return number[:-1] + bytes([number[-1] | 0x80, 0]) if rng.random() < 0.1 else number
        half = 1 << 8 * size - 1
        numbers = (near, near, -1, -2, half - 1, -half)
        return (rng.choice(numbers) % (2 * half)).to_bytes(size, "big")
    if place.kind in FIXED:
        return rng.choice((b"\0", b"\xff", b"\x7f", b"\x80")) + bytes(size - 1)
    if place.kind == "str":
        return inside[:-1] + rng.choice(NOT_UTF_8)
    return rng.randbytes(rng.choice((0, 1, size, size + 1)))


def _flipped(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return rng.randbytes(3)
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def memory_of(name: str, version: int, data: bytes) -> int:
    """Bytes that decoding ``data`` takes at the peak."""
    decode = decoder(name, version)
    tracemalloc.start()
    try:
        with contextlib.suppress(MalformedMessageError):
            decode(memoryview(data), 0)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.protocol")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="names of messages, separated by commas")
    parser.add_argument("--one", type=int, metavar="CASE", help="repeat one case")
    arguments = parser.parse_args()
    only = tuple(filter(None, arguments.only.split(",")))
    if arguments.one is not None:
        found, header = case(arguments.one, only), header_case(arguments.one)
        print(found, header)
        return 1 if found.wrong or header else 0
    first = arguments.seed * 1_000_000_000
    done = accepted = failed = 0
    started = time.monotonic()
    while time.monotonic() - started < arguments.seconds:
        number, done = first + done, done + 1
        outcome = case(number, only)
        accepted += outcome.accepted
        wrong = outcome.wrong or header_case(number)
        if wrong:
            failed += 1
            print(f"--one {number}: {outcome.name} v{outcome.version}: {wrong[:500]}")
    seconds = time.monotonic() - started
    print(f"{done} messages in {seconds:.0f} s, {accepted} of them accepted, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
