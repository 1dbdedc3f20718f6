"""Records as Arrow record batches: no Python object for a record is ever made.

The columns are ``offset`` int64, ``timestamp`` int64, ``key`` and ``value`` binary and, where
asked for, ``headers`` list<struct<key: string, value: binary>>. The timestamp is in ms since the
epoch and a plain int64, not an Arrow timestamp: −1 means "none" in Kafka and would read as the
last millisecond of 1969. ``column.cast(pyarrow.timestamp("ms", "UTC"))`` converts without a copy.

A ``binary`` column has 32-bit offsets, so one record batch holds at most 2 GiB of keys and of
values each. If compressed batches unpack to more, ``read_columns`` raises ``ResultTooLargeError``
instead of returning a part. It does not switch to ``large_binary``, because the schema must not
depend on the data. ``PartitionLog.to_arrow`` yields as many record batches as are needed.

pyarrow, the extra ``arrow``, is imported at the first call. If it is missing, the call raises
``ConfigError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from logstore.common.bounds import UNPACKED_MAX
from logstore.common.errors import CorruptBatchError, ResultTooLargeError
from logstore.common.extras import Extra, load
from logstore.common.types import Buffer
from logstore.format.reader import MAX_OFFSET, fill_columns
from logstore.kernels import DECODE_FULL, ColumnBuilder, ReadBounds

if TYPE_CHECKING:
    import pyarrow

_ALL = 2**62
_COLUMN_BYTES_MAX = 2**31 - 1


def load_pyarrow() -> Any:
    """The library.

    Raises:
        ConfigError: it is not installed.
    """
    return load("pyarrow", Extra.ARROW, "Arrow columns")


@lru_cache
def schema(
    *, keys: bool = True, values: bool = True, timestamps: bool = True, headers: bool = False
) -> pyarrow.Schema:
    """The schema of ``read_columns`` with the same arguments."""
    pa = load_pyarrow()
    fields = [pa.field("offset", pa.int64(), nullable=False)]
    if timestamps:
        fields.append(pa.field("timestamp", pa.int64(), nullable=False))
    if keys:
        fields.append(pa.field("key", pa.binary()))
    if values:
        fields.append(pa.field("value", pa.binary()))
    if headers:
        header = pa.struct(
            [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
        )
        fields.append(pa.field("headers", pa.list_(header), nullable=False))
    return pa.schema(fields)


def read_columns(
    data: Buffer,
    *,
    from_offset: int = 0,
    end_offset: int = MAX_OFFSET,
    keys: bool = True,
    values: bool = True,
    timestamps: bool = True,
    headers: bool = False,
    check_crc: bool = True,
    include_control: bool = False,
    decompressed_limit: int = UNPACKED_MAX,
    aborted: Sequence[tuple[int, int, int]] = (),
    path: str = "",
    base_position: int = 0,
) -> pyarrow.RecordBatch:
    """The records of the batches in ``data``, as ``format.reader.read_records`` reads them.

    Raises:
        CorruptBatchError: a batch is damaged; ``path`` and ``base_position`` place it in a file.
        ResultTooLargeError: the keys, the values or the headers do not fit a column of 2 GiB.
    """
    bounds = ReadBounds(from_offset, end_offset, check_crc, include_control, aborted)
    builder = ColumnBuilder(keys, values, timestamps, headers, _COLUMN_BYTES_MAX)
    try:
        position, status = fill_columns(data, 0, builder, _ALL, _ALL, bounds, decompressed_limit)
    except CorruptBatchError as error:
        raise error.located(path, base_position) from None
    if status == DECODE_FULL:
        raise ResultTooLargeError(
            f"only the first {position} of {len(data)} bytes fit one Arrow record batch: a column "
            f"holds at most {_COLUMN_BYTES_MAX} bytes. Read with a smaller max_bytes, or use "
            "PartitionLog.to_arrow, which yields several record batches"
        )
    return to_record_batch(builder, keys, values, timestamps, headers)


def to_record_batch(
    builder: ColumnBuilder, keys: bool, values: bool, timestamps: bool, headers: bool
) -> pyarrow.RecordBatch:
    """Move the content of ``builder`` into Arrow arrays without a copy; it is empty afterwards.

    The four flags are those of the builder.
    """
    pa = load_pyarrow()
    rows = builder.rows
    buffers: dict[str, Any] = {
        name: None if buffer is None else pa.py_buffer(buffer)
        for name, buffer in builder.finish().items()
    }

    def strings(name: str, kind: pyarrow.DataType, count: int) -> pyarrow.Array:
        parts = [buffers.get(f"{name}_{part}") for part in ("validity", "offsets", "data")]
        return pa.Array.from_buffers(kind, count, parts)

    arrays = [pa.Array.from_buffers(pa.int64(), rows, [None, buffers["offsets"]])]
    if timestamps:
        arrays.append(pa.Array.from_buffers(pa.int64(), rows, [None, buffers["timestamps"]]))
    if keys:
        arrays.append(strings("key", pa.binary(), rows))
    if values:
        arrays.append(strings("value", pa.binary(), rows))
    fields = schema(keys=keys, values=values, timestamps=timestamps, headers=headers)
    if headers:
        count = buffers["header_name_offsets"].size // 4 - 1
        pairs = pa.StructArray.from_arrays(
            [
                _as_text(strings("header_name", pa.binary(), count)),
                strings("header_value", pa.binary(), count),
            ],
            fields=list(fields.field("headers").type.value_type),
        )
        kind = fields.field("headers").type
        arrays.append(
            pa.Array.from_buffers(
                kind, rows, [None, buffers["header_list_offsets"]], children=[pairs]
            )
        )
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


def _as_text(names: pyarrow.Array) -> pyarrow.Array:
    """Header keys as strings; what is not UTF-8 is replaced, as Kafka's reader does."""
    pa = load_pyarrow()
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [name.decode("utf-8", "replace") for name in names.to_pylist()]
        return pa.array(decoded, pa.string())
