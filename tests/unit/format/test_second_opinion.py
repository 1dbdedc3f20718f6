"""A kernel that takes good bytes for bad ones must not condemn them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from logstore.common.errors import InvariantError
from logstore.format import second_opinion
from logstore.format.second_opinion import confirm_bad_checksum
from logstore.kernels import crc32c
from logstore.log import PartitionLog
from logstore.storage.local import LocalStorage
from logstore.verify import verify
from tests.support.builders import batch
from tests.support.leftovers import descriptors

LOG = f"{0:020}.log"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of three batches, of which a flipped bit damages the second."""
    with PartitionLog.open(tmp_path / "orders-0") as log:
        for n in range(3):
            log.append([(b"key", b"value %d" % n)])
    path = tmp_path / "orders-0" / LOG
    data = bytearray(path.read_bytes())
    data[_second(data) + 70] ^= 1
    path.write_bytes(data)
    (tmp_path / "orders-0" / "clean-stop").unlink(missing_ok=True)
    return tmp_path / "orders-0"


def _second(data: bytes | bytearray) -> int:
    return 12 + int.from_bytes(data[8:12], "big")


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library finds right whatever the batch is."""
    monkeypatch.setattr(second_opinion, "crc32c", lambda data, value=0: crc32c(data, value) ^ 1)


def confirm(path: Path, position: int = 0) -> None:
    file = LocalStorage().open(str(path), writable=False)
    try:
        confirm_bad_checksum(file, str(path), position, path.stat().st_size)
    finally:
        file.close()


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_both_agree(tmp_path: Path, magic: int) -> None:
    golden = Path(__file__).parents[2] / "golden" / "data" / f"v{magic}-none"
    for log in golden.glob("*.log"):
        confirm(log)
        data = bytearray(log.read_bytes())
        data[30] ^= 1
        (tmp_path / LOG).write_bytes(data)
        confirm(tmp_path / LOG)


def test_a_kernel_that_is_wrong_is_named(tmp_path: Path, blind: None) -> None:
    (tmp_path / LOG).write_bytes(batch(0))
    with pytest.raises(InvariantError, match=rf"{LOG} at byte 0: the kernel computes 0x.* nothing"):
        confirm(tmp_path / LOG)


def test_what_is_not_whole_is_not_judged(tmp_path: Path, blind: None) -> None:
    data = batch(0)
    for size in (0, 5, 20, len(data) - 1):
        (tmp_path / LOG).write_bytes(data[:size])
        confirm(tmp_path / LOG)
    (tmp_path / LOG).write_bytes(data[:16] + b"\x07" + data[17:])
    confirm(tmp_path / LOG)


@pytest.mark.parametrize("size", [2**31 - 1, -1, -(2**31), 2])
def test_a_length_that_lies_is_not_believed(tmp_path: Path, blind: None, size: int) -> None:
    data = bytearray(batch(0))
    data[8:12] = size.to_bytes(4, "big", signed=True)
    (tmp_path / LOG).write_bytes(data)
    confirm(tmp_path / LOG)


def test_recovery_asks_before_it_cuts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (directory / LOG).read_bytes()
    asked: list[int] = []

    def differ(file: object, path: str, position: int, size: int) -> None:
        asked.append(position)
        raise InvariantError(f"{path} at byte {position}")

    with monkeypatch.context() as patch:
        patch.setattr("logstore.recovery.crash_recovery.confirm_bad_checksum", differ)
        before_opening = descriptors(directory)
        with pytest.raises(InvariantError):
            PartitionLog.open(directory)
        assert descriptors(directory) == before_opening == Counter()
    assert asked == [_second(before)]
    assert (directory / LOG).read_bytes() == before
    with PartitionLog.open(directory) as log:
        assert log.log_end_offset == 1


def test_verify_asks_before_it_tells(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "log-checksum" in {finding.rule for finding in verify([directory]).findings}

    def differ(file: object, path: str, position: int, size: int) -> None:
        raise InvariantError(f"{path} at byte {position}")

    monkeypatch.setattr("logstore.verify.segment.scan.confirm_bad_checksum", differ)
    with pytest.raises(InvariantError):
        verify([directory])
