"""Hostile compressed streams: bounded memory, and never an error but the typed one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from logstore.format.codecs.compression import Compression, decompress
from logstore.format.codecs.limits import BLOCKS_FREE, MEMBERS_FREE
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
from tests.support.until import patience

BOMB_BYTES = 4 << 20
FREE_KIB = 48 << 10
ROUNDS = 100  # of random streams; ``python -m tests.fuzz.codecs --rounds N`` tries more


@pytest.mark.slow
@pytest.mark.parametrize("codec", dict.fromkeys(str(bomb.codec) for bomb in BOMBS.values()))
def test_bombs(codec: str) -> None:
    """The right content or the right error, with little memory above the content."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.codec_bombs", codec, str(BOMB_BYTES)],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for name, found in json.loads(result.stdout).items():
        bomb, cost = BOMBS[name], Cost(*found)
        if bomb.refused is None:
            assert (cost.error, cost.size) == (None, bomb.content(BOMB_BYTES)), name
        else:
            assert bomb.refused in str(cost.error), name
        assert cost.grown < FREE_KIB + (2 * cost.size >> 10), name


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4 * ROUNDS, ROUNDS))
def test_random_streams(first: int) -> None:
    for seed in range(first, first + ROUNDS):
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
