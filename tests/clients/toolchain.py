"""Fetching and building what others wrote, once, outside the repository.

A suite names what it needs by package name and version; the ordinary clients of the registries
bring it. What was built stays in a cache by the content of the recipe, so that a second run needs
neither a compiler nor a network.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

INTEROP = Path(__file__).resolve().parents[1] / "interop"
BUILD_TIMEOUT_S = 1200
OUTPUT_KEPT = 2000  # characters of a failed command's output


class SuiteUnavailable(Exception):
    """This machine cannot run the suite; the argument says why, for a skip message."""


def cache_directory() -> Path:
    """Return where builds are kept: ``LOGSTORE_CLIENTS_CACHE``, else below ``~/.cache``."""
    named = os.environ.get("LOGSTORE_CLIENTS_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "logstore-clients"


def tool(name: str) -> str:
    """Return the path of a program.

    Raises:
        SuiteUnavailable: it is not installed.
    """
    path = shutil.which(name)
    if path is None:
        raise SuiteUnavailable(f"{name} is not on PATH")
    return path


def run(
    command: Sequence[str | Path],
    directory: Path,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = BUILD_TIMEOUT_S,
) -> str:
    """Run one step of a build and return its standard output.

    Raises:
        SuiteUnavailable: the step failed, with the end of what it wrote.
    """
    words = [str(word) for word in command]
    try:
        result = subprocess.run(
            words,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise SuiteUnavailable(f"{words[0]} did not end within {timeout_s:.0f} s") from None
    if result.returncode != 0:
        tail = (result.stdout + result.stderr).strip()[-OUTPUT_KEPT:]
        raise SuiteUnavailable(f"{' '.join(words[:4])} ended with {result.returncode}: {tail}")
    return result.stdout


def built(name: str, recipe: str, build: Callable[[Path], None]) -> Path:
    """Return the directory that ``build`` filled for this ``recipe``; it runs once at most.

    Args:
        name: first part of the directory's name, for people.
        recipe: all that decides the result, such as versions and commands.
        build: fills the empty directory that it gets, which does not move afterwards.
    Raises:
        SuiteUnavailable: from ``build``; the next call tries again.
    """
    final = _directory(name, recipe)
    if _complete(final).exists():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with (final.parent / f"{final.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at the same time build once
        if not _complete(final).exists():
            shutil.rmtree(final, ignore_errors=True)
            final.mkdir()
            build(final)
            _complete(final).touch()
    return final


def is_built(name: str, recipe: str) -> bool:
    """Whether ``built`` would return at once."""
    return _complete(_directory(name, recipe)).exists()


def _directory(name: str, recipe: str) -> Path:
    return cache_directory() / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def _complete(directory: Path) -> Path:
    return directory / ".complete"


def interop_module(name: str) -> Any:
    """Return a module of ``tests/interop``, which are imported without a package."""
    if str(INTEROP) not in sys.path:
        sys.path.insert(0, str(INTEROP))
    return importlib.import_module(name)


def python_with(*requirements: str) -> Path:
    """Return a Python that has these packages, pinned as in ``name==1.2``, and nothing else."""

    def build(directory: Path) -> None:
        run([sys.executable, "-m", "venv", directory / "venv"], directory)
        pip = [directory / "venv/bin/python", "-m", "pip", "install", "--quiet"]
        run([*pip, "--disable-pip-version-check", *requirements], directory)

    return built("python", "\n".join(requirements), build) / "venv/bin/python"


def java_classpath(*artifacts: str) -> str:
    """Return the class path of Maven artifacts, ``group:name:version``, and what they depend on."""

    def build(directory: Path) -> None:
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version></dependency>"
            for group, name, version in (artifact.split(":") for artifact in artifacts)
        )
        (directory / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>logstore.clients</groupId><artifactId>classpath</artifactId>"
            f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}"
            "</dependencies></project>"
        )
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={directory / 'classpath.txt'}"]
        run([tool("mvn"), "-q", "-B", *goal], directory)

    return (built("maven", "\n".join(artifacts), build) / "classpath.txt").read_text()
