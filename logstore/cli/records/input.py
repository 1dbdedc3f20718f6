"""Records from lines on stdin, as values or as JSON."""

from __future__ import annotations

import base64
import json
import select
from collections.abc import Iterator
from typing import Any, NamedTuple

from logstore.common.types import Header

_READ_BYTES = 1 << 20
_LINE_BYTES_MAX = 64 << 20  # by default a log accepts batches of at most 1 MiB
_TIMESTAMP_MAX = 2**63 - 1


class BadInputError(Exception):
    """A line that is no record."""


class Parsed(NamedTuple):
    """A record to append. A ``timestamp`` of None means now."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: tuple[Header, ...] = ()


class LineForm(NamedTuple):
    """The form of lines that are records.

    Attributes:
        separator: ends the key of a line; None: lines have no keys.
        delimiter: ends a line.
        key: of lines without their own. None: a line without ``separator`` is malformed, or has
            no key with ``may_lack_key``.
        may_lack_key: as kcat's.
        empty_is_null: an empty value or key is null.
    """

    separator: bytes | None = None
    delimiter: bytes = b"\n"
    key: bytes | None = None
    may_lack_key: bool = False
    empty_is_null: bool = False


def input_records(stream: Any, form: LineForm | None) -> Iterator[tuple[Parsed | None, int]]:
    """Records with their line numbers; None when the input pauses. Without ``form`` lines are JSON.

    Blank lines of JSON and control records are left out.

    Raises:
        BadInputError: a line is malformed. It names the line; earlier records were yielded.
    """
    number = 0
    try:
        for lines in input_lines(stream, b"\n" if form is None else form.delimiter):
            for number, line in enumerate(lines, number + 1):  # noqa: B020 - goes on counting
                if form is not None:
                    yield parse_line(line, form), number
                elif line.strip() and (record := parse_json(line)) is not None:
                    yield record, number
            if not lines:
                yield None, number
    except BadInputError as error:
        raise BadInputError(f"line {number}: {error}") from None


def input_lines(stream: Any, delimiter: bytes = b"\n") -> Iterator[list[bytes]]:
    """Lists of whole lines without their delimiter; an empty list when the input pauses.

    ``stream`` is buffered and binary. Bytes after the last delimiter are a line too.

    Raises:
        BadInputError: a line is longer than 64 MiB.
    """
    rest = bytearray()
    while data := stream.read1(_READ_BYTES):
        seen = max(0, len(rest) - len(delimiter) + 1)  # a long line is searched once
        rest += data
        if rest.find(delimiter, seen) >= 0:
            *lines, last = bytes(rest).split(delimiter)
            rest = bytearray(last)
            yield lines
        if len(rest) > _LINE_BYTES_MAX:
            raise BadInputError(f"the line after it is longer than {_LINE_BYTES_MAX} bytes")
        if _pauses(stream):
            yield []
    if rest:
        yield [bytes(rest)]


def _pauses(stream: Any) -> bool:
    """Whether nothing can be read at once. A file or a closed pipe always can."""
    try:
        return not select.select([stream.fileno()], [], [], 0)[0]
    except (OSError, ValueError):
        return False


def parse_line(line: bytes, form: LineForm) -> Parsed:
    """A value, or with a separator a key and a value, as Kafka's console producer takes them.

    Raises:
        BadInputError: the line has no separator.
    """
    key: bytes | None = None
    value: bytes | None = line
    if form.separator is not None:
        first, found, rest = line.partition(form.separator)
        if found:
            key, value = first, rest
        elif form.key is None and not form.may_lack_key:
            raise BadInputError(f"no key separator {form.separator.decode(errors='replace')!r}")
    if form.empty_is_null:
        key, value = key or None, value or None
    return Parsed(form.key if key is None else key, value)


def parse_json(line: bytes) -> Parsed | None:
    """An object as ``logstore dump`` and ``read`` print it; None for a control record.

    Raises:
        BadInputError: what is wrong with it.
    """
    try:
        fields = json.loads(line)
    except RecursionError:
        raise BadInputError("nested too deeply") from None
    except UnicodeDecodeError:
        raise BadInputError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadInputError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(fields, dict):
        raise BadInputError("not a JSON object")
    if fields.get("isControl") is True:
        return None
    if "value" not in fields:
        raise BadInputError('the object has no "value"')
    return Parsed(
        _bytes(fields.get("key"), "key"),
        _bytes(fields["value"], "value"),
        _timestamp(fields.get("timestamp")),
        _headers(fields.get("headers") or []),
    )


def _bytes(text: object, what: str) -> bytes | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise BadInputError(f"{what} is neither base64 nor null")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise BadInputError(f"{what} is not base64") from None


def _timestamp(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= _TIMESTAMP_MAX:
        raise BadInputError("timestamp is no number of milliseconds")
    return value


def _headers(pairs: object) -> tuple[Header, ...]:
    if not isinstance(pairs, list):
        raise BadInputError("headers are no list")
    headers = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BadInputError("a header is no pair of name and value")
        try:
            pair[0].encode()
        except UnicodeEncodeError:
            raise BadInputError("the name of a header is not Unicode") from None
        headers.append((pair[0], _bytes(pair[1], "a header")))
    return tuple(headers)
