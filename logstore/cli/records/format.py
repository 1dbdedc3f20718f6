"""Records as text: templates of kcat, and encodings of bytes."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeAlias

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.common.types import Record

Part: TypeAlias = Callable[[Record, TopicPartition], bytes]
NULL = b"null"

_PIECE = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "e": b"\x1b", "\\": b"\\"}


class Encoding(StrEnum):
    """The way in which bytes of keys, values and headers are written."""

    RAW = "raw"
    UTF8 = "utf-8"
    BASE64 = "base64"
    HEX = "hex"


class BadTemplateError(ValueError):
    """A template names a field that does not exist, or ends in the middle of one."""


def encoded(data: bytes | None, encoding: Encoding, null: bytes = NULL) -> bytes:
    """The encoded bytes; ``null`` for None. With UTF-8, unprintable bytes are escaped."""
    if data is None:
        return null
    match encoding:
        case Encoding.RAW:
            return data
        case Encoding.UTF8:
            return printable(data).encode()
        case Encoding.BASE64:
            return base64.b64encode(data)
        case _:
            return data.hex().encode()


def in_json(data: bytes | None, encoding: Encoding) -> Any:
    """A JSON value: a string or null. Bytes that are not UTF-8 become ``{"base64": "…"}``."""
    if data is None:
        return None
    match encoding:
        case Encoding.HEX:
            return data.hex()
        case Encoding.UTF8:
            try:
                return data.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(data).decode("ascii")}
        case _:
            return base64.b64encode(data).decode("ascii")


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _length(data: bytes | None) -> bytes:
    return b"%d" % _size(data)


def _fields(encoding: Encoding, null: bytes) -> dict[str, Part]:
    def headers(record: Record, _: TopicPartition) -> bytes:
        return b",".join(
            encoded(name.encode("utf-8", "surrogateescape"), shown)
            + b"="
            + encoded(value, encoding, named_null)
            for name, value in record.headers
        )

    named_null = null or b"NULL"  # as kcat's: a null header differs from an empty one

    shown = Encoding.RAW if encoding is Encoding.RAW else Encoding.UTF8  # names are text
    return {
        "s": lambda record, _: encoded(record.value, encoding, null),
        "S": lambda record, _: _length(record.value),
        "R": lambda record, _: _size(record.value).to_bytes(4, signed=True),
        "k": lambda record, _: encoded(record.key, encoding, null),
        "K": lambda record, _: _length(record.key),
        "h": headers,
        "t": lambda _, tp: encoded(tp.topic.encode("utf-8", "surrogateescape"), shown),
        "p": lambda _, tp: b"%d" % tp.partition,
        "o": lambda record, _: b"%d" % record.offset,
        "T": lambda record, _: b"%d" % record.timestamp,
    }


def template(
    text: str, encoding: Encoding, null: bytes = NULL
) -> Callable[[Record, TopicPartition], bytes]:
    """Compile a template in the style of kcat to a function that formats a record.

    ====  ===================  ====  ===============================
    %s    value                %S    its length in bytes, −1 of null
    %k    key                  %K    its length, −1 of null
    %h    headers, ``a=b,c=d`` %T    timestamp in milliseconds
    %t    topic                %p    partition
    %o    offset               %R    %S in 4 bytes, big endian
    %%    a percent sign
    ====  ===================  ====  ===============================

    ``\\n``, ``\\r``, ``\\t``, ``\\0``, ``\\e``, ``\\xHH`` and ``\\\\`` are escapes. A null is
    written as ``null`` says.

    Raises:
        BadTemplateError: another letter follows a percent sign or a backslash.
    """
    known = _fields(encoding, null)
    parts: list[Part] = []
    for match in _PIECE.finditer(text):
        field, code, escape, literal, _ = match.groups()
        if field == "%":
            parts.append(_constant(b"%"))
        elif field in known:
            parts.append(known[field])
        elif code is not None:
            parts.append(_constant(bytes.fromhex(code)))
        elif escape in _ESCAPES:
            parts.append(_constant(_ESCAPES[escape]))
        elif literal is not None:
            parts.append(_constant(literal.encode("utf-8", "surrogateescape")))
        else:
            fields = " ".join(f"%{name}" for name in known)
            raise BadTemplateError(f"{match.group()!r} means nothing; there are {fields}, \\n, \\t")
    return lambda record, tp: b"".join([part(record, tp) for part in parts])


def _constant(data: bytes) -> Part:
    return lambda record, tp: data


def unescaped(text: str) -> bytes:
    """The bytes of a delimiter, with the escapes of a template.

    Raises:
        BadTemplateError: another letter follows a backslash.
    """
    whole = template(text.replace("%", "%%"), Encoding.RAW)
    return whole(Record(0, 0, None, None), TopicPartition("", 0))
