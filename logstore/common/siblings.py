"""``checkpoints``, ``logstore`` and ``replication`` are installed side by side.

A user's project may have its own ``replication/`` or ``checkpoints.py``, which Python finds first.
In a command, which is our own process, ``prefer`` makes Python search beside this package first. In
a user's process that would hide the user's module, so there ``load`` reports what hides ours.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAMES = ("checkpoints", "replication")


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [ROOT]) if name in NAMES else None


def prefer() -> None:
    """Make this process import the packages beside this one first."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def load(module: str) -> ModuleType:
    """Import one of our own modules.

    Raises:
        ImportError: another module hides one of our packages; the text says which.
    """
    for place in map(_place, NAMES):
        if place is not None and not _is_ours(place):
            raise ImportError(
                f"{place} hides the package of the same name that logstore is installed with: "
                "rename it, or put it behind the installed packages in sys.path"
            )
    return importlib.import_module(module)


def _place(name: str) -> str | None:
    spec = find_spec(name)
    return None if spec is None else spec.origin


def _is_ours(place: str) -> bool:
    return os.path.dirname(os.path.dirname(os.path.realpath(place))) == os.path.realpath(ROOT)


__all__ = ["NAMES", "ROOT", "load", "prefer"]
