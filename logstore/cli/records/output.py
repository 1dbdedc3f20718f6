"""Records to stdout: as lines, JSON, bare values, or by a template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from checkpoints.types import TopicPartition
from logstore import terminal
from logstore.cli.common.exits import fail
from logstore.cli.records.format import (
    NULL,
    BadTemplateError,
    Encoding,
    encoded,
    in_json,
    template,
)
from logstore.common.types import Record


def output(
    form: str,
    encoding: Encoding | None,
    separator: bytes | None,
    count: int | None,
    *,
    end: bytes = b"\n",
    null: bytes = NULL,
) -> RecordOutput:
    """Return the output that ``--format`` and its options ask for; exit if they disagree.

    Args:
        form: ``lines``, ``json``, ``raw`` or a template.
        separator: lines: between key and value; without it there is no key.
        count: of records, at most.
        end: of each line.
        null: stands for a null, except in JSON.
    """
    if separator is not None and form != "lines":
        fail("--key-separator is for lines only")
    line: Callable[[Record, TopicPartition], bytes] | None = None
    if form == "lines":
        line = _line(encoding or Encoding.RAW, separator, null)
    elif form not in ("raw", "json"):
        if "%" not in form:
            fail(f"--format {form}: lines, json, raw, or a template with % in it")
        try:
            # On a terminal a line break of the template stays, but one of a value is escaped.
            plain = Encoding.UTF8 if terminal.is_terminal() else Encoding.RAW
            line = template(form, encoding or plain, null)
        except BadTemplateError as error:
            fail(f"--format: {error}")
    elif form == "raw" and encoding is not None:
        fail("--encoding is not for raw")
    return RecordOutput(terminal.RecordLines(), form, encoding or Encoding.BASE64, line, count, end)


def _line(
    encoding: Encoding, separator: bytes | None, null: bytes
) -> Callable[[Record, TopicPartition], bytes]:
    if separator is None:
        return lambda record, _: encoded(record.value, encoding, null)
    return lambda record, _: (
        encoded(record.key, encoding, null) + separator + encoded(record.value, encoding, null)
    )


@dataclass(slots=True)
class RecordOutput:
    """Writes records. ``left`` is how many more to write, None for all."""

    stream: terminal.RecordLines
    form: str
    encoding: Encoding
    line: Callable[[Record, TopicPartition], bytes] | None
    left: int | None
    end: bytes = b"\n"

    def write(self, records: list[Record], tp: TopicPartition) -> bool:
        """Write records. False once enough are written."""
        if self.left is not None:
            records = records[: max(self.left, 0)]
            self.left -= len(records)
        match self.form:
            case "raw":
                self.stream.joined([r.value or b"" for r in records])
            case "json":
                terminal.json_lines(self._json(r, tp) for r in records)
            case _:
                line = self.line
                assert line is not None
                texts = [line(record, tp) for record in records]
                if self.form != "lines":
                    self.stream.formatted(texts)
                elif self.end == b"\n":
                    self.stream.lines(texts)
                else:
                    self.stream.joined([text + self.end for text in texts])
        return self.left is None or self.left > 0

    def _json(self, record: Record, tp: TopicPartition) -> dict[str, Any]:
        return {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": in_json(record.key, self.encoding),
            "value": in_json(record.value, self.encoding),
            "headers": [[name, in_json(value, self.encoding)] for name, value in record.headers],
        }
