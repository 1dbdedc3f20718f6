"""The seam to coordination: a tree of versioned nodes with sessions, as ZooKeeper's.

One `Coordinator` is one *session*. A node belongs to a path such as ``/brokers/ids/1``, has bytes
and a version that starts at 0 and grows by 1 with every ``set``. An *ephemeral* node lives as long
as the session that made it. All writes of all sessions have one order; ``czxid`` is the place in it
at which a node was created: strictly increasing over the life of the store, restarts included, and
so fit to be a broker epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

ANY_VERSION = -1
MAX_DATA_BYTES = 1_000_000  # ZooKeeper's jute.maxbuffer of 0xfffff bytes, and room for a path
MAX_PATH_BYTES = 4096


class Node(NamedTuple):
    """What ``get`` answers; ``ephemeral_owner`` is a session id, or 0."""

    data: bytes
    version: int
    czxid: int
    ephemeral_owner: int


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
Result: TypeAlias = str | int | None


class EventKind(Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    MISSED = "missed"
    """The connection was lost meanwhile: anything at or below the watched path may have changed."""


class WatchEvent(NamedTuple):
    kind: EventKind
    path: str


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no answer from the store: the session may be alive or over
    EXPIRED = "expired"  # over, and this object with it


WatchListener: TypeAlias = Callable[[WatchEvent], None]
StateListener: TypeAlias = Callable[[SessionState], None]
Deliver: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs a notification now or later, in any thread. Called with no lock held; must not block."""


class Coordinator(Protocol):
    """One session. Safe for many threads.

    Every call may raise ``SessionExpiredError``, and ``CoordinatorUnavailableError`` after a
    bounded time; reads and refusals change nothing. A path that is not one, or data above
    ``MAX_DATA_BYTES``, is a ``ValueError``.
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
            parents: create missing parents too, persistent and empty. Not one step with the node:
                they may stay behind when the node is refused.
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
        ...

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """
        Raises:
            NoNodeError, BadVersionError, NotEmptyError
        """
        ...

    def children(self, path: str) -> list[str]:
        """Names of the children, sorted; empty too when there is no such node (``get`` tells)."""
        ...

    def transact(self, ops: Sequence[Op]) -> list[Result]:
        """Carry out all of ``ops`` in order as one step, or none of them.

        Each operation sees the ones before it. Raises what the first impossible one raises alone.
        """
        ...

    def watch(self, path: str, listener: WatchListener) -> None:
        """Tell ``listener`` of every change at or below ``path``, for as long as the session lives.

        The node need not exist. The event only says *that* something changed, and may come after
        further changes: the listener reads again. After a lost connection comes one ``MISSED``.
        """
        ...

    def on_state(self, listener: StateListener) -> None:
        """Tell ``listener`` of every later change of ``state``."""
        ...

    def close(self) -> None:
        """End the session: its ephemeral nodes go at once, or by its timeout when the store cannot
        be told. Idempotent. An expired session must be closed too. State listeners hear nothing.
        """
        ...


CoordinatorFactory: TypeAlias = Callable[[], Coordinator]
"""Begins a session. A broker gets this, and calls it again after an expiry."""


class CoordinatorService(Protocol):
    """What ``open_coordinator`` returns: the place where sessions come from."""

    def connect(self) -> Coordinator:
        """Begin a session.

        Raises:
            CoordinatorUnavailableError: after a bounded time.
        """
        ...

    def close(self) -> None:
        """Give back what the service itself holds, after its sessions were closed. Idempotent."""
        ...


@lru_cache(4096)  # the same few paths, again and again
def check_path(path: str) -> None:
    """
    Raises:
        ValueError: not an absolute path of plain names, as ZooKeeper wants them.
    """
    if path == "/":
        return
    names = path.split("/")
    if (
        names[0]
        or len(names) < 2
        or any(name in ("", ".", "..") for name in names[1:])
        or any(c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\uf8ff" or c >= "\ufff0"
               for c in path)
        or len(path.encode()) > MAX_PATH_BYTES
    ):  # fmt: skip
        raise ValueError(f"{path[:200]!r} is not a path of a node")


def check_data(data: bytes) -> None:
    """
    Raises:
        ValueError: more than ``MAX_DATA_BYTES``.
    """
    if len(data) > MAX_DATA_BYTES:
        raise ValueError(f"{len(data)} bytes of data; a node holds {MAX_DATA_BYTES}")


def check_op(op: Op) -> None:
    """
    Raises:
        ValueError: its path or its data.
    """
    if isinstance(op, Create) and op.sequential and op.path.endswith("/") and op.path != "/":
        check_path(op.path + "0")  # the digits alone are the name
    else:
        check_path(op.path)
    if isinstance(op, Create | Set):
        check_data(op.data)


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
