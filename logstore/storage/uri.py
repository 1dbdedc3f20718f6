"""From a path or a URI to the storage that holds it."""

from __future__ import annotations

from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage


def open_storage(uri: str) -> tuple[Storage, str]:
    """The storage behind ``uri``, and the path in it; a plain path is local."""
    return LocalStorage(), uri
