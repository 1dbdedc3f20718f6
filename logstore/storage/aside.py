"""Rename an entry that has the name of one of our files but cannot be that file."""

from __future__ import annotations

import itertools

from logstore.storage.base import Storage

ASIDE_SUFFIX = ".aside"
"""The suffix of such names, perhaps followed by a number. Kafka ignores them."""


def move_aside(storage: Storage, path: str) -> str:
    """Rename an entry, and return the new path. It may belong to a user, so it is not removed.

    Raises:
        OSError: the medium refused.
    """
    for number in itertools.count():
        aside = f"{path}{ASIDE_SUFFIX}.{number}" if number else path + ASIDE_SUFFIX
        if storage.info(aside) is None:
            storage.rename(path, aside)
            return aside
    raise AssertionError("unreachable")


__all__ = ["ASIDE_SUFFIX", "move_aside"]
