"""Buffers that another thread writes to while a kernel, which gave the GIL away, works on them.

What comes out may be anything, an error included; memory outside the buffer is never touched. A
fault is the end of a process, so each mix runs in one of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = 50

PROLOGUE = """
import random, sys, threading
from logstore.common.errors import LogstoreError
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.reader import fill_columns, fill_records
from logstore.kernels import ColumnBuilder, decode_records, encode_lists, encode_records
sys.setswitchinterval(1e-6)
done = threading.Event()
chance = random.Random(5)
PLAIN = [(b"k" * (i % 50), b"v" * (i % 300), i) for i in range(300)]
# Headers are walked twice: many of them leave much time in between.
HEADERS = [(b"k", b"v", 0, [("h", b"x")] * 20_000)]

def mutate(data, low):
    # Long stretches that are the same again and again, so that most of it stays decodable.
    good = bytes(data)
    own = random.Random(7)
    while not done.is_set():
        for _ in range(100):
            at = own.randrange(low, len(data))
            data[at] = (0, 1, 2, 0x7F, 0x80, 0xFF)[at % 6]
            for _ in range(own.choice((0, 0, 30, 300))):
                pass
            data[at] = good[at]

def beside(work, *args, threads=1):
    others = [threading.Thread(target=mutate, args=args, daemon=True) for _ in range(threads)]
    for other in others:
        other.start()
    rounds = refused = 0
    while rounds < {rounds}:
        rounds += 1
        try:
            work()
        except (LogstoreError, MemoryError):
            refused += 1
    done.set()
    for other in others:
        other.join()
    print(rounds, refused)
"""

DECODE = """
batch = encode_batch({rows}, compression=Compression.{codec})
data = bytearray(bytes(batch) * {times})
def columns():
    builder = ColumnBuilder(True, True, True, True)
    position = 0
    while position < len(data):
        position, status = fill_columns(data, position, builder, 2**40, 2**40, OPTIONS)
        if status != 1:
            break
    builder.finish()
def records():
    fill_records(data, 0, [], 10**6, OPTIONS)
from logstore.kernels import ReadBounds
OPTIONS = ReadBounds(check_crc=False)
beside({work}, data, {low})
"""


def decoding(rows: str, work: str, codec: str = "NONE", times: int = 1) -> str:
    low = 61 if times == 1 else 0
    return DECODE.format(rows=rows, work=work, codec=codec, times=times, low=low)


ENCODE = """
# Fields that are resized and written to; columns whose offsets and lengths change.
fields = [bytearray(b"x" * (i % 90)) for i in range(400)]
def resize(_, __):
    own = random.Random(9)
    while not done.is_set():
        for field in own.sample(fields, 50):
            field[:] = bytes(own.randrange(2000))
mutate = resize
def work():
    headers = [[("h", field)] for field in fields]
    encode_records([(f, memoryview(bytes(f)), 1, h) for f, h in zip(fields, headers)], 0)
    encode_lists(fields, fields, 1, headers)
beside(work, None, None, threads=2)
"""

COLUMNS = """
import struct
from logstore.kernels import encode_columns
count = 20000
offsets = bytearray(struct.pack("%di" % (count + 1), *range(0, 5 * count + 1, 5)))
content, times = bytearray(5 * count), bytearray(8 * count)
bits = bytearray(b"\\xff" * (count // 8 + 1))
lists = bytearray(struct.pack("%di" % (count + 1), *range(count + 1)))
strings = (offsets, content, bits)
def work():
    try:
        encode_columns(0, count, *strings, *strings, times, 0,
                       headers=(lists, bits, count, offsets, content, None, *strings),
                       key_offset_size=4, value_offset_size=4)
    except ValueError:
        raise MemoryError from None
threading.Thread(target=mutate, args=(lists, 0), daemon=True).start()
threading.Thread(target=mutate, args=(times, 0), daemon=True).start()
beside(work, offsets, 0)
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(decoding("PLAIN", "columns", times=30), id="columns"),
        pytest.param(decoding("HEADERS", "columns"), id="columns-headers"),
        pytest.param(decoding("PLAIN", "records", times=30), id="records"),
        pytest.param(decoding("HEADERS", "records"), id="records-headers"),
        pytest.param(decoding("PLAIN", "columns", "ZSTD", times=5), id="zstd"),
        pytest.param(decoding("PLAIN", "records", "LZ4", times=5), id="lz4"),
        pytest.param(ENCODE, id="encode"),
        pytest.param(COLUMNS, id="encode-columns"),
    ],
)
def test_a_buffer_that_changes_meanwhile_is_no_fault(code: str) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROLOGUE.format(rounds=ROUNDS) + code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
