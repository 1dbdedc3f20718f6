"""Send the package to workers that lack it, as one archive, and check what workers import.

``--py-files`` and ``addPyFile`` leave a zip packed, and Python cannot load extension modules from
it, so the kernels would be missing without an error. ``spark.archives`` is unpacked on each
executor.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logstore.common.errors import ConfigError
from logstore.common.extras import Extra, install
from logstore.common.version import __version__

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_PACKAGES = ("checkpoints", "logstore")
_DEPENDENCIES = (  # the other packages that a task may import
    *(("backports.zstd",) if sys.version_info < (3, 14) else ()),
    "cramjam",
    "crcmod",
    "mmh3",
    "portalocker",
    "xxhash",
    # the faster codecs, where there is a wheel of them
    *(name for name in ("zlib_ng", "zstandard") if importlib.util.find_spec(name)),
)
_IMPORTED = ("logstore", "logstore.kernels", "pyarrow", *_DEPENDENCIES)
_LEFT_OUT = frozenset({".c", ".h", ".pxd", ".pyc", ".pyx"})
_UNPACKED = "logstore-packages"  # in an executor's working directory
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files give the same bytes, so caches recognise them


def package_archive(path: str | os.PathLike[str]) -> Path:
    """Write a zip of logstore with its kernels, and of the libraries that its tasks import.

    It needs the same minor version of Python and the same kind of machine as this interpreter.
    pyspark and pyarrow are not in it, because workers have them.

    Returns:
        The path of the archive, for ``shipped``.
    """
    target = Path(path)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in _content((*_PACKAGES, *_DEPENDENCIES)):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, source.read_bytes())
    return target


def _content(modules: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """(name in the archive, file) of whole packages and single modules."""
    for module in modules:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ConfigError(f"the package {module} cannot be shipped: it is not installed here")
        origin = Path(spec.origin)
        if not spec.submodule_search_locations:
            yield origin.name, origin
            continue
        root = origin.parents[1 + module.count(".")]
        for file in sorted(origin.parent.rglob("*")):
            if file.is_file() and file.suffix not in _LEFT_OUT:
                yield file.relative_to(root).as_posix(), file


def shipped(archive: str | os.PathLike[str]) -> dict[str, str]:
    """The configuration that gives ``package_archive``'s file to the Python of every executor.

    A path is copied from the driver; a URI (``hdfs://…``, ``s3a://…``) is fetched by each executor.
    """
    return {
        "spark.archives": f"{os.fspath(archive)}#{_UNPACKED}",
        "spark.executorEnv.PYTHONPATH": f"./{_UNPACKED}",
    }


class Worker(NamedTuple):
    """The imports of an executor's Python worker. ``missing`` names a package that it lacks."""

    host: str
    python: str
    version: str = ""
    directory: str = ""
    missing: str = ""


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect, whose driver is the server's."""
    return not hasattr(spark, "sparkContext")


def driver_context(spark: SparkSession, name: str) -> SparkContext:
    """The driver's context, for the function ``name``.

    Raises:
        ConfigError: a session of Spark Connect.
    """
    if is_connect(spark):
        raise ConfigError(
            f"{name} needs the driver, and a session of Spark Connect has it in another process: "
            "run it there, in a session with a master. Reading, streams and writes go over Spark "
            "Connect"
        )
    return spark.sparkContext


def workers(spark: SparkSession) -> list[Worker]:
    """Ask the present executors what they import, with one short task for each core.

    Raises:
        ConfigError: a session of Spark Connect.
    """

    # Functions of a module are pickled by name, and workers may lack this module. Nested functions
    # are pickled as code.
    def probe(_: Iterable[int]) -> Iterator[tuple[str, ...]]:
        import importlib
        import platform
        import sys

        found = (platform.node(), f"{sys.executable} ({platform.python_version()})")
        try:
            package, *_rest = map(importlib.import_module, _IMPORTED)
        except ImportError as error:
            yield (*found, "", "", error.name or str(error))
            return
        directory = (package.__file__ or "").rpartition("/logstore/")[0]
        yield (*found, package.__version__, directory, "")

    context = driver_context(spark, "workers")
    count = context.defaultParallelism
    answers = context.parallelize(range(count), count).mapPartitions(probe).distinct().collect()
    return sorted(Worker(*answer) for answer in answers)


def check_workers(spark: SparkSession) -> list[Worker]:
    """Check that workers can run a task.

    Raises:
        ConfigError: a worker lacks a package, or has another version of logstore; or as
            ``workers``.
    """
    found = workers(spark)
    for worker in found:
        where = f"the workers on {worker.host}, Python {worker.python},"
        if worker.missing:
            raise ConfigError(
                f"{where} have no package {worker.missing}: install logstore {__version__} there, "
                f"and {install(Extra.SPARK, worker.missing)}; or send logstore with "
                "session(master, conf=shipped(package_archive(path)))"
            )
        if worker.version != __version__:
            raise ConfigError(
                f"{where} have logstore {worker.version} in {worker.directory}, "
                f"the driver has {__version__}"
            )
    return found


__all__ = [
    "Worker",
    "check_workers",
    "driver_context",
    "is_connect",
    "package_archive",
    "shipped",
    "workers",
]
