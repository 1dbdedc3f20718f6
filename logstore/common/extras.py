"""Optional libraries, and how to install them with pip.

The distribution name is here and in pyproject.toml. Its packages are imported as ``checkpoints``,
``logstore`` and ``replication``.
"""

from __future__ import annotations

import importlib
import re
import shlex
from enum import StrEnum
from typing import Any

from logstore.common.errors import ConfigError

DISTRIBUTION = "pylogstore"

_OURS = frozenset({"checkpoints", "logstore", "replication"})


class Extra(StrEnum):
    """Groups of optional libraries, as pyproject.toml defines them."""

    ARROW = "arrow"
    DEMO = "demo"
    METRICS = "metrics"
    REGISTRY = "registry"
    REPORT = "report"
    SPARK = "spark"
    ZOOKEEPER = "zookeeper"


def requirements(extra: str) -> list[str]:
    """Return what ``extra`` asks pip for, as the installation declares it.

    A hint names these rather than ``pylogstore[extra]``, which pip would look for on an index,
    whether this was installed from a checkout, from a wheel or editable. Empty where there is no
    declaration: the packages were sent to a worker as an archive.
    """
    from importlib.metadata import PackageNotFoundError, requires  # 10 ms, which few need

    try:
        declared = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    found: list[str] = []
    for line in declared:
        name, _, marker = (part.strip() for part in line.partition(";"))
        if re.search(rf"\bextra == ['\"]{extra}['\"]", marker):
            ours = re.fullmatch(rf"{DISTRIBUTION}\[([\w,-]+)\]", name)
            found += [n for e in ours[1].split(",") for n in requirements(e)] if ours else [name]
    return found


def install(extra: Extra, package: str) -> str:
    """The command that brings ``package``, of ``extra``, and what else the extra has."""
    return f"pip install {shlex.join(requirements(extra) or [package])}"


def missing(feature: str, package: str, extra: Extra) -> ConfigError:
    """The error that says what ``feature`` lacks and how to install it."""
    return ConfigError(f"{feature} needs the package {package}: {install(extra, package)}")


def load(module: str, extra: Extra, feature: str) -> Any:
    """Import a library of ``extra``, or one of our modules that needs one.

    Raises:
        ConfigError: a library is not installed; the text names ``feature`` and ``extra``.
        ModuleNotFoundError: one of our own modules is missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # The missing module may be a submodule of the library, such as pyarrow.compute.
        package = (error.name or module).partition(".")[0]
        if package in _OURS:
            raise
        raise missing(feature, package, extra) from None


__all__ = ["DISTRIBUTION", "Extra", "install", "load", "missing"]
