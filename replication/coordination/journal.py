"""The file of the embedded coordinator: a snapshot of the tree, then frames of transactions.

A frame is a header of 32 bytes, big-endian, and a body::

    4   magic ``LSc2`` (snapshot, the first frame) or ``LSt2`` (transactions)
    4   length of the body
    8   position of the frame in the file
    8   zxid: the number of the last transaction in it
    4   CRC-32C of the body
    4   CRC-32C of the 28 bytes before

A frame is durable before any of its transactions is answered, and nothing is written behind one
that is not. So bytes at the end that are no frame are the rest of unanswered writes, and are cut. A
bad frame with a good one after it is damage. The file is replaced by a new snapshot when its
transactions outweigh the old one, so it stays within a small multiple of the tree.

Earlier files have ``LSc1`` and ``LSt1``, which know no sessions and no times, and have one
transaction a frame. They are read.
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
from replication.coordination.tree import (
    Change,
    SessionChange,
    Tree,
    TreeChange,
    TreeEntry,
    TreeSnapshot,
    TreeTransaction,
)

FILE_NAME = "coordinator.journal"
COMPACT_BYTES = 4 << 20  # transactions below this are never worth a new snapshot

_SNAPSHOT, _TRANSACTIONS = b"LSc2", b"LSt2"
_SNAPSHOT_1, _TRANSACTION_1 = b"LSc1", b"LSt1"
_MAGICS = (_SNAPSHOT, _TRANSACTIONS, _SNAPSHOT_1, _TRANSACTION_1)
_HEADER = struct.Struct(">4sIQqI")
_CRC = struct.Struct(">I")
_HEADER_SIZE = _HEADER.size + _CRC.size
_CHANGE = struct.Struct(">BqHI")  # kind, owner, length of path, length of data
_ENTRY_1 = struct.Struct(">qqqqHI")  # version, czxid, owner, created, lengths as above
# The same, then mzxid, pzxid, ctime and mtime. Without a path it is a session: its timeout in the
# place of the version, its id in that of the czxid, its password as data.
_ENTRY = struct.Struct(">qqqqqqqqHI")
_BATCHED = struct.Struct(">qqI")  # zxid, wall time in ms, length of the changes
_TIMEOUT = struct.Struct(">i")
_KINDS = (EventKind.CREATED, EventKind.CHANGED, EventKind.DELETED)
_SESSION = len(_KINDS)  # the kind of a session's change: without a path, its owner is the session

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
        self._file: File | None = None
        self.replace(tree.snapshot())

    @property
    def is_outweighed(self) -> bool:
        """Whether a new snapshot is due."""
        return self.size - self._snapshot_end > max(COMPACT_BYTES, self._snapshot_end)

    def append(self, transactions: Sequence[TreeTransaction]) -> None:
        """Write transactions in one frame. Durable on return."""
        assert self._file is not None
        body = b"".join(map(_encode_transaction, transactions))
        frame = _encode_frame(_TRANSACTIONS, self.size, transactions[-1].zxid, body)
        self._file.write_at(self.size, frame)
        self._file.sync()
        self.size += len(frame)

    def replace(self, snapshot: TreeSnapshot) -> None:
        """Replace the file by a snapshot. Durable on return."""
        self.close()
        frame = _encode_frame(_SNAPSHOT, 0, snapshot.zxid, _encode_snapshot(snapshot))
        replace_file(self._storage, self.path, frame)
        self._file, self._snapshot_end = self._storage.open(self.path), len(frame)
        self.size = self._snapshot_end

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


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
    if frame is None or frame.magic not in (_SNAPSHOT, _SNAPSHOT_1):
        raise CorruptStoreError(path, 0, "no snapshot at its beginning")
    position, tree = 0, Tree()
    try:
        _load_snapshot(tree, frame)
        position = frame.end
        while (frame := _frame_at(data, position)) is not None:
            for transaction in _decode_transactions(frame):
                tree.replay(transaction)
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
    if place != position or magic not in _MAGICS:
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
    while (position := data.find(_TRANSACTIONS[:3], position)) >= 0:
        if _header_at(memoryview(data), position) is not None:
            return position
        position += 1
    return None


# --- bodies


def _encode_transaction(transaction: TreeTransaction) -> bytes:
    parts: list[bytes] = []
    for change in transaction.changes:
        if isinstance(change, SessionChange):
            kind, owner, name = _SESSION, change.session_id, b""
            data = _TIMEOUT.pack(change.timeout_ms) + change.password
        else:
            kind, owner = _KINDS.index(change.kind), change.owner
            name, data = change.path.encode(), change.data
        parts += (_CHANGE.pack(kind, owner, len(name), len(data)), name, data)
    size = sum(map(len, parts))
    return b"".join((_BATCHED.pack(transaction.zxid, transaction.time_ms, size), *parts))


def _decode_transactions(frame: _Frame) -> Iterator[TreeTransaction]:
    body, position, zxid = frame.body, 0, 0
    if frame.magic == _TRANSACTION_1:
        yield TreeTransaction(frame.zxid, 0, _decode_changes(body))
        return
    if frame.magic != _TRANSACTIONS:
        raise ValueError("a second snapshot")
    while position < len(body):
        if position + _BATCHED.size > len(body):
            raise ValueError("a transaction is cut short")
        zxid, time_ms, size = _BATCHED.unpack_from(body, position)
        begin = position + _BATCHED.size
        position = begin + size
        if position > len(body):
            raise ValueError("a transaction is cut short")
        yield TreeTransaction(zxid, time_ms, _decode_changes(body[begin:position]))
    if zxid != frame.zxid:
        raise ValueError(f"transaction {zxid} at the end of a frame up to {frame.zxid}")


def _decode_changes(body: memoryview) -> list[Change]:
    changes: list[Change] = []
    for (kind, owner), path, data in _records(_CHANGE, body):
        if kind < len(_KINDS) and path:
            changes.append(TreeChange(_KINDS[kind], path, data, owner))
        elif kind == _SESSION and not path and len(data) >= _TIMEOUT.size:
            (timeout_ms,) = _TIMEOUT.unpack_from(data)
            changes.append(SessionChange(owner, timeout_ms, data[_TIMEOUT.size :]))
        else:
            raise ValueError(f"a change of kind {kind}")
    return changes


def _encode_snapshot(snapshot: TreeSnapshot) -> bytes:
    parts: list[bytes] = []
    for path, (node, created, *rest) in sorted(snapshot.entries.items()):
        name = path.encode()
        fields = (node.version, node.czxid, node.ephemeral_owner, created, *rest)
        parts += (_ENTRY.pack(*fields, len(name), len(node.data)), name, node.data)
    for session_id, timeout_ms, password in snapshot.sessions.values():
        fields = (timeout_ms, session_id, 0, 0, 0, 0, 0, 0)
        parts += (_ENTRY.pack(*fields, 0, len(password)), password)
    return b"".join(parts)


def _load_snapshot(tree: Tree, frame: _Frame) -> None:
    layout = _ENTRY if frame.magic == _SNAPSHOT else _ENTRY_1
    for (version, czxid, owner, created, *rest), path, data in _records(layout, frame.body):
        if not path and version > 0:
            tree.sessions[czxid] = SessionChange(czxid, version, data)
            continue
        if path != "/" and (path in tree.entries or parent_of(path) not in tree.entries):
            raise ValueError(f"the snapshot has no place for {path}")
        node = Node(data, version, czxid, owner)
        tree.put(path, TreeEntry(node, created, *(rest or (czxid, czxid))))
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
