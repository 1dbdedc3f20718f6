"""The tree of the embedded coordinator in memory: which operations are legal, and what they do.

No locks, no disk, no sessions: `CoordinatorStore` has those. An operation becomes *changes*, which
the journal stores. Applying the same changes gives the same tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from replication.coordination.base import (
    ANY_VERSION,
    Check,
    Create,
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


class TreeEntry(NamedTuple):
    """A node, and how many children it ever had, which numbers the next sequential one."""

    node: Node
    created: int = 0


class Tree:
    """The tree. ``zxid`` is the number of the last transaction."""

    def __init__(self) -> None:
        self.zxid = 0
        self.entries: dict[str, TreeEntry] = {}
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

    def children(self, path: str) -> list[str]:
        return sorted(self._children.get(path, ()))

    def ephemerals(self, owner: int | None = None) -> list[str]:
        """Paths of the ephemeral nodes of one session, or of all."""
        owners: Iterable[int] = self._owned if owner is None else (owner,)
        return sorted(path for each in owners for path in self._owned.get(each, ()))

    def execute(self, ops: Sequence[Op], session: int) -> tuple[list[OpResult], list[TreeChange]]:
        """Carry out ``ops`` as the next transaction; all or nothing.

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
                    undo.append(self._apply(change, self.zxid + 1))
                    changes.append(change)
        except BaseException:
            for revert in reversed(undo):
                revert()
            raise
        if changes:
            self.zxid += 1
        return results, changes

    def replay(self, zxid: int, changes: Iterable[TreeChange]) -> None:
        """Apply a transaction of the journal.

        Raises:
            ValueError: it does not apply to this tree.
        """
        if zxid != self.zxid + 1:
            raise ValueError(f"transaction {zxid} after {self.zxid}")
        for change in changes:
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
            self._apply(change, zxid)
        self.zxid = zxid

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

    def _apply(self, change: TreeChange, zxid: int) -> Callable[[], None]:
        """Apply a change, and return a function that undoes it."""
        path = change.path
        before = self.entries.get(path)
        if change.kind is EventKind.CREATED:
            parent_path = parent_of(path)
            parent = self.entries[parent_path]
            self.entries[parent_path] = parent._replace(created=parent.created + 1)
            self.put(path, TreeEntry(Node(change.data, 0, zxid, change.owner)))

            def undo_create() -> None:
                self._remove(path)
                self.entries[parent_path] = parent

            return undo_create
        assert before is not None
        if change.kind is EventKind.DELETED:
            self._remove(path)
        else:
            node = before.node._replace(data=change.data, version=before.node.version + 1)
            self.entries[path] = before._replace(node=node)
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
