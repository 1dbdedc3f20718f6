"""``verify`` and ``dump`` of files that change while they are read, lie about their size or are
sparse: an exit code of 0, 1 or 2, in bounded time and memory."""

from __future__ import annotations

import os
import random
import resource
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logstore.format.batch import encode_batch

MIB = 1 << 20
LIMIT = 700 * MIB
"""Of address space above what the interpreter takes with all modules loaded."""

CHILD = """
import resource, sys
from click.testing import CliRunner
from logstore.cli import main
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main(sys.argv[2:])
"""


def run(*arguments: object, extra: int = LIMIT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(extra), *map(str, arguments)],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip


def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    return directory


def sparse(path: Path, size: int, head: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def claiming(size: int) -> bytes:
    """The first bytes of a batch of ``size`` bytes."""
    batch = bytearray(encode_batch([(b"key", b"value", 1)]))
    batch[8:12] = struct.pack(">i", size - 12)
    return bytes(batch)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "dump"])
def test_a_batch_that_claims_two_gigabytes(tmp_path: Path, command: str) -> None:
    log = sparse(partition(tmp_path) / f"{0:020}.log", 2**31 - 1, claiming(2**31 - 100))
    found = run(command, log)
    assert found.returncode == 1, found.stderr[-2000:]
    assert "Traceback" not in found.stderr
    # more than the file has: told from the header alone
    log.unlink()
    sparse(log, 1000, claiming(2**31 - 100))
    assert run(command, log.parent).returncode in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("verify",), ("dump",), ("dump", "--deep")])
def test_files_that_others_cut(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Large windows and many segments, while they are cut, grow, vanish and come back."""
    directory = partition(tmp_path)
    large = encode_batch([(b"key", bytes(40 * MIB), 1)])
    small = encode_batch([(b"key", b"value" * 200, 1)])
    files = [directory / f"{base:020}.log" for base in (0, 5, 10, 15, 20)]
    content = [large, *(bytearray(small) for _ in files[1:])]
    for base, data in zip((5, 10, 15, 20), content[1:], strict=True):
        struct.pack_into(">q", data, 0, base)
    for path, data in zip(files, content, strict=True):
        path.write_bytes(data)
    rng = random.Random(3)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(2 * LIMIT), *arguments, str(directory)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 20
    while child.poll() is None and time.monotonic() < end:
        path = rng.choice(files)
        match rng.randrange(4):
            case 0 if path.exists():
                os.truncate(path, rng.randrange(0, max(1, path.stat().st_size)))
            case 1 if path.exists():
                os.truncate(path, path.stat().st_size + rng.randrange(MIB))
            case 2:
                path.unlink(missing_ok=True)
            case _:
                path.write_bytes(content[files.index(path)])
        time.sleep(0.002)
    assert child.poll() is not None, "it hangs"
    _, told = child.communicate()
    assert child.returncode in (0, 1, 2), told[-2000:]
    assert "Traceback" not in told
