"""The seam to coordination: a tree of versioned nodes with sessions, as ZooKeeper's.

One `Coordinator` is one *session*. A node belongs to a path such as ``/brokers/ids/1``, has bytes
and a version that starts at 0 and grows by 1 with every ``set``. An *ephemeral* node lives as long
as the session that made it. All writes of all sessions have one order; ``czxid`` is the place in it
at which a node was created: strictly increasing over the life of the store, restarts included, and
so fit to be a broker epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

ANY_VERSION = -1
MAX_DATA_BYTES = 1_000_000  # ZooKeeper's jute.maxbuffer of 0xfffff bytes, minus room for a path
MAX_PATH_BYTES = 4096
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class Node(NamedTuple):
    """A node as ``get`` returns it.

    Attributes:
        ephemeral_owner: a session id, or 0.
        removed_children: how many children it has lost. A node that has none, and lost none, never
            had any.
    """

    data: bytes
    version: int
    czxid: int
    ephemeral_owner: int
    removed_children: int = 0


class Create(NamedTuple):
    """Create a node; in ``transact`` the result is its real path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class Set(NamedTuple):
    """Replace the data; the result is the new version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Delete a node without children; the result is ``None``."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Demand a version (−1: that the node exists); the result is ``None``."""

    path: str
    version: int


Op: TypeAlias = Create | Set | Delete | Check
OpResult: TypeAlias = str | int | None


class EventKind(Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    MISSED = "missed"
    """The connection was lost, so anything at or below the watched path may have changed."""


class WatchEvent(NamedTuple):
    kind: EventKind
    path: str


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no answer from the store; the session may be alive or over
    EXPIRED = "expired"  # over, and this object with it


WatchListener: TypeAlias = Callable[[WatchEvent], None]
StateListener: TypeAlias = Callable[[SessionState], None]
Deliver: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs a notification now or later, on any thread. Called without locks; must not block."""


class Coordinator(Protocol):
    """One session. Safe for many threads.

    Every call may raise ``SessionExpiredError``, and ``CoordinatorUnavailableError`` after a
    bounded time. Reads and refusals change nothing. An invalid path, or data above
    ``MAX_DATA_BYTES``, is a ``ValueError``. A subclass inherits ``set`` and ``delete``.
    """

    @property
    def session_id(self) -> int:
        """Positive or negative, never 0; unique over the life of the store."""
        ...

    @property
    def state(self) -> SessionState: ...

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> tuple[str, int]:
        """Create a node and return its real path and czxid.

        Args:
            sequential: append ten digits, larger than those of any earlier sibling.
            parents: create missing parents too, persistent and empty. This is not atomic: they may
                stay if the node is refused.
        Raises:
            NoNodeError: the parent is missing.
            NodeExistsError, NoChildrenForEphemeralsError
        """
        ...

    def get(self, path: str) -> Node | None:
        """The node, or ``None`` when there is none."""
        ...

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace the data if ``version`` is the current one (−1: any); return the new version.

        Raises:
            NoNodeError, BadVersionError
        """
        (result,) = self.transact([Set(path, data, version)])
        assert isinstance(result, int)
        return result

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """
        Raises:
            NoNodeError, BadVersionError, NotEmptyError
        """
        self.transact([Delete(path, version)])

    def children(self, path: str) -> list[str]:
        """Sorted names of the children. Empty also if the node does not exist (see ``get``)."""
        ...

    def transact(self, ops: Sequence[Op]) -> list[OpResult]:
        """Carry out all of ``ops`` in order as one step, or none of them.

        Each operation sees the ones before it. Raises what the first impossible one would raise
        alone.
        """
        ...

    def watch(self, path: str, listener: WatchListener) -> None:
        """Call ``listener`` for every change at or below ``path`` while the session lives.

        The node need not exist. The event only says *that* something changed, and may come after
        further changes, so the listener reads again. A lost connection gives one ``MISSED``.
        """
        ...

    def on_state(self, listener: StateListener) -> None:
        """Call ``listener`` for every later change of ``state``."""
        ...

    def close(self) -> None:
        """End the session.

        Its ephemeral nodes are removed at once, or by its timeout if the store cannot be reached.
        Idempotent. An expired session must be closed too. State listeners are not called.
        """
        ...


CoordinatorFactory: TypeAlias = Callable[[], Coordinator]
"""Begins a session. A broker calls it again after an expiry."""


class CoordinatorService(Protocol):
    """A source of sessions, returned by ``open_coordinator``."""

    def connect(self) -> Coordinator:
        """Begin a session.

        Raises:
            CoordinatorUnavailableError: no answer within a bounded time.
        """
        ...

    def close(self) -> None:
        """Release what the service itself holds, after its sessions were closed. Idempotent."""
        ...


@lru_cache(4096)  # the same few paths, again and again
def check_path(path: str) -> None:
    """
    Raises:
        ValueError: not an absolute path of plain names, as ZooKeeper requires.
    """
    if path == "/":
        return
    names = path.split("/")
    if (
        names[0]
        or len(names) < 2
        or any(name in ("", ".", "..") for name in names[1:])
        or _NOT_IN_NAMES.search(path)
        or len(path.encode()) > MAX_PATH_BYTES
    ):
        raise ValueError(f"{path[:200]!r} is not a path of a node")


def check_op(op: Op) -> None:
    """
    Raises:
        ValueError: the path or the data is invalid.
    """
    if isinstance(op, Create) and op.sequential and op.path.endswith("/") and op.path != "/":
        check_path(op.path + "0")  # the digits alone are the name
    else:
        check_path(op.path)
    if isinstance(op, Create | Set) and len(op.data) > MAX_DATA_BYTES:
        raise ValueError(f"{len(op.data)} bytes of data; a node holds {MAX_DATA_BYTES}")


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


@lru_cache(4096)
def ancestors_of(path: str) -> tuple[str, ...]:
    """``path`` itself, its parent, and so on up to the root."""
    found = [path]
    while path != "/":
        path = parent_of(path)
        found.append(path)
    return tuple(found)
