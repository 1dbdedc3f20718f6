"""What an object store may answer, and what its objects may turn out to be.

Each error of a store says whether the request may have had an effect all the same: a put that
reported a failure may have taken place.
"""

from __future__ import annotations

import errno

from checkpoints.files import UnusableFileError
from checkpoints.printable import printable
from logstore.common.errors import LogstoreError


class StoreError(LogstoreError):
    """A request to an object store failed.

    ``key`` names the object, or a prefix; ``store`` is the store's URI without credentials.
    ``may_have_effect`` says whether the store may have done what was asked nevertheless.
    """

    def __init__(
        self, key: str, reason: str, may_have_effect: bool = False, store: str = ""
    ) -> None:
        super().__init__(key, reason, may_have_effect, store)
        self.key, self.reason = key, reason
        self.may_have_effect, self.store = may_have_effect, store

    def _text(self) -> str:
        place = printable(f"{self.store}/{self.key}" if self.store else self.key)
        return f"{place}: {self.reason}"


class ObjectNotFoundError(StoreError):
    """No object has this key, or the bucket is missing."""


class ObjectExistsError(StoreError):
    """An object has this key already, and was to be put only where none is."""


class StoreThrottledError(StoreError):
    """The store asks for fewer requests: wait, then repeat."""


class StoreUnavailableError(StoreError):
    """The store did not answer, or failed: repeating may help."""


class StoreDeniedError(StoreError):
    """The store refuses these credentials; repeating does not help."""


class MalformedManifestError(StoreError):
    """A manifest, a segment's facts or a commit is not what its format says.

    ``reason`` names the field.
    """


class BrokenTierError(UnusableFileError):
    """A log in a store, or one of its objects, cannot be shown as it would be on a disk.

    An offset is in no object, an object is shorter than its manifest says, or it is encrypted.
    ``filename`` names the partition or the object, ``reason`` the offsets and what to do.
    """

    def __init__(self, number: int, reason: str, path: str) -> None:
        super().__init__(number, reason, path)


def broken(path: str, reason: str) -> BrokenTierError:
    return BrokenTierError(errno.EINVAL, reason, path)


__all__ = [
    "BrokenTierError",
    "MalformedManifestError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "StoreDeniedError",
    "StoreError",
    "StoreThrottledError",
    "StoreUnavailableError",
    "broken",
]
