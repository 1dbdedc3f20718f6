"""Native kernels, and a package that is installed elsewhere than it lies; the rest is in
pyproject.toml."""

from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

KERNELS = "logstore/kernels"
# No -march: crc32c.c picks the instructions of the machine it runs on.
FLAGS = ["-O3", "-fwrapv", "-fno-strict-aliasing"]
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
    )
    for source in sorted(glob(f"{KERNELS}/_*.pyx"))
]
extensions += [
    Extension(module_of(source), [source], extra_compile_args=FLAGS)
    for source in sorted(glob("replication/kernels/_*.pyx"))
]
packages = find_packages(
    include=["checkpoints*", "logstore*", "replication*"], exclude=["*.pyspark_logstore"]
)

setup(
    ext_modules=cythonize(extensions, language_level=3),
    packages=[*packages, *REGISTRATION],
    package_dir=REGISTRATION,
)
