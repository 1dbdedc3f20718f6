"""Native kernels; everything else about the package is in pyproject.toml."""

from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNELS = "logstore/kernels"

# No -march: crc32c.c picks the instructions of the machine it runs on.
extensions = [
    Extension(
        source.removesuffix(".pyx").replace("/", "."),
        [source, f"{KERNELS}/crc32c.c"],
        include_dirs=[KERNELS],
        depends=glob(f"{KERNELS}/*.h") + glob(f"{KERNELS}/*.pxd"),
        extra_compile_args=["-O3", "-fwrapv", "-fno-strict-aliasing"],
    )
    for source in sorted(glob(f"{KERNELS}/_*.pyx"))
]

setup(ext_modules=cythonize(extensions, language_level=3))
