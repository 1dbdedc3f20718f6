"""``checkpoints``, ``logstore`` and ``replication`` are installed side by side.

A user's project may have its own ``replication/`` or ``checkpoints.py``, which Python finds first.
In a command, which is our own process, ``prefer`` makes Python search beside this package first. In
a user's process that would hide the user's module, so there ``load`` reports what hides ours.
"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

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


@cache
def _homes(package: str) -> dict[str, str]:
    """Map each name of ``package`` to its module: its ``__init__.pyi`` is the one list of them, for
    type checkers and at run time.
    """
    stub = pkgutil.get_data(package, "__init__.pyi")
    assert stub is not None
    froms = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in froms for alias in node.names}


def lazy_name(package: str, name: str, load: Callable[[str], Any] = load) -> Any:
    """A name of a package, imported when it is first asked for, so that a command starts fast."""
    homes = _homes(package)
    if name == "__all__":
        value: Any = [*homes]
    elif name not in homes:
        text = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=sys.modules[package])  # so Python suggests one
    elif homes[name] == package:
        value = load(f"{package}.{name}")
    else:
        value = getattr(load(homes[name]), name)
    setattr(sys.modules[package], name, value)
    return value


def _place(name: str) -> str | None:
    spec = find_spec(name)
    return None if spec is None else spec.origin


def _is_ours(place: str) -> bool:
    return os.path.dirname(os.path.dirname(os.path.realpath(place))) == os.path.realpath(ROOT)


__all__ = ["NAMES", "ROOT", "lazy_name", "load", "prefer"]
