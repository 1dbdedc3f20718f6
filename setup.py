"""Native kernels, Java classes, types of the protocol's messages, the pages, and a package that is
installed elsewhere than it lies; the rest is in pyproject.toml."""

import os
import sys
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import spark_jar
from replication.protocol import stub  # imports nothing that is not here

KERNELS = "logstore/kernels"
FLAGS, LINK_FLAGS = spark_jar.FLAGS, spark_jar.LINK_FLAGS
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
    spark_jar.FLAGS = [*FLAGS, "-Wall", "-Wextra", "-Werror"]
    spark_jar.LINK_FLAGS = LINK_FLAGS
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
    "bench/results/*.svg",
    "tests/README.md",
    "examples/[!_]*.py",
    "logstore/verify/common/*.md",
)


def module_of(source: str) -> str:
    return source.removesuffix(".pyx").replace("/", ".")


class BuildAll(build_ext):
    """And the types of the protocol's messages, and the jar of Spark's columnar source; without a
    JDK or PySpark the package works without it."""

    def run(self) -> None:
        super().run()
        self.place(MESSAGE_TYPES).write_text(stub.generate())
        spark_jar.make(self.place(spark_jar.JAR))

    def place(self, name: str) -> Path:
        path = Path("." if self.inplace else self.build_lib, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def get_outputs(self) -> list[str]:
        made = [MESSAGE_TYPES, *([] if spark_jar.why_not() else [spark_jar.JAR])]
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
