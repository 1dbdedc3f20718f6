"""Refusals of a coordinator, and damage.

CoordinationError
├── NoNodeError, NodeExistsError, BadVersionError, NotEmptyError   nothing was changed
├── NoChildrenForEphemeralsError                                   nothing was changed
├── NotPermittedError              a node's access list keeps this session out
├── SessionExpiredError            the session is over: connect again, with a new object
├── CoordinatorUnavailableError    no answer; whether a write was carried out is unknown
├── CoordinatorWentBackError       as before, because the store is at an older state than it was
├── CorruptNodeError               the bytes of a node are not what its path promises
└── CorruptStoreError              the embedded store's file is damaged before its end
"""

from __future__ import annotations

from checkpoints.printable import printable
from logstore.common.errors import CorruptDataError, LogstoreError


class CoordinationError(LogstoreError):
    """The base class, itself used for answers of a coordinator that fit no other class."""


class _PathError(CoordinationError):
    """A refusal because of one node; nothing was changed."""

    reason = ""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def _text(self) -> str:
        return f"{printable(self.path)}: {self.reason}"


class NoNodeError(_PathError):
    """The node, or the parent of one to be created, does not exist."""

    reason = "does not exist"


class NodeExistsError(_PathError):
    reason = "exists already"


class BadVersionError(_PathError):
    """A compare-and-set came too late, because the node has changed."""

    reason = "has another version"


class NotEmptyError(_PathError):
    reason = "has children"


class NoChildrenForEphemeralsError(_PathError):
    reason = "its parent is ephemeral and has no children"


class NotPermittedError(_PathError):
    """The access list of a node keeps this session out; nothing was changed."""

    reason = "is not for this session"


class SessionExpiredError(CoordinationError):
    """The session ended, by ``close`` or by its timeout, and its ephemeral nodes with it."""


class CoordinatorUnavailableError(CoordinationError):
    """No answer. May be retried; whether a write was carried out is unknown."""


class CoordinatorWentBackError(CoordinatorUnavailableError):
    """The store is at an older state than this process has seen, as after a restore.

    What was decided since is not in it, so an election by it could lose committed records. If that
    state is all there is, the next start of the process goes by it.
    """


class CorruptNodeError(_PathError):
    """The bytes of a node break its format."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path)
        self.args = (path, reason)  # survives pickling
        self.reason = reason


class CorruptStoreError(CoordinationError, CorruptDataError):
    """Damage before the end of the embedded store's file: nothing is cut, nothing is guessed."""
