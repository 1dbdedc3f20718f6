"""A tier and a log directory as one log: what is taken from where, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from checkpoints.offset_checkpoint import LOG_START, OffsetCheckpoint
from checkpoints.types import TopicPartition
from logstore.directory.errors import TierRefusedError
from logstore.directory.layout import list_partitions
from logstore.directory.listing import PartitionLayout
from logstore.directory.tiered import Epochs, joined, parted
from logstore.storage.local import LocalStorage
from tests.support.tiered_logs import Tiered


def both(local: Path, tier: Path, *, prefer_tier: bool = False) -> PartitionLayout:
    listed = [list_partitions([str(path)]) for path in (local, tier)]
    (found,) = joined(*listed, prefer_tier=prefer_tier)
    return found


def test_a_hole_between_tier_and_local_is_refused(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    tier, local = log.bases(log.tier), log.bases(log.local)
    log.end_tier_at(tier[2])
    for snapshot in log.partition(log.tier).glob("*.snapshot"):
        if int(snapshot.stem) > tier[2]:
            snapshot.unlink()
    border = min(base for base in local if base > tier[2])
    log.retain_locally(border)
    reason = f"offsets {tier[2]} to {border} are in neither: .* a listing of a store may lag"
    with pytest.raises(TierRefusedError, match=reason) as error:
        both(log.local, log.tier)
    assert str(log.partition(log.local)) in str(error.value)
    assert str(log.partition(log.tier)) in str(error.value)


def test_another_batch_at_the_border_is_refused(tmp_path: Path) -> None:
    log, other = Tiered(tmp_path / "one"), Tiered(tmp_path / "other", transactions=True)
    log.retain_locally(log.bases(log.local)[1])
    for name in (LEADER_EPOCH, "partition.metadata"):
        shutil.copy(log.partition(log.local) / name, log.partition(other.tier) / name)
    with pytest.raises(TierRefusedError, match="at offset"):
        both(log.local, other.tier)


def test_other_leader_epochs_below_the_border_are_refused(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    epochs = LeaderEpochCheckpoint(str(log.partition(log.tier) / LEADER_EPOCH), LocalStorage())
    (first, _), second, *rest = epochs.read()
    border = min(base for base in log.bases(log.local) if base > second[1])
    epochs.write([(first, 0), (first + 1, second[1] - 1), *[e for e in rest if e[0] > first + 1]])
    log.retain_locally(border)
    reason = f"from offset {second[1] - 1} on they were written by different leaders"
    with pytest.raises(TierRefusedError, match=reason):
        both(log.local, log.tier)


A, B, C = (0, 0), (1, 100), (2, 200)


@pytest.mark.parametrize(
    ("tier", "local", "start", "end", "expected"),
    [
        ((), (A,), 0, 100, None),
        ((A, B), (A, B), 0, 300, None),
        ((A, B, C), ((1, 150), C), 0, 300, None),  # the local log starts at 150
        ((A, B), (A, (2, 150)), 0, 120, 100),
        ((A, B), (A, (2, 150)), 0, 100, None),
        ((A, B), (A, B, C), 0, 200, None),
        ((A, B), (A, B, C), 0, 201, 200),
        ((A, (1, 210)), (A, (2, 205)), 150, 220, 205),
        ((A,), ((1, 150),), 0, 200, 150),
        ((A,), ((1, 150),), 0, 150, None),
    ],
)
def test_where_two_histories_part(
    tier: Epochs, local: Epochs, start: int, end: int, expected: int | None
) -> None:
    assert parted(tier, local, start, end) == expected


def test_a_topic_made_anew_is_not_mixed_with_the_old_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, other = Tiered(tmp_path / "one"), Tiered(tmp_path / "other")
    log.retain_locally(log.bases(log.local)[1])
    found = both(log.local, other.tier)
    assert found.tier is None
    assert found.log_start_offset == log.bases(log.local)[0]
    assert "of another topic of that name" in caplog.text


def test_a_log_start_that_was_ordered_stands(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    log.retain_locally(log.bases(log.local)[2])
    starts = OffsetCheckpoint(str(log.local / LOG_START), LocalStorage())
    starts.write({TopicPartition("orders", 0): 11})
    assert both(log.local, log.tier).log_start_offset == 11


def test_a_partition_of_the_tier_alone_is_read_there(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    shutil.rmtree(log.partition(log.local))
    found = both(log.local, log.tier)
    assert found.uri == str(log.partition(log.tier))


def test_a_segment_that_reaches_beyond_the_border_counts_up_to_there(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    border = log.bases(log.local)[2]
    assert border not in log.bases(log.tier)
    log.retain_locally(border)
    found = both(log.local, log.tier)
    last = max((s for s in found.segments if s.base_offset < border), key=lambda s: s.base_offset)
    path = log.partition(log.tier) / f"{last.base_offset:020}.log"
    data = path.read_bytes()
    assert last.file_size == len(data)
    assert int.from_bytes(data[last.size : last.size + 8], "big") == border
    assert found.place_of(last.base_offset) == str(path.parent)
    assert found.place_of(border) == str(log.partition(log.local))
