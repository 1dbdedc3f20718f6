"""What ``import logstore`` promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

import logstore


@pytest.mark.parametrize("name", logstore.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(logstore, name) is not None
    assert name in dir(logstore)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = logstore.nothing


def test_importing_the_package_imports_no_engine() -> None:
    """A command that shows its help must not load kernels and codecs."""
    code = "import sys, logstore; print([m for m in sys.modules if m.startswith('logstore.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
