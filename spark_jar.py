"""Compile the classes of Spark's columnar source against the jars of PySpark, into one jar.

``python spark_jar.py`` does it for the checkout. ``setup.py`` does it too, where it sees PySpark:
pip builds in an environment of its own, which has none, and there ``SPARK_HOME`` may name one.
Imports nothing that is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

SOURCES = "logstore/spark/java/logstore"
JAR = "logstore/spark/logstore-spark.jar"
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
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(classes).rglob("*.class")):
                info = zipfile.ZipInfo(path.relative_to(classes).as_posix())
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, path.read_bytes())


if __name__ == "__main__":
    sys.path.pop(0)  # no package of the checkout stands for an installed one
    make(Path(JAR))
