"""The file of the embedded coordinator: a snapshot of the tree, then one frame a transaction.

A frame is a header of 32 bytes, big-endian, and a body::

    4   magic ``LSc1`` (snapshot, the first frame) or ``LSt1`` (transaction)
    4   length of the body
    8   position of the frame in the file
    8   zxid: the transaction's number; of a snapshot, that of the last one in it
    4   CRC-32C of the body
    4   CRC-32C of the 28 bytes before

A transaction is durable before it is answered, and nothing is written behind one that is not. So
bytes at the end that are no frame are the rest of an unanswered write, and are cut. A bad frame
with a good one after it is damage. The file is replaced by a new snapshot when its transactions
outweigh the old one, so it stays within a small multiple of the tree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checkpoints.files import replace_file
from logstore.kernels import crc32c
from logstore.storage.base import File, Storage
from replication.coordination.base import EventKind, Node, parent_of
from replication.coordination.errors import CorruptStoreError
from replication.coordination.tree import Tree, TreeChange, TreeEntry

FILE_NAME = "coordinator.journal"
COMPACT_BYTES = 4 << 20  # transactions below this are never worth a new snapshot

_SNAPSHOT, _TRANSACTION = b"LSc1", b"LSt1"
_HEADER = struct.Struct(">4sIQqI")
_CRC = struct.Struct(">I")
_HEADER_SIZE = _HEADER.size + _CRC.size
_CHANGE = struct.Struct(">BqHI")  # kind, owner, length of path, length of data
_ENTRY = struct.Struct(">qqqqHI")  # version, czxid, owner, created, lengths as above
_KINDS = (EventKind.CREATED, EventKind.CHANGED, EventKind.DELETED)

assert _HEADER_SIZE == 32


class _Frame(NamedTuple):
    magic: bytes
    zxid: int
    body: memoryview
    end: int


class Journal:
    """The open file, for one user at a time.

    Every method may raise ``OSError``. The journal must not be used after that, since it is unknown
    what reached the disk (F-224).

    Opening replaces the file by a snapshot. That removes a torn end, and data of the old file that
    the system shows but that never reached the disk after a failed sync.
    """

    def __init__(self, storage: Storage, directory: str, tree: Tree) -> None:
        self.path = f"{directory}/{FILE_NAME}"
        self._storage = storage
        self._file, self._snapshot_end = self._replace(tree)
        self.size = self._snapshot_end

    def append(self, tree: Tree, changes: Sequence[TreeChange]) -> None:
        """Write the last transaction of ``tree``. Durable on return.

        When transactions outweigh the snapshot, a new one replaces the file.
        """
        frame = _encode_frame(_TRANSACTION, self.size, tree.zxid, _encode_changes(changes))
        self._file.write_at(self.size, frame)
        self._file.sync()
        self.size += len(frame)
        if self.size - self._snapshot_end > max(COMPACT_BYTES, self._snapshot_end):
            self._file.close()
            self._file, self._snapshot_end = self._replace(tree)
            self.size = self._snapshot_end

    def close(self) -> None:
        self._file.close()

    def _replace(self, tree: Tree) -> tuple[File, int]:
        frame = _encode_snapshot(tree)
        replace_file(self._storage, self.path, frame)
        return self._storage.open(self.path), len(frame)


def read_tree(storage: Storage, directory: str) -> Tree:
    """The tree in the file of ``directory``; an empty one without a file.

    Raises:
        CorruptStoreError: damage before the end.
        OSError: the disk failed.
    """
    path = f"{directory}/{FILE_NAME}"
    try:
        data = storage.read_file(path)
    except FileNotFoundError:
        return Tree()
    tree, position = _read(path, memoryview(data))
    later = _next_header(data, position + 1)
    if later is not None:
        raise CorruptStoreError(path, position, f"a bad frame, and a good one at {later}")
    return tree


def _read(path: str, data: memoryview) -> tuple[Tree, int]:
    """The tree, and where its last transaction ends."""
    frame = _frame_at(data, 0)
    if frame is None or frame.magic != _SNAPSHOT:
        raise CorruptStoreError(path, 0, "no snapshot at its beginning")
    position, tree = 0, Tree()
    try:
        _load_snapshot(tree, frame)
        position = frame.end
        while (frame := _frame_at(data, position)) is not None:
            if frame.magic != _TRANSACTION:
                raise ValueError("a second snapshot")
            tree.replay(frame.zxid, _decode_changes(frame.body))
            position = frame.end
    except ValueError as error:  # the checksum is right but the content is not
        raise CorruptStoreError(path, position, str(error)) from None
    return tree, position


# --- frames


def _encode_frame(magic: bytes, position: int, zxid: int, body: bytes) -> bytes:
    header = _HEADER.pack(magic, len(body), position, zxid, crc32c(body))
    return b"".join((header, _CRC.pack(crc32c(header)), body))


def _header_at(data: memoryview, position: int) -> tuple[bytes, int, int, int] | None:
    """Magic, length, zxid and CRC of the body, if there is a header with this position."""
    if position + _HEADER_SIZE > len(data):
        return None
    header = data[position : position + _HEADER.size]
    (crc,) = _CRC.unpack_from(data, position + _HEADER.size)
    if crc32c(header) != crc:
        return None
    magic, length, place, zxid, body_crc = _HEADER.unpack(header)
    if place != position or magic not in (_SNAPSHOT, _TRANSACTION):
        return None
    return magic, length, zxid, body_crc


def _frame_at(data: memoryview, position: int) -> _Frame | None:
    header = _header_at(data, position)
    if header is None:
        return None
    magic, length, zxid, crc = header
    begin = position + _HEADER_SIZE
    body = data[begin : begin + length]
    if len(body) != length or crc32c(body) != crc:
        return None
    return _Frame(magic, zxid, body, begin + length)


def _next_header(data: bytes, position: int) -> int | None:
    """The position of the next header.

    A header contains its position, so a copy of a journal inside the data of a node does not count.
    """
    while (position := data.find(_TRANSACTION, position)) >= 0:
        if _header_at(memoryview(data), position) is not None:
            return position
        position += 1
    return None


# --- bodies


def _encode_changes(changes: Sequence[TreeChange]) -> bytes:
    parts: list[bytes] = []
    for kind, path, data, owner in changes:
        name = path.encode()
        parts += (_CHANGE.pack(_KINDS.index(kind), owner, len(name), len(data)), name, data)
    return b"".join(parts)


def _decode_changes(body: memoryview) -> list[TreeChange]:
    changes = []
    for (kind, owner), path, data in _records(_CHANGE, body):
        if kind >= len(_KINDS):
            raise ValueError(f"a change of kind {kind}")
        changes.append(TreeChange(_KINDS[kind], path, data, owner))
    return changes


def _encode_snapshot(tree: Tree) -> bytes:
    parts: list[bytes] = []
    for path, (node, created) in tree:
        name = path.encode()
        fields = (node.version, node.czxid, node.ephemeral_owner, created)
        parts += (_ENTRY.pack(*fields, len(name), len(node.data)), name, node.data)
    return _encode_frame(_SNAPSHOT, 0, tree.zxid, b"".join(parts))


def _load_snapshot(tree: Tree, frame: _Frame) -> None:
    for (version, czxid, owner, created), path, data in _records(_ENTRY, frame.body):
        if path != "/" and (path in tree.entries or parent_of(path) not in tree.entries):
            raise ValueError(f"the snapshot has no place for {path}")
        tree.put(path, TreeEntry(Node(data, version, czxid, owner), created))
    tree.zxid = frame.zxid


def _records(
    layout: struct.Struct, body: memoryview
) -> Iterator[tuple[tuple[int, ...], str, bytes]]:
    """Fixed fields, path and data of each record; the last two fields are the lengths.

    Raises:
        ValueError: the body does not consist of such records.
    """
    position = 0
    while position < len(body):
        if position + layout.size > len(body):
            raise ValueError("a record is cut short")
        *fields, path_size, data_size = layout.unpack_from(body, position)
        middle = position + layout.size + path_size
        position = middle + data_size
        if position > len(body):
            raise ValueError("a record is cut short")
        path = str(body[middle - path_size : middle], "utf-8")
        yield tuple(fields), path, bytes(body[middle:position])
