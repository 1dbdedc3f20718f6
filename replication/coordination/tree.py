"""The tree of the embedded coordinator in memory: which operations are legal, and what they do.

No locks, no disk, no sessions: `CoordinatorStore` has those. An operation becomes *changes*, which
the journal stores. Applying the same changes gives the same tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from replication.coordination.base import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EventKind,
    Node,
    Op,
    OpResult,
    Set,
    parent_of,
)
from replication.coordination.errors import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

_Key = TypeVar("_Key", str, int)


class TreeChange(NamedTuple):
    """One node created, changed or deleted; data and owner are empty where they do not apply."""

    kind: EventKind
    path: str
    data: bytes = b""
    owner: int = 0


class SessionChange(NamedTuple):
    """A session that outlives connections and processes begins; without a timeout, it ends."""

    session_id: int
    timeout_ms: int = 0
    password: bytes = b""


Change: TypeAlias = TreeChange | SessionChange


class TreeTransaction(NamedTuple):
    """What is durable as a whole."""

    zxid: int
    time_ms: int
    changes: Sequence[Change]


class TreeEntry(NamedTuple):
    """A node, and what else ZooKeeper says of one.

    Attributes:
        created: how many children it ever had, which numbers the next sequential one.
        mzxid, pzxid: the transactions of its last change, and of the last child that came or went.
        ctime_ms, mtime_ms: wall time of its creation and of its last change.
    """

    node: Node
    created: int = 0
    mzxid: int = 0
    pzxid: int = 0
    ctime_ms: int = 0
    mtime_ms: int = 0


class Stat(NamedTuple):
    """ZooKeeper's ``Stat``: its fields in their order."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class TreeSnapshot(NamedTuple):
    """All of a tree, which later changes leave as it is."""

    zxid: int
    entries: dict[str, TreeEntry]
    sessions: dict[int, SessionChange]


class Tree:
    """The tree.

    Attributes:
        zxid: the number of the last transaction.
        sessions: those that outlive a process, by their ids.
    """

    def __init__(self) -> None:
        self.zxid = 0
        self.entries: dict[str, TreeEntry] = {}
        self.sessions: dict[int, SessionChange] = {}
        self._children: dict[str, set[str]] = {}
        self._owned: dict[int, set[str]] = {}
        self.put("/", TreeEntry(Node(b"", 0, 0, 0)))

    def put(self, path: str, entry: TreeEntry) -> None:
        """Add or replace a node. Its parent exists."""
        self.entries[path] = entry
        if path != "/":
            self._children.setdefault(parent_of(path), set()).add(path.rpartition("/")[2])
        if entry.node.ephemeral_owner:
            self._owned.setdefault(entry.node.ephemeral_owner, set()).add(path)

    def get(self, path: str) -> Node | None:
        entry = self.entries.get(path)
        if entry is None:
            return None
        removed = entry.created - len(self._children.get(path, ()))
        return entry.node._replace(removed_children=removed) if removed else entry.node

    def stat(self, path: str) -> Stat | None:
        entry = self.entries.get(path)
        if entry is None:
            return None
        data, version, czxid, owner, _ = entry.node
        children = len(self._children.get(path, ()))
        cversion = 2 * entry.created - children  # each child that came, and each that went
        _, _, mzxid, pzxid, ctime, mtime = entry
        return Stat(
            czxid, mzxid, ctime, mtime, version, cversion, 0, owner, len(data), children, pzxid
        )

    def snapshot(self) -> TreeSnapshot:
        return TreeSnapshot(self.zxid, dict(self.entries), dict(self.sessions))

    def children(self, path: str) -> list[str]:
        return sorted(self._children.get(path, ()))

    def ephemerals(self, owner: int | None = None) -> list[str]:
        """Paths of the ephemeral nodes of one session, or of all."""
        owners: Iterable[int] = self._owned if owner is None else (owner,)
        return sorted(path for each in owners for path in self._owned.get(each, ()))

    def execute(
        self,
        ops: Sequence[Op],
        session: int,
        time_ms: int = 0,
        stats: list[Stat | None] | None = None,
    ) -> tuple[list[OpResult], list[TreeChange]]:
        """Carry out ``ops`` as the next transaction; all or nothing.

        Args:
            stats: gets the node of each operation, as it is right after it. If one is refused, as
                many are there as were possible before it.
        Raises:
            NoNodeError, NodeExistsError, BadVersionError, NotEmptyError,
            NoChildrenForEphemeralsError: the tree is as it was.
        """
        results: list[OpResult] = []
        changes: list[TreeChange] = []
        undo: list[Callable[[], None]] = []
        try:
            for op in ops:
                result, change = self._resolve(op, session)
                results.append(result)
                if change is not None:
                    undo.append(self._apply(change, self.zxid + 1, time_ms))
                    changes.append(change)
                if stats is not None:
                    stats.append(self.stat(op.path if change is None else change.path))
        except BaseException:
            for revert in reversed(undo):
                revert()
            raise
        if changes:
            self.zxid += 1
        return results, changes

    def begin_session(self, timeout_ms: int, password: bytes) -> SessionChange:
        """Begin a session as the next transaction, whose number is its id."""
        self.zxid += 1
        begun = self.sessions[self.zxid] = SessionChange(self.zxid, timeout_ms, password)
        return begun

    def end_session(self, session_id: int, time_ms: int) -> list[Change]:
        """End a session and remove its ephemeral nodes as the next transaction."""
        deletions = [Delete(path) for path in self.ephemerals(session_id)]
        _, changes = self.execute(deletions, session_id, time_ms)
        if not changes:
            self.zxid += 1
        self.sessions.pop(session_id, None)
        return [*changes, SessionChange(session_id)]

    def replay(self, transaction: TreeTransaction) -> None:
        """Apply a transaction of the journal.

        Raises:
            ValueError: it does not apply to this tree.
        """
        zxid, time_ms, changes = transaction
        if zxid != self.zxid + 1:
            raise ValueError(f"transaction {zxid} after {self.zxid}")
        for change in changes:
            if isinstance(change, SessionChange):
                self._replay_session(change, zxid)
                continue
            exists = change.path in self.entries
            parent = parent_of(change.path)
            if change.kind is EventKind.CREATED:
                possible = not exists and parent in self.entries
            elif change.kind is EventKind.DELETED:
                possible = exists and change.path != "/" and not self._children.get(change.path)
            else:
                possible = exists
            if not possible:
                raise ValueError(f"transaction {zxid}: {change.path} cannot be {change.kind.value}")
            self._apply(change, zxid, time_ms)
        self.zxid = zxid

    def _replay_session(self, change: SessionChange, zxid: int) -> None:
        if change.timeout_ms > 0 and change.session_id == zxid:
            self.sessions[zxid] = change
        elif change.timeout_ms or self.sessions.pop(change.session_id, None) is None:
            raise ValueError(f"transaction {zxid}: session {change.session_id} is not there")

    def _resolve(self, op: Op, session: int) -> tuple[OpResult, TreeChange | None]:
        if isinstance(op, Create):
            path = self._path_for(op)
            owner = session if op.ephemeral else 0
            return path, TreeChange(EventKind.CREATED, path, op.data, owner)
        entry = self.entries.get(op.path)
        if entry is None:
            raise NoNodeError(op.path)
        if op.version not in (ANY_VERSION, entry.node.version):
            raise BadVersionError(op.path)
        if isinstance(op, Check):
            return None, None
        if isinstance(op, Set):
            return entry.node.version + 1, TreeChange(EventKind.CHANGED, op.path, op.data)
        if op.path == "/" or self._children.get(op.path):
            raise NotEmptyError(op.path)
        return None, TreeChange(EventKind.DELETED, op.path)

    def _path_for(self, op: Create) -> str:
        parent = self.entries.get(parent_of(op.path))
        if parent is None:
            raise NoNodeError(parent_of(op.path))
        path = f"{op.path}{parent.created:010d}" if op.sequential else op.path
        if path in self.entries:
            raise NodeExistsError(path)
        if parent.node.ephemeral_owner:
            raise NoChildrenForEphemeralsError(path)
        return path

    def _apply(self, change: TreeChange, zxid: int, time_ms: int) -> Callable[[], None]:
        """Apply a change, and return a function that undoes it."""
        path, parent_path = change.path, parent_of(change.path)
        before, parent = self.entries.get(path), self.entries[parent_path]
        if change.kind is EventKind.CREATED:
            self.entries[parent_path] = parent._replace(created=parent.created + 1, pzxid=zxid)
            node = Node(change.data, 0, zxid, change.owner)
            self.put(path, TreeEntry(node, 0, zxid, zxid, time_ms, time_ms))

            def undo_create() -> None:
                self._remove(path)
                self.entries[parent_path] = parent

            return undo_create
        assert before is not None
        if change.kind is EventKind.DELETED:
            self._remove(path)
            self.entries[parent_path] = parent._replace(pzxid=zxid)

            def undo_delete() -> None:
                self.put(path, before)
                self.entries[parent_path] = parent

            return undo_delete
        node = before.node._replace(data=change.data, version=before.node.version + 1)
        self.entries[path] = before._replace(node=node, mzxid=zxid, mtime_ms=time_ms)
        return lambda: self.put(path, before)

    def _remove(self, path: str) -> None:
        entry = self.entries.pop(path)
        _discard(self._children, parent_of(path), path.rpartition("/")[2])
        if entry.node.ephemeral_owner:
            _discard(self._owned, entry.node.ephemeral_owner, path)

    def __iter__(self) -> Iterator[tuple[str, TreeEntry]]:
        """All nodes, parents before their children."""
        return iter(sorted(self.entries.items()))


def _discard(sets: dict[_Key, set[str]], key: _Key, value: str) -> None:
    values = sets[key]
    values.discard(value)
    if not values:
        del sets[key]
