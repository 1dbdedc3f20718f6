"""What ``import logstore`` and ``import replication`` promise."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import logstore
import replication
from tests.support.cases import for_each

PACKAGES = pytest.mark.parametrize("package", [logstore, replication], ids=lambda p: p.__name__)


@for_each(
    "package, name",
    [(package, name) for package in (logstore, replication) for name in package.__all__],
)
def test_every_public_name_is_there(package: ModuleType, name: str) -> None:
    assert getattr(package, name) is not None
    assert name in dir(package)


@PACKAGES
def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="nothing") as error:
        _ = package.nothing
    assert (error.value.name, error.value.obj) == (
        "nothing",
        package,
    )  # "Did you mean"


@PACKAGES
def test_errors_need_no_import_of_their_own(package: ModuleType) -> None:
    name = package.__name__
    code = f"import {name}; raise SystemExit({name}.errors.ConfigError is None)"
    subprocess.run([sys.executable, "-c", code], check=True)


@PACKAGES
def test_importing_the_package_imports_no_engine(package: ModuleType) -> None:
    """A command that shows its help must not load kernels and codecs."""
    name = package.__name__
    code = f"import sys, {name}; print([m for m in sys.modules if m.startswith('{name}.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
