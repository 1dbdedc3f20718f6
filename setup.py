"""Native kernels, Java classes, types of the protocol's messages, the pages, and a package that is
installed elsewhere than it lies; the rest is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from replication.protocol import stub  # imports nothing that is not here

KERNELS = "logstore/kernels"
# No -march: crc32c.c picks the instructions of the machine it runs on.
FLAGS = ["-O3", "-g0", "-fwrapv", "-fno-strict-aliasing"]
LINK_FLAGS = ["-Wl,-s"] if sys.platform == "linux" else []  # symbols would be two thirds of a wheel
# `make sanitize`: the same kernels with every check of the compiler, in a tree of their own.
SANITIZE = os.environ.get("LOGSTORE_SANITIZE", "") not in ("", "0")
SANITIZED = "build/sanitize"
SANITIZERS = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
if SANITIZE:
    if "--inplace" in sys.argv:
        sys.exit(f"LOGSTORE_SANITIZE builds into {SANITIZED}, never over the ordinary kernels")
    # Python's own flags say -fwrapv, which would hide an overflow: the last word counts.
    FLAGS = ["-O1", "-g", "-fno-wrapv", "-fno-strict-aliasing", "-fno-omit-frame-pointer"]
    FLAGS += SANITIZERS
    LINK_FLAGS = SANITIZERS
# Beside the sources lie stubs of what they use of Spark, so that Spark is not needed to build.
JAVA = "logstore/spark/java"
JAR = "logstore/spark/logstore-spark.jar"
JAVA_RELEASE = 17
MESSAGE_TYPES = "replication/protocol/messages.pyi"
# Spark looks for top-level packages of this prefix; here it stays beside what it speaks of.
REGISTRATION = {"pyspark_logstore": "logstore/spark/pyspark_logstore"}
# Whoever has a wheel has nothing else: the pages come along, laid out so that their links hold.
PAGES = "share/doc/pylogstore"
PAGE_FILES = (
    "*.md",
    "docs/**/*.md",
    "docs/*.svg",
    "bench/*.md",
    "tests/README.md",
    "examples/[!_]*.py",
)


def module_of(source: str) -> str:
    return source.removesuffix(".pyx").replace("/", ".")


def javac() -> str | None:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=f"{home}/bin" if home else None)
    if found is None:
        return None
    told = subprocess.run([found, "-version"], capture_output=True, text=True)
    version = (told.stdout + told.stderr).partition("javac ")[2].partition(".")[0].strip()
    return found if version.isdigit() and int(version) >= JAVA_RELEASE else None


class BuildAll(build_ext):
    """And the types of the protocol's messages, and the jar of Spark's columnar source; without a
    JDK the package works without it."""

    def run(self) -> None:
        super().run()
        self.place(MESSAGE_TYPES).write_text(stub.generate())
        compiler = javac()
        if compiler is None:
            print(f"no javac {JAVA_RELEASE} or newer: built without Spark's columnar source")
            return
        target = self.place(JAR)
        with tempfile.TemporaryDirectory() as classes:
            sources = sorted(glob(f"{JAVA}/logstore/*.java"))
            command = [compiler, "--release", str(JAVA_RELEASE), "-nowarn", "-implicit:none"]
            command += ["-encoding", "UTF-8", "-sourcepath", f"{JAVA}/stubs", "-cp", classes]
            subprocess.run([*command, "-d", classes, *sources], check=True)
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(Path(classes).rglob("*.class")):
                    info = zipfile.ZipInfo(path.relative_to(classes).as_posix())
                    info.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(info, path.read_bytes())

    def place(self, name: str) -> Path:
        path = Path("." if self.inplace else self.build_lib, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def get_outputs(self) -> list[str]:
        made = [MESSAGE_TYPES, *([JAR] if javac() else [])]
        return [*super().get_outputs(), *(os.path.join(self.build_lib, name) for name in made)]


extensions = [
    Extension(
        module_of(source),
        [source, f"{KERNELS}/crc32c.c"],
        include_dirs=[KERNELS],
        depends=glob(f"{KERNELS}/*.h") + glob(f"{KERNELS}/*.pxd"),
        extra_compile_args=FLAGS,
        extra_link_args=LINK_FLAGS,
    )
    for source in sorted(glob(f"{KERNELS}/_*.pyx"))
]
packages = find_packages(
    include=["checkpoints*", "logstore*", "replication*"], exclude=["*.pyspark_logstore"]
)
pages = [path for names in PAGE_FILES for path in sorted(glob(names, recursive=True))]

setup(
    cmdclass={"build_ext": BuildAll},
    ext_modules=cythonize(
        extensions, language_level=3, build_dir=f"{SANITIZED}/c" if SANITIZE else None
    ),
    packages=[*packages, *REGISTRATION],
    package_dir=REGISTRATION,
    data_files=[(os.path.join(PAGES, os.path.dirname(path)), [path]) for path in pages],
    options={"build": {"build_base": SANITIZED, "build_lib": SANITIZED}} if SANITIZE else {},
)
