"""CRC-32C vectors of RFC 3720, appendix B.4, and every variant against crcmod."""

import os
import random
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import crcmod.predefined
import pytest

from tests.reference import records as _reference
from tests.support.cases import for_each

_scan = pytest.importorskip("logstore.kernels._scan")

ORACLE = crcmod.predefined.mkCrcFun("crc-32c")

READ_COMMAND = bytes.fromhex(
    "01c00000000000000000000000000000140000000000040000000014"
    "0000001828000000000000000200000000000000"
)

VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (READ_COMMAND, 0xD9963A56),
]

VARIANTS = {
    "tables": lambda data, value=0: _scan.crc32c_variant(0, data, value),
    "hardware": lambda data, value=0: _scan.crc32c_variant(1, data, value),
    "wide": lambda data, value=0: _scan.crc32c_variant(2, data, value),
    "chosen": _scan.crc32c,
    "reference": _reference.crc32c,
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def crc32c(request):
    if request.param(b"") is None:
        pytest.skip("not on this machine")
    return request.param


@for_each("data, expected", VECTORS)
def test_rfc_3720_vectors(crc32c, data, expected):
    assert crc32c(data) == expected


def test_every_length_up_to_a_few_blocks(crc32c):
    """Lengths around each switch of method: the serial loop, three streams, wide registers."""
    data = random.Random(1).randbytes(1100)
    lengths = {*range(260), *range(380, 395), *range(1020, 1100)}
    for length in lengths:
        assert crc32c(data[:length]) == ORACLE(data[:length])


def test_alignments_and_splits(crc32c):
    """The value of a prefix goes on over the rest, wherever the cut is."""
    chance = random.Random(2)
    data = chance.randbytes(40_000)
    view = memoryview(data)
    for _ in range(30):
        start = chance.randrange(64)
        end = chance.randrange(start, chance.choice([300, 4000, 40_000]))
        cut = chance.randrange(start, end + 1)
        assert crc32c(view[cut:end], crc32c(view[start:cut])) == ORACLE(data[start:end])


def test_crc32_is_that_of_zlib():
    data = random.Random(3).randbytes(2000)
    for length in (0, 1, 7, 8, 9, 63, 64, 2000):
        for crc32 in (_scan.crc32, _reference.crc32):
            assert crc32(data[:length]) == zlib.crc32(data[:length])
            assert crc32(data[:length], 77) == zlib.crc32(data[:length], 77)


@for_each("kind", [bytes, bytearray, memoryview])
def test_any_contiguous_buffer_is_taken(crc32c, kind):
    assert crc32c(kind(b"123456789")) == 0xE3069283


def test_a_strided_buffer_is_refused():
    for function in (_scan.crc32c, _reference.crc32c):
        with pytest.raises(BufferError):
            function(memoryview(b"123456789")[::2])


# --- the hardware path switched off

KERNELS = Path(_scan.__file__).parent
DRIVER = r"""
#include <stdio.h>
#include "crc32c.h"

int main(void)
{
    static uint8_t data[1 << 16];
    size_t size = fread(data, 1, sizeof data, stdin);
    const uint8_t *parts[4] = {data, data + 1, data + 2, data + size / 2};
    size_t sizes[4] = {size, size - 1, size / 2, size - size / 2};
    uint32_t four[4];
    logstore_crc32c_four(parts, sizes, four);
    printf("%u %u %u %u %u %u %d %d\n", logstore_crc32c(0, data, size),
           logstore_crc32(0, data, size), four[0], four[1], four[2], four[3],
           logstore_crc32c == logstore_crc32c_variant(0), logstore_crc32c_variant(1) != NULL);
    return 0;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("flags", "wish", "portable"),
    [([], "", False), ([], "portable", True), (["-DLOGSTORE_PORTABLE"], "", True)],
    ids=["as it is", "switched off when loaded", "not compiled"],
)
def test_what_a_compiler_makes_of_it(tmp_path, flags, wish, portable):
    (tmp_path / "driver.c").write_text(DRIVER)
    strict = ["-O2", "-Wall", "-Wextra", "-Werror", f"-I{KERNELS}", *flags]
    sources = [str(tmp_path / "driver.c"), str(KERNELS / "crc32c.c")]
    subprocess.run(["cc", *strict, *sources, "-o", str(tmp_path / "driver")], check=True)
    for size in (8, 63, 900, 30_000):
        data = random.Random(size).randbytes(size)
        half = size // 2
        parts = [data, data[1:], data[2 : 2 + half], data[half:]]
        told = subprocess.run(
            [str(tmp_path / "driver")],
            input=data,
            capture_output=True,
            check=True,
            env=os.environ | {"LOGSTORE_CRC32C": wish},
        )
        *values, by_tables, has_hardware = map(int, told.stdout.split())
        assert values == [ORACLE(data), zlib.crc32(data), *map(ORACLE, parts)]
        hardware = "-DLOGSTORE_PORTABLE" not in flags and _scan.crc32c_variant(1, b"") is not None
        assert has_hardware == hardware
        assert by_tables == (portable or not hardware)


@pytest.mark.slow
@pytest.mark.parametrize("wish", ["portable", ""])
def test_the_kernels_do_as_they_are_told(wish):
    code = "from logstore.kernels import _scan; print(_scan.crc32c_chosen(), _scan.crc32c(b'123'))"
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        env=os.environ | {"LOGSTORE_CRC32C": wish},
    )
    hardware = not wish and _scan.crc32c_variant(1, b"") is not None
    assert told.stdout.split() == [b"%d" % hardware, b"%d" % ORACLE(b"123")]
