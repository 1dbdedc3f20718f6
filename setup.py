"""Native kernels, and a package that is installed elsewhere than it lies; the rest is in
pyproject.toml."""

import os
import sys
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

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
# Spark looks for top-level packages of this prefix; here it stays beside what it speaks of.
REGISTRATION = {"pyspark_logstore": "logstore/spark/pyspark_logstore"}


def module_of(source: str) -> str:
    return source.removesuffix(".pyx").replace("/", ".")


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
extensions += [
    Extension(
        module_of(source),
        [source],
        extra_compile_args=FLAGS,
        extra_link_args=LINK_FLAGS,
    )
    for source in sorted(glob("replication/kernels/_*.pyx"))
]
packages = find_packages(
    include=["checkpoints*", "logstore*", "replication*"], exclude=["*.pyspark_logstore"]
)

setup(
    ext_modules=cythonize(
        extensions, language_level=3, build_dir=f"{SANITIZED}/c" if SANITIZE else None
    ),
    packages=[*packages, *REGISTRATION],
    package_dir=REGISTRATION,
    options={"build": {"build_base": SANITIZED, "build_lib": SANITIZED}} if SANITIZE else {},
)
