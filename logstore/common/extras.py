"""Optional libraries, and how to install them with pip.

The distribution name for pip is here and in pyproject.toml. Its packages are imported as
``checkpoints``, ``logstore`` and ``replication``.
"""

from __future__ import annotations

import importlib
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


def requirement(extra: Extra) -> str:
    """The pip requirement for this project with the libraries of ``extra``."""
    return f"{DISTRIBUTION}[{extra}]"


def missing(feature: str, package: str, extra: Extra) -> ConfigError:
    """The error that says what ``feature`` lacks and how to install it."""
    return ConfigError(f"{feature} needs the package {package}: pip install '{requirement(extra)}'")


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


__all__ = ["DISTRIBUTION", "Extra", "load", "missing", "requirement"]
