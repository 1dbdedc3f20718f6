"""The meaning of a refusal of the operating system, and whom it concerns.

Only what says that the medium fails takes a log directory offline, with all its logs. What concerns
one file takes one log offline, which the next start recovers; and what concerns a name or a
resource changes nothing. The table is complete: whatever it does not name may be the medium.
"""

from __future__ import annotations

import errno
from enum import Enum, auto
from typing import Final, NamedTuple

from checkpoints.files import UnusableFileError


class Concern(Enum):
    """Whom an error concerns, and so what is done."""

    CALLER = auto()  # the call is refused; everything goes on
    MACHINE = auto()  # descriptors or memory are short: ``ResourceBusyError``, to be tried again
    PARTITION = auto()  # this log is offline, or unavailable; the others of its directory go on
    DIRECTORY = auto()  # the directory is offline: what an earlier sync promised may not hold


class Meaning(NamedTuple):
    concern: Concern
    meaning: str


_CALLER, _MACHINE = Concern.CALLER, Concern.MACHINE
_PARTITION, _DIRECTORY = Concern.PARTITION, Concern.DIRECTORY

MEANINGS: Final[dict[int, Meaning]] = {
    errno.ENAMETOOLONG: Meaning(_CALLER, "the path does not fit the file system"),
    errno.EMFILE: Meaning(_MACHINE, "descriptors of the process are short"),
    errno.ENFILE: Meaning(_MACHINE, "descriptors of the machine are short"),
    errno.ENOMEM: Meaning(_MACHINE, "memory or mappings are short"),
    errno.EAGAIN: Meaning(_MACHINE, "memory that may be locked is short"),
    errno.ENOENT: Meaning(_PARTITION, "somebody has removed a file or directory of the log"),
    errno.ENOTDIR: Meaning(_PARTITION, "somebody has replaced the directory of the log"),
    errno.EISDIR: Meaning(_PARTITION, "a directory has the name of a file"),
    errno.EEXIST: Meaning(_PARTITION, "somebody has created a file of that name"),
    errno.ENOTEMPTY: Meaning(_PARTITION, "somebody has filled a directory of that name"),
    errno.ELOOP: Meaning(_PARTITION, "a link that leads to itself"),
    errno.EACCES: Meaning(_PARTITION, "permissions of a file or directory were changed"),
    errno.EPERM: Meaning(_PARTITION, "a file is immutable or append-only"),
    errno.EINVAL: Meaning(_PARTITION, "this file does not do that"),
    errno.EFBIG: Meaning(_PARTITION, "the file is larger than its format or a limit allows"),
    errno.EOVERFLOW: Meaning(_PARTITION, "the file is larger than can be told"),
    errno.EXDEV: Meaning(_PARTITION, "another file system is mounted inside the log"),
    errno.EMLINK: Meaning(_PARTITION, "the file has too many links"),
    errno.ETXTBSY: Meaning(_PARTITION, "the file is being executed"),
    errno.EBUSY: Meaning(_PARTITION, "the directory of the log is a mount point"),
    errno.EBADF: Meaning(_PARTITION, "the file was released beside the call"),
    errno.ESTALE: Meaning(_PARTITION, "the file was removed on its server, or beside the call"),
    errno.EIO: Meaning(_DIRECTORY, "the medium failed"),
    errno.EROFS: Meaning(_DIRECTORY, "mounted read-only, as after an error of the file system"),
    errno.ENODEV: Meaning(_DIRECTORY, "the device is gone"),
    errno.ENXIO: Meaning(_DIRECTORY, "the device is gone"),
    # An append may be there in part, and no later sync of anything here can be relied on.
    errno.ENOSPC: Meaning(_DIRECTORY, "the disk is full"),
    errno.EDQUOT: Meaning(_DIRECTORY, "the quota is used up"),
    errno.EUCLEAN: Meaning(_DIRECTORY, "the file system is damaged"),
    errno.EREMOTEIO: Meaning(_DIRECTORY, "the medium failed behind the network"),
    errno.ETIMEDOUT: Meaning(_DIRECTORY, "the medium behind the network does not answer"),
    errno.ENOLINK: Meaning(_DIRECTORY, "the way to the medium is cut"),
}


def concern_of(error: BaseException | None) -> Concern:
    """Whom an error or the first of its causes with an errno concerns; else the directory."""
    while error is not None:
        if isinstance(error, MemoryError):
            return Concern.MACHINE
        if isinstance(error, UnusableFileError):
            return Concern.PARTITION
        if isinstance(error, OSError) and error.errno is not None:
            known = MEANINGS.get(error.errno)
            return Concern.DIRECTORY if known is None else known.concern
        error = error.__cause__
    return Concern.DIRECTORY


def is_busy(error: BaseException | None) -> bool:
    """Whether descriptors or memory are short, while the disk works."""
    return concern_of(error) is Concern.MACHINE
