"""``python -m tests.fuzz.codec_bombs CODEC BYTES``: what its bombs cost, as JSON.

A process of its own: the peak of its memory is theirs, and limits of memory and of processor time
stop the worst.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import NamedTuple

from logstore.common.errors import CorruptBatchError
from logstore.format.codecs.compression import Compression, decompress
from tests.fuzz.codec_streams import BOMBS, GIB, Bomb


class Cost(NamedTuple):
    """What came of a bomb, and what it cost."""

    error: str | None
    size: int  # of the content, in bytes
    grown: int  # peak of memory above what there was before, in KiB


def status(field: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))


def explode(bomb: Bomb, size: int) -> Cost:
    stream = bomb.make(size)
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")  # forget the peak of making it
    before, error, found = status("VmRSS"), None, 0
    try:
        found = len(decompress(bomb.codec, stream, magic=bomb.magic))
    except CorruptBatchError as refusal:
        error = str(refusal)
    return Cost(error, found, status("VmHWM") - before)


def main() -> None:
    codec, size = Compression.of(sys.argv[1]), int(sys.argv[2])
    most = (status("VmSize") << 10) + 2 * GIB
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    bombs = {name: bomb for name, bomb in BOMBS.items() if bomb.codec is codec}
    json.dump(
        {name: explode(bomb, size) for name, bomb in bombs.items()},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
