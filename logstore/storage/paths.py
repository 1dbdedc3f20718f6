"""Paths that mean the same wherever the process goes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import TypeAlias

from logstore.common.errors import ConfigError
from logstore.storage.base import Storage

Paths: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One or several, as callers give them."""


def each_path(paths: Paths) -> list[str]:
    """A text is one path, and not one for each of its letters."""
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [os.fspath(each) for each in several]


def absolute_path(storage: Storage, path: str | os.PathLike[str]) -> str:
    """``path`` as it is meant now, whatever the working directory is later.

    Where it leads over links and ``..`` is left to each use. A storage that does not begin at the
    working directory, such as one in memory, keeps its own paths.

    Raises:
        ConfigError: the working directory was removed.
    """
    path = os.fspath(path)
    if path.startswith("/") or "://" in path:
        return path
    try:
        here = os.getcwd()
        if storage.real_path(".") != os.path.realpath(here):
            return path
    except OSError as error:
        raise ConfigError(f"{path}: there is no working directory: {error}") from error
    return str(PurePosixPath(here, path))


__all__ = ["Paths", "absolute_path", "each_path"]
