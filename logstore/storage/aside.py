"""What has the name of a file of ours and is none gets out of the way, and stays."""

from __future__ import annotations

import itertools

from logstore.storage.base import Storage

ASIDE_SUFFIX = ".aside"
"""At the end of the name, or followed by a number. Kafka passes such names over."""


def move_aside(storage: Storage, path: str) -> str:
    """Rename it; the new path. It may be somebody's, so it is neither followed nor removed.

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
