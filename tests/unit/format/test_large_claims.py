"""A batch that claims to be large is read only if its checksum is right, and memory allows it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from logstore.cli import main
from logstore.common.errors import CorruptBatchError, ResourceBusyError
from logstore.directory.windows import WINDOW, BatchTable, Windows
from logstore.format.batch import encode_batch
from logstore.log.partition_log import PartitionLog
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.storage.local import LocalStorage

CLAIMED = 100 << 20
NAME = f"{0:020}.log"


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    """A partition whose only batch has the length of 100 MiB, in a sparse file."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    batch = bytearray(encode_batch([(None, b"value")]))
    batch[8:12] = (CLAIMED - 12).to_bytes(4, "big")
    (directory / NAME).write_bytes(batch)
    os.truncate(directory / NAME, CLAIMED)
    return directory


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that are asked of the medium."""
    sizes: list[int] = []
    pread = os.pread

    def watched(descriptor: int, size: int, position: int) -> bytes:
        sizes.append(size)
        return pread(descriptor, size, position)

    monkeypatch.setattr(os, "pread", watched)
    return sizes


def test_spark_reads_no_large_batch_with_another_checksum(claim: Path, largest: list[int]) -> None:
    file = LocalStorage().open(str(claim / NAME), writable=False)
    windows = Windows(file, file.path, 0, CLAIMED)
    with pytest.raises(CorruptBatchError, match="104857600 bytes with another checksum"):
        next(windows.tables(BatchTable))
    assert max(largest) <= WINDOW
    file.close()


def refuse(descriptor: int, size: int, position: int) -> bytes:
    raise MemoryError


def read_with_spark(directory: Path) -> object:
    file = LocalStorage().open(str(directory / NAME), writable=False)
    try:
        return next(Windows(file, file.path, 0, CLAIMED).tables(BatchTable))
    finally:
        file.close()


def follow(directory: Path) -> object:
    return next(DirectoryReader(directory).follow(0, timeout=0))


@pytest.mark.parametrize("read", [read_with_spark, follow, PartitionLog.open])
def test_memory_that_is_short_is_busy(
    claim: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(os, "pread", refuse)
    with pytest.raises(ResourceBusyError, match="not enough memory"):
        read(claim)


@pytest.mark.parametrize("start", ["earliest", "latest", "@1"])
def test_the_command_tells_of_short_memory_in_one_line(
    claim: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setattr(os, "pread", refuse)
    result = CliRunner().invoke(main, ["read", str(claim.parent), "t", "--from", start])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {claim / NAME}: read: not enough memory")


def test_any_command_tells_of_short_memory_in_one_line(
    claim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pread", refuse)
    result = CliRunner().invoke(main, ["dump", str(claim / NAME)])
    assert (result.exit_code, result.stderr) == (2, "error: not enough memory\n")
