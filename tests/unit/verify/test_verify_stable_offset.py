"""The last stable offset of an aborted transaction, where a torn segment forbids a replay."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from logstore.format.index_entry import TXN_ENTRY
from logstore.verify import verify

GOLDEN = Path(__file__).parents[2] / "golden" / "data" / "v2-txn"


def findings(directory: Path, stable: int | None) -> list[str]:
    """With the log torn, after the first entry was given the last stable offset ``stable``."""
    shutil.copytree(GOLDEN, directory)
    log, index = next(directory.glob("*.log")), next(directory.glob("*.txnindex"))
    os.truncate(log, log.stat().st_size - 1)
    if stable is not None:
        data = bytearray(index.read_bytes())
        fields = list(TXN_ENTRY.unpack_from(data))
        fields[-1] = int(index.stem) + stable
        TXN_ENTRY.pack_into(data, 0, *fields)
        index.write_bytes(data)
    return [f.rule for f in verify([directory]).findings if f.file == str(index)]


@pytest.mark.parametrize("stable", [2**31 + 1, 2**32, 2**62, -(2**62)])
def test_one_that_no_segment_holds_is_found(tmp_path: Path, stable: int) -> None:
    assert findings(tmp_path / "t-0", stable) == ["txnindex-entries"]


@pytest.mark.parametrize("stable", [None, 0, 1000, 2**31])
def test_one_that_may_have_been_torn_off_is_not(tmp_path: Path, stable: int | None) -> None:
    assert findings(tmp_path / "t-0", stable) == []
