"""``PartitionLog.to_arrow``: the same records as objects, from any offset to any other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from logstore import Compression, LogConfig
from logstore.common.errors import ResultTooLargeError
from logstore.log import PartitionLog

pytest.importorskip("pyarrow")


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Several segments; every codec; nulls and headers; one truncated and one deleted end."""
    chance = random.Random(7)
    config = LogConfig(segment_bytes=6000, index_interval_bytes=300)
    log = PartitionLog.open(tmp_path / "t-0", config)
    for _ in range(60):
        records = [
            (
                chance.choice([None, b"", b"key", chance.randbytes(20)]),
                chance.choice([None, b"", chance.randbytes(chance.randrange(200))]),
                chance.randrange(10**12),
                chance.choice([(), (("h", b"x"), ("null", None))]),
            )
            for _ in range(chance.randrange(1, 9))
        ]
        log.append(records, compression=chance.choice(list(Compression)))
    log.truncate_to(log.log_end_offset - 5)
    log.delete_records(11)
    assert len(log.segments) > 3
    return log


def rows(log: PartitionLog, start: int | None, end: int | None) -> list[tuple[object, ...]]:
    found = []
    for batch in log.to_arrow(start, end, headers=True):
        for row in batch.to_pylist():
            headers = tuple((h["key"], h["value"]) for h in row["headers"])
            found.append((row["offset"], row["timestamp"], row["key"], row["value"], headers))
    return found


@pytest.mark.parametrize(
    ("start", "end"), [(None, None), (11, 12), (13, 100), (50, None), (None, 60), (90, 90)]
)
def test_arrow_holds_the_same_records(
    log: PartitionLog, start: int | None, end: int | None
) -> None:
    with log:
        expected = [
            (r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
            for r in log.records(start, end)
        ]
        assert rows(log, start, end) == expected
        assert expected or start == end


def test_columns_that_nobody_wants_are_left_out(log: PartitionLog) -> None:
    with log:
        (batch, *_) = log.to_arrow()
        assert batch.schema.names == ["offset", "timestamp", "key", "value"]


@pytest.mark.parametrize("compression", ["uncompressed", "zstd"])
def test_one_record_batch_has_all_records_or_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    """A column of ``binary`` ends at 2 GiB, here at 4 KiB; a part of the records is no answer."""
    monkeypatch.setattr("logstore.format.arrow._COLUMN_BYTES_MAX", 4096)
    with PartitionLog.open(tmp_path / "t-0") as log:
        for number in range(6):
            log.append([(b"%d" % number, bytes(1000))], compression=compression)
        three = log.read(0, up_to=3).to_arrow()
        assert three.column("offset").to_pylist() == [0, 1, 2]
        with pytest.raises(ResultTooLargeError, match=r"PartitionLog.to_arrow"):
            log.read(0).to_arrow()
        assert sum(batch.num_rows for batch in log.to_arrow()) == 6
