"""Compile the classes of Spark's columnar source against the jars of PySpark, into one jar, and the
kernels for the JVM into a library in it, if there is a C compiler.

``python spark_jar.py`` does it for the checkout. ``setup.py`` does it too, where it sees PySpark:
pip builds in an environment of its own, which has none, and there ``SPARK_HOME`` may name one.
Imports nothing that is installed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

SOURCES = "logstore/spark/java/logstore"
JAR = "logstore/spark/logstore-spark.jar"
LIBRARY = "liblogstore.so"
LIBRARY_SOURCES = ("logstore/spark/native/logstore_jni.c", "logstore/kernels/crc32c.c")
HEADERS = "logstore/kernels"
# No -march: crc32c.c picks the instructions of the machine it runs on.
FLAGS = ["-O3", "-g0", "-fwrapv", "-fno-strict-aliasing"]
LINK_FLAGS = ["-Wl,-s"] if sys.platform == "linux" else []  # symbols would be two thirds of it
JAVA_RELEASE = 17
SPARK = "spark-sql_2.13-4.3.*.jar"  # `logstore.spark.sessions` says the same


def javac() -> str | None:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=f"{home}/bin" if home else None)
    if found is None:
        return None
    told = subprocess.run([found, "-version"], capture_output=True, text=True)
    version = (told.stdout + told.stderr).partition("javac ")[2].partition(".")[0].strip()
    return found if version.isdigit() and int(version) >= JAVA_RELEASE else None


def spark_jars() -> Path | None:
    spec = find_spec("pyspark")
    homes = [*(spec.submodule_search_locations or () if spec else ()), os.environ.get("SPARK_HOME")]
    found = (Path(home, "jars") for home in homes if home)
    return next((jars for jars in found if any(jars.glob(SPARK))), None)


def why_not() -> str:
    """Why the jar cannot be made here; "" if it can."""
    if javac() is None:
        return f"no javac {JAVA_RELEASE} or newer"
    return "" if spark_jars() else "no PySpark 4.3, neither installed nor as SPARK_HOME"


def platform_name() -> str:
    """As ``platform`` of ``Native.java``."""
    return f"{sys.platform}-{platform.machine()}"


def jni_headers() -> list[Path]:
    """Where jni.h and what it includes are; empty if this is no JDK with them."""
    compiler = javac()
    include = Path(compiler).resolve().parents[1] / "include" if compiler else Path()
    found = [include, include / sys.platform]
    return found if all((folder / "jni_md.h").exists() for folder in found[1:]) else []


def make_library(target: Path) -> str:
    """Compile the kernels for the JVM; why it cannot be done here, or ""."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc"))), None)
    if compiler is None:
        return "no C compiler"
    includes = jni_headers()
    if not includes:
        return "the JDK has no jni.h"
    command = [compiler, *FLAGS, "-fPIC", "-shared", "-fvisibility=hidden", *LINK_FLAGS]
    command += [f"-I{folder}" for folder in (HEADERS, *includes)]
    done = subprocess.run(
        [*command, *LIBRARY_SOURCES, "-o", target], capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stderr.strip()


def make(target: Path) -> None:
    """Make the jar if that can be done here. None is better than an old one."""
    target.unlink(missing_ok=True)
    reason = why_not()
    if reason:
        print(f"built without Spark's columnar source: {reason}")
        return
    with tempfile.TemporaryDirectory() as classes:
        sources = sorted(map(str, Path(SOURCES).glob("*.java")))
        command = [str(javac()), "--release", str(JAVA_RELEASE), "-nowarn", "-proc:none"]
        command += ["-encoding", "UTF-8", "-cp", f"{spark_jars()}/*", "-d", classes]
        subprocess.run([*command, *sources], check=True)
        library = Path(classes, "native", platform_name(), LIBRARY)
        library.parent.mkdir(parents=True)
        if reason := make_library(library):
            print(f"Spark's columnar source is built without native code: {reason}")
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(filter(Path.is_file, Path(classes).rglob("*"))):
                info = zipfile.ZipInfo(path.relative_to(classes).as_posix())
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, path.read_bytes())


if __name__ == "__main__":
    sys.path.pop(0)  # no package of the checkout stands for an installed one
    make(Path(JAR))
