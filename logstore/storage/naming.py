"""Operations on names that only a local file system has: hard links and exchanges."""

from __future__ import annotations

import ctypes
import errno
import os

from logstore.storage.local import LocalStorage

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = frozenset(
    {errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK}
)


class NamingStorage(LocalStorage):
    """``LocalStorage`` with hard links and an atomic exchange of two names."""

    def link(self, source: str, target: str) -> bool:
        """Give a file a second name. False if the file system has no hard links.

        Raises:
            OSError: the medium refused.
        """
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return False
        return True

    def exchange(self, first: str, second: str) -> bool:
        """Exchange two names in one step (Linux ``renameat2``).

        Returns False, and changes nothing, if the system cannot do that.

        Raises:
            OSError: the medium refused.
        """
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is None:
            return False
        paths = (os.fsencode(first), os.fsencode(second))
        if rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
            return True
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            return False
        raise OSError(number, os.strerror(number), first, None, second)


__all__ = ["NamingStorage"]
