"""``logstore dump`` of a ``.log`` file: batches and records of any magic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.cli.dumping.output import Output, readable, shown, to_base64
from logstore.common.config import MAX_INT
from logstore.common.errors import CorruptBatchError
from logstore.common.types import Record
from logstore.format.control import ControlType, parse_control_key, parse_marker
from logstore.format.header import (
    HEADER_SIZE,
    BatchHeader,
    add_sequence,
    check_batch_crc,
    parse_header,
)
from logstore.format.large_batch import content_crc
from logstore.format.legacy import LegacyBatch, legacy_crc
from logstore.format.reader import HEADER_UP_TO_MAGIC, Batch, batch_records, parse_batch
from logstore.storage import File

_WINDOW_BYTES = 4 << 20
_ZERO_STEP = 1 << 20
_WHOLE_MAX = 80 << 20
"""The largest batch in bytes that is read into memory.

Of a larger one only the header is printed, and the checksum is computed in pieces: its length may
be wrong, in a file that may be sparse.
"""


class _Found(NamedTuple):
    """A batch with its window: ``batch.position`` is in ``data``, ``position`` in the file.

    ``whole``: ``data`` has all its bytes. Otherwise it has only the header, and ``crc`` is the
    computed checksum.
    """

    data: memoryview
    batch: Batch
    position: int
    whole: bool = True
    crc: int = 0


def dump_log(file: File, where: TopicPartition | None, out: Output) -> None:
    """Print the batches of one file, up to bytes that cannot be a batch.

    A file that is too large for a segment is not read, because it may be sparse and practically
    endless.
    """
    size = file.size()
    if size > MAX_INT:
        out.unusable(f"{printable(file.path)}: {size} bytes are too many for a segment")
        return
    for found in _batches(file, size, out):
        batch = found.batch
        if isinstance(batch, BatchHeader) and batch.base_offset >= out.end_offset:
            break
        if batch.last_offset < out.from_offset:
            continue
        fault = _fault(found)
        if fault is not None:
            out.corrupt(fault.located(file.path, found.position - batch.position))
        if out.form == "hex":
            out.lines(_hex_lines(found))
            continue
        if out.form == "text":
            out.lines([_batch_line(found, valid=fault is None)])
        if fault is None and (out.form == "json" or out.deep):
            if found.whole:
                _dump_records(file.path, found, where, out)
            else:
                message = f"the records of a batch of {batch.size} bytes are not printed"
                out.unusable(f"{file.path}: {message}, at byte {found.position}")


def _batches(file: File, size: int, out: Output) -> Iterator[_Found]:
    """Walk the file in windows. Memory is bounded by a window or the largest batch in the file."""
    position, window = 0, _WINDOW_BYTES
    while position < size:
        with file.view(position, window) as data:
            start = position
            try:
                while (batch := parse_batch(data, position - start)) is not None:
                    yield _Found(data, batch, position)
                    position += batch.size
                needed = _framed_size(data, position - start)
            except CorruptBatchError as error:
                _report_end(file, position, size, error.located(file.path, start), out)
                return
        if size > position > size - needed:
            out.note(
                f"{printable(file.path)}: torn tail of {size - position} bytes from byte {position}"
            )
            return
        if position == start and needed <= window:  # all of it is not here: cut since it was opened
            out.note(f"{printable(file.path)}: cut while it was read, at byte {position}")
            return
        if needed > _WHOLE_MAX:
            try:
                large = _large(file, position, needed)
            except CorruptBatchError as error:
                _report_end(file, position, size, error, out)
                return
            yield large
            position, needed = position + needed, 0
        window = max(_WINDOW_BYTES, needed)


def _large(file: File, position: int, size: int) -> _Found:
    """Read a batch that is too large for one buffer.

    Raises:
        CorruptBatchError: it has an older format, or its header is invalid.
    """
    head = file.read_at(position, HEADER_SIZE)
    try:
        if len(head) < HEADER_SIZE or head[HEADER_UP_TO_MAGIC - 1] != 2:
            raise CorruptBatchError("", 0, f"{size} bytes, above the limit of {_WHOLE_MAX}")
        batch = parse_header(head)
    except CorruptBatchError as error:
        raise error.located(file.path, position) from None
    crc = content_crc(file, position, size)
    return _Found(memoryview(head), batch, position, whole=False, crc=crc)


def _framed_size(data: memoryview, position: int) -> int:
    """The size, by its length field, of the batch that the window cuts off."""
    if len(data) - position <= HEADER_UP_TO_MAGIC:
        return HEADER_UP_TO_MAGIC + 1
    return 12 + int.from_bytes(data[position + 8 : position + 12], "big", signed=True)


def _report_end(
    file: File, position: int, size: int, error: CorruptBatchError, out: Output
) -> None:
    """Report how the file ends.

    A zero tail from preallocation or a power cut is no corruption (F-107, F-139).
    """
    zeros = bytes(_ZERO_STEP)
    for start in range(position, size, _ZERO_STEP):
        data = file.read_at(start, min(_ZERO_STEP, size - start))
        if data != zeros[: len(data)]:
            out.corrupt(error)
            return
    out.note(f"{printable(file.path)}: {size - position} zero bytes from byte {position}")


def _fault(found: _Found) -> CorruptBatchError | None:
    data, batch = found.data, found.batch
    try:
        batch.compression  # noqa: B018 - an unknown codec is a fault of the batch
        if not found.whole:
            if found.crc != batch.crc:
                return CorruptBatchError("", batch.position, f"checksum {batch.crc:#010x} is wrong")
        elif isinstance(batch, BatchHeader):
            check_batch_crc(data, batch)
        elif legacy_crc(data, batch) != batch.crc:
            return CorruptBatchError("", batch.position, f"checksum {batch.crc:#010x} is wrong")
    except CorruptBatchError as error:
        return error
    return None


def _dump_records(path: str, found: _Found, where: TopicPartition | None, out: Output) -> None:
    try:
        records = batch_records(
            found.data, found.batch, check_crc=False, from_offset=out.from_offset
        )
    except CorruptBatchError as error:
        out.corrupt(error.located(path, found.position - found.batch.position))
        return
    wanted = [record for record in records if record.offset < out.end_offset]
    if out.form == "json":
        out.json([_record_json(record, found.batch, where) for record in wanted])
    else:
        kind = str(found.batch.timestamp_type)
        out.lines([_record_line(record, found.batch, kind) for record in wanted])


def _sequence(record: Record, batch: Batch) -> int:
    if isinstance(batch, LegacyBatch) or batch.base_sequence < 0:
        return -1
    return add_sequence(batch.base_sequence, record.offset - batch.base_offset)


def _record_json(record: Record, batch: Batch, where: TopicPartition | None) -> dict[str, Any]:
    modern = batch if isinstance(batch, BatchHeader) else None
    return {
        "topic": where.topic if where else None,
        "partition": where.partition if where else None,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": str(batch.timestamp_type),
        "key": to_base64(record.key),
        "value": to_base64(record.value),
        "headers": [[name, to_base64(value)] for name, value in record.headers],
        "leaderEpoch": batch.leader_epoch,
        "producerId": modern.producer_id if modern else -1,
        "producerEpoch": modern.producer_epoch if modern else -1,
        "sequence": _sequence(record, batch),
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "compression": str(batch.compression),
    }


def _batch_line(found: _Found, valid: bool) -> str:
    """The line that Kafka's own dump tool prints for a batch."""
    batch = found.batch
    fields: dict[str, object] = {"baseOffset": batch.base_offset, "lastOffset": batch.last_offset}
    if isinstance(batch, BatchHeader):
        fields |= {
            "count": batch.record_count,
            "baseSequence": batch.base_sequence,
            "lastSequence": batch.last_sequence,
            "producerId": batch.producer_id,
            "producerEpoch": batch.producer_epoch,
            "partitionLeaderEpoch": batch.leader_epoch,
            "isTransactional": batch.is_transactional,
            "isControl": batch.is_control,
            "deleteHorizonMs": "none" if batch.delete_horizon is None else batch.delete_horizon,
        }
    fields |= {
        "position": found.position,
        str(batch.timestamp_type): batch.max_timestamp,
        "size": batch.size,
        "magic": batch.magic,
        "compresscodec": _codec_name(batch),
        "crc": batch.crc,
        "isvalid": valid,
    }
    return " ".join(f"{name}: {shown(value)}" for name, value in fields.items())


def _codec_name(batch: Batch) -> str:
    try:
        return str(batch.compression)
    except CorruptBatchError:
        return f"unknown({batch.attributes & 7})"


def _record_line(record: Record, batch: Batch, timestamp_type: str) -> str:
    sizes = [-1 if field is None else len(field) for field in (record.key, record.value)]
    start = (
        f"| offset: {record.offset} {timestamp_type}: {record.timestamp} "
        f"keySize: {sizes[0]} valueSize: {sizes[1]} sequence: {_sequence(record, batch)}"
    )
    if batch.is_control:
        return f"{start} {_control_text(record)}"
    headers = ",".join(
        f"{readable(name.encode())}={readable(value)}" for name, value in record.headers
    )
    return (
        f"{start} headers: [{headers}] key: {readable(record.key)} "
        f"payload: {readable(record.value)}"
    )


def _control_text(record: Record) -> str:
    try:
        marker = parse_marker(record.key, record.value)
        if marker is None:
            return f"controlType: {parse_control_key(record.key).name}"
    except CorruptBatchError as error:
        return f"controlType: {ControlType.UNKNOWN.name} ({error.reason})"
    return f"endTxnMarker: {marker.control_type.name} coordinatorEpoch: {marker.coordinator_epoch}"


_HEX_FIELDS = (
    ("baseOffset", 8),
    ("batchLength", 4),
    ("partitionLeaderEpoch", 4),
    ("magic", 1),
    ("crc", 4),
    ("attributes", 2),
    ("lastOffsetDelta", 4),
    ("baseTimestamp", 8),
    ("maxTimestamp", 8),
    ("producerId", 8),
    ("producerEpoch", 2),
    ("baseSequence", 4),
    ("recordsCount", 4),
)
_HEX_LEGACY = (("offset", 8), ("size", 4), ("crc", 4), ("magic", 1), ("attributes", 1))

assert sum(size for _, size in _HEX_FIELDS) == HEADER_SIZE


def _hex_lines(found: _Found) -> list[str]:
    """One line for each header field: position in the file, bytes, name and value."""
    batch = found.batch
    fields: tuple[tuple[str, int], ...] = _HEX_FIELDS
    if isinstance(batch, LegacyBatch):
        fields = _HEX_LEGACY + ((("timestamp", 8),) if batch.magic else ())
    lines = []
    at = batch.position
    for name, size in fields:
        raw = bytes(found.data[at : at + size])
        value = int.from_bytes(raw, "big", signed=name != "crc")
        place = found.position + at - batch.position
        lines.append(f"{place:012x}  {raw.hex(' '):<23}  {name}: {value}")
        at += size
    rest = batch.size - (at - batch.position)
    lines.append(f"{found.position + at - batch.position:012x}  {rest} bytes of records")
    return lines
