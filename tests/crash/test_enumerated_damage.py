"""Damage behind the tail: S-52 … S-55, and what a log refuses of producers: S-56, S-57."""

from __future__ import annotations

import random
from pathlib import PurePosixPath

import pytest

from checkpoints.offset_checkpoint import LOG_START, RECOVERY_POINT
from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import (
    CorruptBatchError,
    CorruptDataError,
    InvalidProducerEpochError,
    LogstoreError,
    OutOfOrderSequenceError,
)
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
from logstore.recovery.recovery import RecoveryOptions
from logstore.storage.base import Storage
from logstore.testing import FaultyStorage, ManualClock
from tests.crash.checks import check_lookups, check_state
from tests.crash.disk import (
    CONFIG,
    DIRECTORY,
    T0,
    assert_nothing_gone,
    batches_of,
    disk_with,
    joined,
    log_bytes,
    open_log,
    opening_crashes,
    segment_path,
    tree,
    written,
)
from tests.crash.model import Batch, as_client, data_batch
from tests.support.logs import check_invariants

BATCHES = batches_of(40)
FILES = written(BATCHES, rolls=4)  # ten segments of twelve records
BAD = 14  # a batch in segment 3
PATH = f"{DIRECTORY}/00000000000000000036.log"


def rotten() -> dict[str, bytes]:
    data = bytearray(FILES[PATH])
    data[2 * len(BATCHES[0].data) + 100] ^= 4
    return FILES | {PATH: bytes(data)}


@pytest.mark.parametrize("point", [48, 120])
def test_s52_below_the_recovery_point_only_the_reader_sees_it(point: int) -> None:
    """The damaged batch is an error with its place, all others stay readable."""
    log = open_log(disk_with(rotten()), clean=point == 120, recovery_point=point)
    assert log.log_end_offset == 120
    for batch in BATCHES:
        wanted = range(batch.base, batch.last + 1)
        if batch is BATCHES[BAD]:
            with pytest.raises(CorruptBatchError, match=r"36\.log") as error:
                log.read(batch.base, 1).records()
            assert error.value.position == 2 * len(batch.data)
        else:
            assert [r.offset for r in log.read(batch.base, 1).records()] == list(wanted)


@pytest.mark.parametrize("keep", ["valid", "never", "always"])
def test_s52_above_the_recovery_point_it_is_cut_and_kept_aside(keep: str) -> None:
    """Told apart from a torn tail: good batches lie behind, and none of their bytes is lost."""
    storage = disk_with(rotten())
    log = open_log(storage, options=RecoveryOptions(keep_cut=keep))
    assert log.log_end_offset == BATCHES[BAD].base
    assert log_bytes(storage) == joined(BATCHES[:BAD])
    check_state(log, BATCHES[:BAD], whole=True)
    report = log.recovery_report
    assert report.bytes_valid_behind_cut == len(BATCHES[0].data)
    kept = {PurePosixPath(p).name: d for p, d in tree(storage) if p.endswith(".cut")}
    if keep == "never":
        assert kept == {}
        return
    assert b"".join(kept[name] for name in sorted(kept)) == joined_rotten()
    assert sum(map(len, kept.values())) == report.bytes_cut


def joined_rotten() -> bytes:
    """Everything from the damage to the end, as it was."""
    logs = sorted(p for p in FILES if p.endswith(".log"))
    return rotten()[PATH][2 * len(BATCHES[0].data) :] + b"".join(FILES[p] for p in logs if p > PATH)


def offsets_of(log: PartitionLog) -> list[int]:
    return [record.offset for record in log.records()]


OVERLAPS = {
    "the second repeats the end of the first": {0: BATCHES[:4], 6: BATCHES[2:4]},
    "the first batch lies below the base": {0: BATCHES[:2], 9: BATCHES[2:4]},
    "a gap between segments": {0: BATCHES[:2], 12: BATCHES[4:6]},
    "an empty segment in the middle": {0: BATCHES[:2], 6: [], 8: BATCHES[3:5]},
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("shape", list(OVERLAPS))
def test_s53_duplicate_or_overlapping_segments(shape: str, clean: bool) -> None:
    """Each offset at most once and in order, or a refusal."""
    files = {segment_path(base): joined(batches) for base, batches in OVERLAPS[shape].items()}
    try:
        log = open_log(disk_with(files), clean=clean)
        offsets = offsets_of(log)
    except CorruptDataError:
        return
    assert offsets == sorted(set(offsets))
    for offset in offsets:
        assert log.read(offset, 1).records()[0].offset == offset


def test_s53_one_record_that_reaches_into_the_next_segment() -> None:
    """The segment before the recovery point is scanned too, and ends where the next one begins."""
    files = {segment_path(0): joined(BATCHES[:4]), segment_path(11): joined(batches_of(2, base=11))}
    storage = disk_with(files)
    log = open_log(storage, recovery_point=17)
    assert log_bytes(storage) == joined(BATCHES[:3])
    assert log.log_end_offset == 9
    assert_nothing_gone(storage, [*BATCHES[:4], *batches_of(2, base=11)])
    assert log.recovery_report.offsets_lost == (9, 17)


def test_s53_a_name_that_is_not_canonical_is_ignored() -> None:
    files = FILES | {f"{DIRECTORY}/36.log": joined(BATCHES[:2])}
    log = open_log(disk_with(files))
    assert offsets_of(log) == list(range(120))
    assert any("36.log" in warning for warning in log.recovery_report.warnings)


# -- leader epochs that fall -----------------------------------------------------------------------

FALLEN = [*batches_of(4, epoch=5), *batches_of(3, epoch=3, base=12)]


@pytest.mark.parametrize("rolled", [False, True])
def test_batches_of_a_lower_epoch_are_kept(rolled: bool) -> None:
    """A leader under fresh, lower epochs wrote on, and was killed: Kafka keeps what it wrote, and
    the epoch cache takes an epoch only above the latest (F-232)."""
    if rolled:
        files = {segment_path(0): joined(FALLEN[:4]), segment_path(12): joined(FALLEN[4:])}
    else:
        files = {segment_path(0): joined(FALLEN)}
    storage = disk_with(files)
    log = open_log(storage)
    assert log_bytes(storage) == joined(FALLEN)
    assert [r.offset for r in log.records()] == list(range(21))
    assert [tuple(entry) for entry in log.epochs.entries] == [(5, 0)]
    report = log.recovery_report
    assert (report.bytes_cut, report.epoch_falls) == (0, 1)
    assert [w for w in report.warnings if "leader epochs fall" in w and "offset 12" in w]
    check_invariants(log)
    log.replica.append_as_follower(batches_of(1, epoch=6, base=21)[0].data)
    assert [tuple(entry) for entry in log.epochs.entries] == [(5, 0), (6, 21)]


def test_a_leader_that_fell_back_loses_nothing_when_killed() -> None:
    """Written through the log itself: first under epoch 7, then, taken over, under epoch 2."""
    storage = disk_with({})
    log = open_log(storage)
    for epoch in (7, 2):
        for batch in batches_of(5):
            log.append_as_leader(as_client(batch), epoch)
    log.flush()
    assert [tuple(entry) for entry in log.epochs.entries] == [(2, 15)]  # F-204
    storage.crash(mode="all_kept")
    log.crash()
    log = open_log(storage, recovery_point=0)
    assert log.log_end_offset == 30
    assert log.recovery_report.bytes_cut == 0
    assert [tuple(entry) for entry in log.epochs.entries] == [(7, 0)]


# -- whatever valid is cut is set aside ------------------------------------------------------------


def kept_files(storage: Storage) -> dict[str, bytes]:
    return {PurePosixPath(p).name: d for p, d in tree(storage) if p.endswith(".cut")}


def one_segment(data: bytes) -> FaultyStorage:
    return disk_with({segment_path(0): data})


WHOLE = joined(BATCHES[:6])
SIZE = len(BATCHES[0].data)


def wrong_length(data: bytes, batch: int) -> bytes:
    """The length field of a batch leads into the middle of the next one."""
    changed = bytearray(data)
    changed[batch * SIZE + 11] ^= 0x10
    return bytes(changed)


VALID_BEHIND = {
    "the first batch cut is whole": (WHOLE + BATCHES[2].data, len(WHOLE), SIZE),
    "a wrong length": (wrong_length(WHOLE, 2), 2 * SIZE, 4 * SIZE),
    "a negative length": (
        WHOLE[: 2 * SIZE + 8] + b"\xff" + WHOLE[2 * SIZE + 9 :],
        2 * SIZE,
        4 * SIZE,
    ),
    "behind a torn batch": (WHOLE[: 4 * SIZE - 9] + WHOLE[4 * SIZE :], 3 * SIZE, 2 * SIZE),
    "behind zeros": (WHOLE[:SIZE] + bytes(5000) + WHOLE[SIZE:], SIZE, 5 * SIZE),
}


@pytest.mark.parametrize("shape", list(VALID_BEHIND))
def test_valid_bytes_that_are_cut_are_kept_counted_and_told_of(shape: str) -> None:
    data, end, valid = VALID_BEHIND[shape]
    storage = one_segment(data)
    log = open_log(storage)
    assert log.size == end
    assert kept_files(storage) == {f"{0:020}.log.{end}.cut": data[end:]}
    report = log.recovery_report
    assert report.bytes_valid_behind_cut == valid
    assert report.bytes_cut == report.bytes_set_aside == len(data) - end
    assert any(f"{valid} bytes of whole batches" in warning for warning in report.warnings)


@pytest.mark.parametrize("tail", ["torn", "zeros", "garbage"])
def test_a_tail_without_a_whole_batch_leaves_nothing_behind(tail: str) -> None:
    data = {
        "torn": WHOLE[:-5],
        "zeros": WHOLE + bytes(700),
        "garbage": WHOLE + random.Random(1).randbytes(900),
    }[tail]
    storage = one_segment(data)
    report = open_log(storage).recovery_report
    assert report.bytes_cut
    assert (report.bytes_set_aside, kept_files(storage)) == (0, {})
    assert not any("whole batches" in warning for warning in report.warnings)


def test_the_tail_cut_on_a_clean_start_is_kept_where_it_is_valid() -> None:
    torn = WHOLE + b"\xff" * 4096 + BATCHES[7].data
    storage = disk_with(written(BATCHES[:6]) | {segment_path(0): torn})
    log = open_log(storage, clean=True, recovery_point=18)
    assert (log.log_end_offset, log.size) == (18, len(WHOLE))
    assert kept_files(storage) == {f"{0:020}.log.{len(WHOLE)}.cut": torn[len(WHOLE) :]}
    report = log.recovery_report
    assert (report.bytes_valid_behind_cut, report.bytes_set_aside) == (SIZE, len(torn) - len(WHOLE))
    assert report.warnings


def test_what_a_doubtful_clean_stop_loses_is_kept_though_it_is_no_batch() -> None:
    """A clean stop flushed it, although no recovery point is on file."""
    torn = WHOLE + BATCHES[6].data[:-7]
    storage = disk_with(written(BATCHES[:6]) | {segment_path(0): torn})
    log = open_log(storage, clean=True)
    assert (log.log_end_offset, log.size) == (18, len(WHOLE))
    assert log.recovery_report.clean_doubt
    assert kept_files(storage) == {f"{0:020}.log.{len(WHOLE)}.cut": torn[len(WHOLE) :]}


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_holds_batches_is_never_emptied_in_silence(clean: bool) -> None:
    """F-246: all of it lies below the log start that the checkpoint has."""
    storage = disk_with(FILES)
    log = open_log(storage, clean=clean, log_start_offset=500)
    assert log.log_start_offset == log.log_end_offset == 500
    kept = kept_files(storage)
    assert sorted(kept) == [f"{base:020}.log.0.cut" for base in range(0, 120, 12)]
    assert b"".join(kept[name] for name in sorted(kept)) == joined(BATCHES)
    report = log.recovery_report
    assert report.bytes_cut == report.bytes_set_aside == len(joined(BATCHES))
    assert len([w for w in report.warnings if "with whole batches" in w]) == 10
    log.append([(b"k", b"v")])
    log.close()
    assert open_log(storage, clean=True, log_start_offset=500).recovery_report.bytes_cut == 0


def test_an_empty_log_below_its_start_is_no_cause_for_a_warning() -> None:
    storage = disk_with({segment_path(0): b""})
    assert open_log(storage, log_start_offset=7).recovery_report.warnings == []


def test_what_was_kept_before_is_not_replaced() -> None:
    storage = one_segment(WHOLE + BATCHES[2].data)
    open_log(storage).crash()
    for again in (BATCHES[3], BATCHES[1], BATCHES[3]):
        storage.open(segment_path(0)).write_at(len(WHOLE), again.data)
        open_log(storage).crash()
    stem = f"{0:020}.log.{len(WHOLE)}"
    assert kept_files(storage) == {
        f"{stem}.cut": BATCHES[2].data,
        f"{stem}.1.cut": BATCHES[3].data,
        f"{stem}.2.cut": BATCHES[1].data,
    }


def test_a_segment_kept_before_is_not_replaced() -> None:
    other = {f"{segment_path(48)}.0.cut": b"of an earlier crash"}
    storage = disk_with(rotten() | other)
    open_log(storage).crash()
    assert_nothing_gone(storage, BATCHES[:BAD] + BATCHES[BAD + 1 :])
    assert kept_files(storage)[f"{48:020}.log.0.cut"] == b"of an earlier crash"


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*VALID_BEHIND, "segments behind it", "emptied"])
def test_no_crash_loses_what_recovery_sets_aside(shape: str) -> None:
    start = 0
    if shape == "segments behind it":
        files = {p: d for p, d in rotten().items() if p < segment_path(60)}
        alive = BATCHES[:BAD] + BATCHES[BAD + 1 : 20]
    elif shape == "emptied":
        files, alive, start = written(BATCHES[:8], rolls=4), BATCHES[:8], 500
    else:
        data = VALID_BEHIND[shape][0]
        files = {segment_path(0): data}
        alive = [batch for batch in BATCHES if batch.data in data]
    kept: dict[str, bytes] | None = None
    for storage, place in opening_crashes(
        lambda: disk_with(files), lambda disk: open_log(disk, log_start_offset=start)
    ):
        assert_nothing_gone(storage, alive, place)
        open_log(storage, log_start_offset=start).crash()
        assert_nothing_gone(storage, alive, place)
        kept = kept or kept_files(storage)
        assert kept_files(storage) == kept, place
        assert not [path for path, _ in tree(storage) if path.endswith(".tmp")], place
    assert kept


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_shorter_than_its_recovery_point_says_what_is_lost(clean: bool) -> None:
    """The last segments are gone, as after a file system check."""
    files = {p: d for p, d in FILES.items() if not p.rpartition("/")[2] > f"{96:020}"}
    report = open_log(disk_with(files), clean=clean, recovery_point=120).recovery_report
    assert report.offsets_lost == (96, 120)
    assert [w for w in report.warnings if "[96, 120)" in w]


def test_a_log_as_long_as_its_recovery_point_has_lost_nothing() -> None:
    assert open_log(disk_with(FILES), recovery_point=120).recovery_report.offsets_lost is None


# -- epoch files -----------------------------------------------------------------------------------

EPOCHS = [
    *batches_of(4, epoch=1),
    *batches_of(5, epoch=2, base=12),
    *batches_of(3, epoch=5, base=27),
]
EPOCH_FILES = written(EPOCHS, rolls=3)
EPOCH_PATH = f"{DIRECTORY}/leader-epoch-checkpoint"
EPOCH_DAMAGES: dict[str, bytes | None] = {
    "missing": None,
    "0 bytes": b"",
    "version line only": b"0\n",
    "count too small": b"0\n2\n1 0\n2 12\n5 27\n",
    "count too large": b"0\n4\n1 0\n2 12\n5 27\n",
    "out of order": b"0\n3\n2 12\n1 0\n5 27\n",
    "duplicate epoch": b"0\n3\n1 0\n1 12\n5 27\n",
    "the same start twice": b"0\n3\n1 0\n2 0\n5 27\n",
    "beyond the log end": b"0\n4\n1 0\n2 12\n5 27\n9 90\n",
    "negative": b"0\n3\n1 0\n-2 12\n5 27\n",
    "too large a number": b"0\n3\n1 0\n2 12\n99999999999 27\n",
    "unknown version": b"1\n3\n1 0\n2 12\n5 27\n",
    "garbage": random.Random(1).randbytes(60),
    "the last line is cut": b"0\n3\n1 0\n2 12\n5 2",
}


@pytest.mark.parametrize("damage", list(EPOCH_DAMAGES))
def test_s54_damaged_leader_epoch_checkpoint(damage: str) -> None:
    for clean in (True, False):
        content = EPOCH_DAMAGES[damage]
        files = {path: data for path, data in EPOCH_FILES.items() if path != EPOCH_PATH}
        if content is not None:
            files[EPOCH_PATH] = content
        storage = disk_with(files)
        log = open_log(storage, clean=clean, recovery_point=27)
        assert [tuple(entry) for entry in log.epochs.entries] == [(1, 0), (2, 12), (5, 27)]
        assert storage.read_file(EPOCH_PATH) == b"0\n3\n1 0\n2 12\n5 27\n"
        if damage != "beyond the log end":  # dropped by the rule of F-249, as after any crash
            assert log.recovery_report.warnings or log.recovery_report.actions


def manager_on(storage: Storage) -> LogManager:
    return LogManager(
        ["/d"],
        CONFIG,
        storage=storage,
        clock=ManualClock(T0 + 100_000),
        broker_config=BrokerConfig(num_recovery_threads_per_data_dir=1),
        owner=ManagerOwner(cluster_id="c"),
    )


CHECKPOINT_DAMAGES: dict[str, bytes] = {
    "unknown version": b"1\n1\nt 0 30\n",
    "duplicate line": b"0\n2\nt 0 30\nt 0 36\n",
    "trailing garbage": b"0\n1\nt 0 30\nxx\x00",
    "blank line at the end": b"0\n1\nt 0 30\n\n",
    "count mismatch": b"0\n5\nt 0 30\n",
    "carriage returns": b"0\r\n1\r\nt 0 30\r\n",
    "two fields": b"0\n1\nt 30\n",
    "four fields": b"0\n1\nt 0 30 1\n",
    "negative": b"0\n1\nt 0 -30\n",
    "another partition": b"0\n1\nu 7 30\n",
    "above the log end": b"0\n1\nt 0 5000\n",
    "binary": random.Random(2).randbytes(200),
}


@pytest.mark.parametrize("damage", list(CHECKPOINT_DAMAGES))
def test_s55_damaged_recovery_points(damage: str) -> None:
    """Unusable counts as absent: it costs time, never a record."""
    path = f"/d/{RECOVERY_POINT}"
    storage = disk_with(FILES | {path: CHECKPOINT_DAMAGES[damage]})
    manager = manager_on(storage)
    log = manager.get("t", 0)
    assert log.log_end_offset == 120
    assert log.recovery_point <= 120
    check_lookups(log, BATCHES, random.Random(1))
    log.flush()
    manager.housekeeper.checkpoint_recovery_points()
    assert storage.read_file(path) == b"0\n1\nt 0 120\n"


@pytest.mark.parametrize("damage", [d for d in CHECKPOINT_DAMAGES if d != "above the log end"])
def test_s55_damaged_log_start_offsets(damage: str) -> None:
    storage = disk_with(FILES | {f"/d/{LOG_START}": CHECKPOINT_DAMAGES[damage]})
    log = manager_on(storage).get("t", 0)
    usable = {"duplicate line": 36, "carriage returns": 30}
    assert log.log_start_offset in (0, usable.get(damage, 0))
    assert log.log_end_offset == 120


def test_s55_a_checkpoint_that_is_a_directory() -> None:
    """Counts as absent, and gets out of the way of the next one."""
    storage = disk_with(FILES)
    storage.make_dir(f"/d/{RECOVERY_POINT}")
    with manager_on(storage) as manager:
        assert [log.log_end_offset for log in manager.logs.values()] == [120]
    assert storage.read_file(f"/d/{RECOVERY_POINT}").endswith(b"t 0 120\n")
    info = storage.info(f"/d/{RECOVERY_POINT}.aside")
    assert info is not None
    assert info.is_dir


# -- producers -------------------------------------------------------------------------------------


def producer_batch(sequence: int, *, epoch: int = 0, count: int = 1, base: int = 0) -> Batch:
    rows = [(b"k", b"%d" % (sequence + at), T0) for at in range(count)]
    return data_batch(base, 0, rows, producer=7, producer_epoch=epoch, sequence=sequence)


def producing(upto: int, *, epoch: int = 0) -> tuple[FaultyStorage, PartitionLog]:
    storage = disk_with({})
    log = open_log(storage)
    for sequence in range(upto):
        log.append_as_leader(as_client(producer_batch(sequence, epoch=epoch)), 0)
    return storage, log


def test_s56_retries_give_the_original_offsets() -> None:
    _, log = producing(8)
    for sequence in range(3, 8):
        info = log.append_as_leader(as_client(producer_batch(sequence)), 0)
        assert (info.duplicate, info.first_offset) == (True, sequence)
    for sequence in range(3):  # older than the five remembered
        with pytest.raises(OutOfOrderSequenceError):
            log.append_as_leader(as_client(producer_batch(sequence)), 0)
    assert log.log_end_offset == 8


@pytest.mark.parametrize("rolled", [False, True])
def test_s56_a_retry_after_an_unclean_restart(rolled: bool) -> None:
    """A snapshot keeps the last batch of each producer, a replay up to five (F-128)."""
    storage, log = producing(6)
    if rolled:
        log.roll()
    storage.crash(mode="all_kept")
    log.crash()
    log = open_log(storage)
    assert log.append_as_leader(as_client(producer_batch(5)), 0).duplicate
    assert log.append_as_leader(as_client(producer_batch(6)), 0).first_offset == 6


def test_s57_sequence_gap_and_old_epoch() -> None:
    _, log = producing(10, epoch=3)
    refused: list[tuple[Batch, type[LogstoreError]]] = [
        (producer_batch(12, epoch=3), OutOfOrderSequenceError),
        (producer_batch(10, epoch=2), InvalidProducerEpochError),
        (producer_batch(5, epoch=4), OutOfOrderSequenceError),
    ]
    for batch, error in refused:
        with pytest.raises(error):
            log.append_as_leader(as_client(batch), 0)
    other = data_batch(
        0, 0, [(b"k", b"other content", T0)], producer=7, producer_epoch=3, sequence=9
    )
    assert log.append_as_leader(as_client(other), 0).duplicate  # content is not compared
    assert log.append_as_leader(as_client(producer_batch(0, epoch=4)), 0).first_offset == 10


def test_s57_a_follower_takes_what_its_leader_took() -> None:
    _, log = producing(2)
    log.replica.append_as_follower(producer_batch(50, base=2).data)
    log.replica.append_as_follower(producer_batch(3, base=3, epoch=4).data)
    assert log.log_end_offset == 4


def test_s57_without_state_any_sequence_may_come_first() -> None:
    log = open_log(disk_with({}), LogConfig(segment_index_bytes=1200))
    assert log.append_as_leader(as_client(producer_batch(41)), 0).first_offset == 0
