"""``python -m tests.fuzz.codecs --seed S --rounds N``: random and damaged streams of each codec.

A stream of any structure gives its content; a cut or damaged one gives content within the limit or
``CorruptBatchError``, and nothing else. What the standard library has a codec for is as it says, in
its words.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer
from logstore.format.codecs.compression import Compression, decompress
from logstore.format.codecs.limits import CodecError
from tests.fuzz.codec_streams import random_stream
from tests.reference.codecs import TWINS

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
DAMAGES = 12
LIMIT = 1 << 20


def random_content(rng: random.Random) -> bytes:
    size = rng.choice([0, 1, 100, 5_000, 200_000])
    parts, length = [], 0
    while length < size:
        part = rng.choice(
            [rng.randbytes(rng.randint(1, 300)), b"\0" * rng.randint(1, 70_000), b"text, text " * 9]
        )
        parts.append(part)
        length += len(part)
    return b"".join(parts)[:size]


def damaged(rng: random.Random, stream: bytes) -> bytes:
    copy = bytearray(stream)
    match rng.randrange(4):
        case 0:
            del copy[rng.randrange(len(copy)) :]
        case 1:
            at = rng.randrange(min(len(copy), rng.choice([8, 64, len(copy)])))
            copy[at] ^= 1 << rng.randrange(8)
        case 2:
            at = rng.randrange(len(copy))
            copy[at : at + rng.choice([1, 4, 8])] = rng.choice(
                [b"", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4), rng.randbytes(3)]
            )
        case _:
            at = rng.randrange(len(copy))
            copy[at:at] = copy[: rng.randint(1, 64)]
    return bytes(copy)


def outcome(unpack: Callable[[Compression, bytes, int], Buffer], *args: Any) -> bytes | str:
    """The content, or why there is none."""
    try:
        return bytes(unpack(*args))
    except (CorruptBatchError, CodecError) as error:
        return error.reason if isinstance(error, CorruptBatchError) else str(error)


def by_the_twin(codec: Compression, stream: bytes, limit: int) -> Buffer:
    content: Buffer = TWINS[codec].decompress(stream, limit)
    return content


def check(seed: int) -> None:
    """One round; ``AssertionError`` or any error but ``CorruptBatchError`` is a defect."""
    rng = random.Random(seed)
    codec = rng.choice(CODECS)
    content = random_content(rng)
    stream = random_stream(rng, codec, content)
    assert bytes(decompress(codec, stream)) == content
    assert bytes(decompress(codec, stream, len(content))) == content
    if content:
        with pytest.raises(CorruptBatchError, match="limit"):
            decompress(codec, stream, len(content) - 1)
    for _ in range(DAMAGES):
        hostile = damaged(rng, stream)
        found = outcome(decompress, codec, hostile, LIMIT)
        assert isinstance(found, str) or len(found) <= LIMIT
        if codec in TWINS:
            assert found == outcome(by_the_twin, codec, hostile, LIMIT)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.codecs", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--rounds", type=int, default=10_000)
    args = parser.parse_args()
    started = time.monotonic()
    for seed in range(args.seed, args.seed + args.rounds):
        try:
            check(seed)
        except BaseException:
            print(f"Repeat it with: python -m tests.fuzz.codecs --seed {seed} --rounds 1")
            raise
    print(f"{args.rounds} rounds, {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
