"""Streams of consecutive members that a library unpacks in steps: gzip, Zstandard.

The library checks each member and bounds the output of a step. So content is measured in constant
memory, and the size that a header claims is not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from logstore.common.types import Buffer
from logstore.format.codecs.limits import EAGER_BYTES, CodecError, TooLargeError, check_members

_STEP = 1 << 20  # bytes, of input and of content
_SMALL = 16 << 10  # input that is mostly one member, unpacked by one step
_FIRST_FEED = 1 << 10
"""The first input of a member after the first, in bytes; each feed doubles it.

The library copies the rest of a feed after the end of a member, so the copies stay in proportion to
the members.
"""


class Member(Protocol):
    """A member that is being unpacked, with the interface of ``compression.zstd``."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool:
        """Whether the next step can take input; if not, it goes on with what it has."""
        ...

    @property
    def unused_data(self) -> bytes:
        """The bytes that followed the member's end in the last input."""
        ...

    def decompress(self, data: Buffer, max_length: int) -> bytes: ...


class MemberFormat(NamedTuple):
    name: str
    begin: Callable[[], Member]
    error: type[Exception]


def decompress(format: MemberFormat, data: Buffer, limit: int) -> Buffer:
    """The content of all members; ``CodecError`` if they are malformed or exceed ``limit``."""
    if len(data) <= _SMALL:
        member = format.begin()
        content = _step(format, member, data)
        if member.eof and not member.unused_data:
            if len(content) > limit:
                raise TooLargeError(limit)
            return content
    chunks: list[bytes] = []
    total = 0
    for chunk in _chunks(format, data):
        total += len(chunk)
        if total > limit:
            raise TooLargeError(limit)
        if total > EAGER_BYTES:
            chunks.clear()
            return _fill(format, data, _measure(format, data, limit))
        chunks.append(chunk)
    return b"".join(chunks)


def _step(format: MemberFormat, member: Member, data: Buffer) -> bytes:
    try:
        return member.decompress(data, _STEP)
    except format.error as error:
        raise CodecError(f"{format.name}: {error}") from None


def _measure(format: MemberFormat, data: Buffer, limit: int) -> int:
    total = 0
    for chunk in _chunks(format, data):
        total += len(chunk)
        if total > limit:
            raise TooLargeError(limit)
    return total


def _fill(format: MemberFormat, data: Buffer, size: int) -> memoryview:
    out, filled = memoryview(bytearray(size)), 0
    for chunk in _chunks(format, data):
        if len(chunk) > size - filled:
            raise CodecError(f"{format.name}: the stream changed while it was read")
        out[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    return out[:filled]


def _chunks(format: MemberFormat, data: Buffer) -> Iterator[bytes]:
    """The content of all members, in pieces of at most ``_STEP`` bytes."""
    view = memoryview(data)
    position = members = content = 0
    feed = _STEP
    while position < len(view) or not members:
        member = format.begin()
        while not member.eof:
            hungry = member.needs_input
            given = view[position : position + feed] if hungry else b""
            chunk = _step(format, member, given)
            position += len(given)
            if chunk:
                content += len(chunk)
                yield chunk
            elif hungry and not given and not member.eof:
                raise CodecError(f"{format.name}: the stream ends early")
            feed = min(2 * feed, _STEP)
        position -= len(member.unused_data)
        feed = _FIRST_FEED
        members += 1
        check_members(members, content)
