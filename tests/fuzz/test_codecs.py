"""Hostile compressed streams: bounded time and memory, and never an error but the typed one."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest

from logstore.format.codecs.compression import Compression, decompress
from logstore.format.codecs.errors import BLOCKS_FREE, MEMBERS_FREE
from tests.fuzz.codec_bombs import Cost
from tests.fuzz.codec_streams import (
    BOMBS,
    SNAPPY_HEADER,
    ZSTD_HEADER,
    G,
    L,
    S,
    Z,
    gzip_member,
    lz4_block,
    lz4_header,
    snappy_block,
    zstd_block,
)
from tests.fuzz.codecs import check

ROUNDS = int(os.environ.get("LOGSTORE_FUZZ_ROUNDS", "400"))
"""Random streams, from the same seeds each time."""
BOMB_BYTES = int(os.environ.get("LOGSTORE_BOMB_BYTES", str(1 << 20)))
"""The smaller size of each bomb; the other one is four times as large."""
FREE_KIB = 48 << 10


@functools.cache
def costs_of(codec: str) -> dict[str, list[Cost]]:
    result = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.codec_bombs", codec, str(BOMB_BYTES)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return {
        name: [Cost(*cost) for cost in costs] for name, costs in json.loads(result.stdout).items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name: str) -> None:
    """The right content or the right error, in linear time and little memory above the content."""
    bomb = BOMBS[name]
    small, large = costs_of(str(bomb.codec))[name]
    for cost, size in ((small, BOMB_BYTES), (large, 4 * BOMB_BYTES)):
        if bomb.refused is None:
            assert cost.error is None
            assert cost.size == bomb.content(size)
        else:
            assert bomb.refused in str(cost.error)
        assert cost.grown < FREE_KIB + (2 * cost.size >> 10)
    assert large.seconds < 8 * small.seconds + 0.2
    assert large.seconds < 2 + 2 * (BOMB_BYTES >> 20)


@pytest.mark.slow
def test_random_streams() -> None:
    for seed in range(ROUNDS):
        try:
            check(seed)
        except Exception as error:
            pytest.fail(f"python -m tests.fuzz.codecs --seed {seed} --rounds 1: {error!r}")


@pytest.mark.parametrize(
    ("codec", "stream", "count"),
    [
        (G, gzip_member(b"x") * MEMBERS_FREE, MEMBERS_FREE),
        (Z, (ZSTD_HEADER + zstd_block(0, 1, b"x", last=True)) * MEMBERS_FREE, MEMBERS_FREE),
        (S, SNAPPY_HEADER + snappy_block(b"x") * (BLOCKS_FREE - 1), BLOCKS_FREE - 1),
        (L, lz4_header() + lz4_block(b"x", raw=False) * BLOCKS_FREE + bytes(4), BLOCKS_FREE),
        (L, lz4_header(True) + lz4_block(b"x", True, True) * BLOCKS_FREE + bytes(4), BLOCKS_FREE),
    ],
    ids=["gzip", "zstd", "snappy", "lz4", "lz4 raw"],
)
def test_pieces_of_a_byte_are_read_up_to_their_limit(
    codec: Compression, stream: bytes, count: int
) -> None:
    assert bytes(decompress(codec, stream)) == b"x" * count
