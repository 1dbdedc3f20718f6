"""Sessions, their settings, and the archive for workers without logstore."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

import logstore
from logstore.common.errors import ConfigError
from logstore.common.extras import Extra, install
from logstore.spark import executor_environment as shipping
from logstore.spark import package_archive, settings, shipped
from logstore.spark.executor_environment import Worker, check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
WORKER = Worker("host", "/usr/bin/python3 (3.11.2)", logstore.__version__, "/deps")


def run(code: str, *flags: str, **environment: str) -> str:
    """What a new interpreter prints, in an environment with nothing but ``environment``."""
    done = subprocess.run(
        [sys.executable, "-P", *flags, "-c", code],
        env={"PATH": os.environ["PATH"]} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- the package


def test_importing_the_package_imports_no_spark() -> None:
    code = "import sys, logstore.spark; print({'pyspark', 'pyarrow'} & set(sys.modules))"
    assert run(code, PYTHONPATH=str(ROOT)) == "set()"


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_a_missing_extra_says_how_to_install_it(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
import logstore.spark
for name in logstore.spark.__all__:
    try:
        getattr(logstore.spark, name)
    except Exception as error:
        print(type(error).__name__, error)
"""
    lines = set(run(code, PYTHONPATH=str(ROOT)).splitlines())
    text = f"logstore.spark needs the package {missing}: {install(Extra.SPARK, missing)}"
    assert lines <= {f"ConfigError {text}"}
    assert lines or missing == "pyarrow"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = logstore.spark.nothing  # type: ignore[attr-defined]


# --- sessions


def test_settings_bind_to_loopback_on_one_machine_only() -> None:
    assert settings("local[2]")["spark.driver.bindAddress"] == "127.0.0.1"
    assert not any("driver" in key for key in settings("spark://host:7077"))


def test_a_session_has_the_settings_and_the_source(spark: SparkSession) -> None:
    for key, value in settings().items():
        assert spark.conf.get(key) == value
    assert "offset" in spark.read.format("logstore").load("/none").columns


@pytest.mark.slow
def test_without_java_the_reason_is_told() -> None:
    code = """
from logstore.spark import session
try:
    session()
except Exception as error:
    print(type(error).__name__, error)
"""
    told = run(code, PYTHONPATH=str(ROOT), JAVA_HOME="/nonexistent")
    assert told.startswith("ConfigError")
    assert "JDK 17" in told


# --- workers


def test_workers_of_this_session(spark: SparkSession) -> None:
    (found,) = check_workers(spark)
    assert found.version == logstore.__version__
    assert found.directory == str(Path(logstore.__file__).parents[1])


@pytest.mark.parametrize("name", ["xxhash", "cramjam", "mmh3", "crcmod"])
def test_a_worker_is_asked_for_every_library(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    session = MagicMock()
    session.sparkContext.defaultParallelism = 1
    mapped = session.sparkContext.parallelize.return_value.mapPartitions
    mapped.return_value.distinct.return_value.collect = lambda: mapped.call_args.args[0]([0])
    monkeypatch.setitem(sys.modules, name, None)
    (found,) = shipping.workers(session)
    assert found.missing == name


def answering(monkeypatch: pytest.MonkeyPatch, **changes: str) -> Any:
    monkeypatch.setattr(shipping, "workers", lambda _: [WORKER._replace(**changes)])


def test_a_worker_without_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, missing="logstore")
    with pytest.raises(ConfigError, match=r"host.*no package logstore.*package_archive"):
        check_workers(None)  # type: ignore[arg-type]


def test_a_worker_with_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, version="0.0.1")
    with pytest.raises(ConfigError, match=r"logstore 0\.0\.1 in /deps"):
        check_workers(None)  # type: ignore[arg-type]


# --- the archive


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package_archive(tmp_path_factory.mktemp("archive") / "packages.zip")


@pytest.mark.slow
def test_an_unpacked_archive_is_all_that_a_task_needs(archive: Path, tmp_path: Path) -> None:
    """``-S``: no other installed package is found."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path)
    code = """
import logstore.format.codecs.compression, logstore.format.codecs.zstd
import logstore.verify, logstore.log
from logstore import kernels
print(kernels.__name__, logstore.__file__)
"""
    told = run(code, "-S", PYTHONPATH=str(tmp_path))
    assert told == f"logstore.kernels {tmp_path}/logstore/__init__.py"


@pytest.mark.slow
def test_a_packed_archive_on_the_path_has_no_kernels(archive: Path) -> None:
    """Why it goes through ``spark.archives``, and not through ``addPyFile``."""
    code = """
try:
    import logstore.kernels
except ImportError as error:
    print(error)
"""
    assert "no native kernels" in run(code, "-S", PYTHONPATH=str(archive))


def test_the_same_files_give_the_same_archive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shipping, "_PACKAGES", ("checkpoints",))
    first, second = (package_archive(tmp_path / name).read_bytes() for name in ("a", "b"))
    assert first == second


def test_the_archive_has_no_sources_of_kernels(archive: Path) -> None:
    names = zipfile.ZipFile(archive).namelist()
    assert not [name for name in names if name.endswith((".c", ".pyx", ".pyc"))]
    assert not [name for name in names if name.startswith("replication/")]


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shipping, "_DEPENDENCIES", ("no_such_package",))
    with pytest.raises(ConfigError, match="no_such_package"):
        package_archive(tmp_path / "packages.zip")


def test_shipped() -> None:
    assert shipped("/a/b.zip") == {
        "spark.archives": "/a/b.zip#logstore-packages",
        "spark.executorEnv.PYTHONPATH": "./logstore-packages",
    }


# --- registration by name


@pytest.fixture
def fresh_registration() -> Iterator[None]:
    name = "logstore.spark.pyspark_logstore"
    before = sys.modules.pop(name, None)
    yield
    sys.modules.pop(name, None)
    if before is not None:
        sys.modules[name] = before


@pytest.mark.usefixtures("fresh_registration")
def test_the_registering_package_has_the_source() -> None:
    from logstore.spark.pyspark_logstore import DefaultSource

    assert DefaultSource.name() == "logstore"


@pytest.mark.usefixtures("fresh_registration")
def test_a_broken_installation_does_not_break_other_formats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "logstore.spark.data_source", None)  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="not available"):
        import logstore.spark.pyspark_logstore as package
    assert not hasattr(package, "DefaultSource")
