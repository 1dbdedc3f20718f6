"""Why a mirror does not go on, as a whole or in one partition."""

from __future__ import annotations

from checkpoints.printable import printable
from replication.common.errors import ReplicationError


class MirrorRefusedError(ReplicationError):
    """A directory is no mirror of this source, or no mirror any more. Nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{printable(path)}: {reason}")
        self.path, self.reason = path, reason


class SourceUnreachableError(ReplicationError):
    """No broker of the source can be asked. The text says of each why."""

    retriable = True


class SourceContradictsError(ReplicationError):
    """What the source says of a partition contradicts what it has said before. The partition is
    left as it is, and tried again later."""

    retriable = True


__all__ = ["MirrorRefusedError", "SourceContradictsError", "SourceUnreachableError"]
