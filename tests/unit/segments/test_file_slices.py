"""Bytes that are sent from their file stay what they were when the log was read."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from logstore import LogConfig
from logstore.cleaner import Cleaner
from logstore.cleaner.cleanable import LogToClean
from logstore.common.errors import CorruptBatchError, OffsetOutOfRangeError
from logstore.format.reader import iter_batches, read_records
from logstore.kernels import OffsetMap
from logstore.log import LogOwner, PartitionLog
from logstore.log.reading.fetching import SLICE_MIN, FetchData
from logstore.log.snapshot import LogView
from logstore.segments import open_files
from logstore.segments.open_files import LogFile
from logstore.segments.segment_view import SegmentView
from logstore.storage import FileSlice
from logstore.storage.file_slice import live_slices
from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from tests.support.builders import batch
from tests.support.cases import for_each
from tests.support.leftovers import descriptors
from tests.support.logs import check_invariants

ALL = 1 << 20
BATCHES, RECORDS = 40, 10


@pytest.fixture(autouse=True)
def _all_descriptors_come_back() -> Any:
    before = live_slices()
    yield
    assert live_slices() == before


def open_log(tmp_path: Path, **config: Any) -> PartitionLog:
    return PartitionLog.open(tmp_path / "t-0", LogConfig(**config), owner=LogOwner(replicated=True))


def append(log: PartitionLog, life: int, batches: int = BATCHES) -> None:
    """Records that tell when they were written."""
    for _ in range(batches):
        log.append_as_leader(batch(count=RECORDS, key=b"k", value=b"%04d" % life * 50), 0)


def filled(tmp_path: Path, **config: Any) -> PartitionLog:
    log = open_log(tmp_path, **config)
    append(log, 0)
    log.replica.update_high_watermark(log.log_end_offset)
    return log


def read(log: PartitionLog, start: int = 0, max_bytes: int = ALL) -> FetchData:
    return log.reader.read(start, max_bytes, up_to=log.high_watermark, by_slice=True)


def slice_of(log: PartitionLog, start: int = 0, max_bytes: int = ALL) -> FileSlice:
    found = read(log, start, max_bytes)
    assert found.file_slice is not None
    assert found.data == b""
    return found.file_slice


def truncate(log: PartitionLog) -> None:
    log.truncate_to(55)
    append(log, 1)


def truncate_all(log: PartitionLog) -> None:
    log.maintenance.truncate_fully_and_start_at(1000)
    append(log, 1)


def delete_records(log: PartitionLog) -> None:
    log.roll()
    append(log, 1)
    log.replica.update_high_watermark(log.log_end_offset)
    log.delete_records(log.log_end_offset)
    log.maintenance.delete_old_segments()
    log.maintenance.purge_deleted(2**62)


def compact(log: PartitionLog) -> None:
    log.roll()
    append(log, 1, batches=1)
    log.replica.update_high_watermark(log.log_end_offset)
    log.roll()
    view = LogView(log.snapshot)
    plan = LogToClean(0, view.base_of(len(view) - 1), 0, 0, 0, False, "")
    done, _ = Cleaner(OffsetMap(24 * 1000, 0.9)).clean(log, plan, 2**40, view)
    assert done.records_kept < BATCHES * RECORDS
    log.maintenance.purge_deleted(2**62)


def rest(log: PartitionLog) -> None:
    log.roll()
    assert log.writer.try_idle()
    open_files.close_idle()


def close(log: PartitionLog) -> None:
    log.close()


def crash(log: PartitionLog) -> None:
    log.crash()


ACTIONS = [truncate, truncate_all, delete_records, compact, rest, close, crash]


@for_each("action", ACTIONS)
@pytest.mark.parametrize("preallocate", [False, True])
def test_whatever_the_log_does_the_slice_stays(
    tmp_path: Path, action: Callable[[PartitionLog], None], preallocate: bool
) -> None:
    log = filled(tmp_path, preallocate=preallocate, segment_bytes=1 << 20)
    before = log.read(0, up_to=log.high_watermark).data
    with log:
        held = slice_of(log)
        assert len(held) == len(before) > SLICE_MIN
        action(log)
        assert held.read() == before
        assert held.read(100, 50) == before[100:150]
        assert held.read(len(before)) == b""
        held.release()
        held.release()
        assert held.fileno() == -1
        with pytest.raises(OSError):
            held.read()


@pytest.mark.parametrize("action", [truncate, truncate_all, delete_records, compact])
def test_a_read_that_is_overtaken_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Callable[[PartitionLog], None]
) -> None:
    """The version of the log is compared after the slice was taken."""
    true, pending = SegmentView.slice_at, [action]

    def overtaken(self: SegmentView, position: int, size: int) -> FileSlice | None:
        found = true(self, position, size)
        if pending:
            pending.pop()(log)
        return found

    monkeypatch.setattr(SegmentView, "slice_at", overtaken)
    with filled(tmp_path) as log:
        try:
            found = read(log)
        except OffsetOutOfRangeError:
            assert log.log_start_offset > 0
            return
        data = found.data if found.file_slice is None else found.file_slice.read()
        assert data == log.read(0, up_to=found.end_offset).data


def test_during_a_cut_the_bytes_are_read(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        with log.segments[0].file.truncating(0):
            found = read(log)
            assert found.file_slice is None
            assert found.data == log.read(0, up_to=log.high_watermark).data
        assert slice_of(log).read() == found.data


def test_only_a_cut_into_what_was_given_out_copies_the_file(tmp_path: Path) -> None:
    """Also after the release: the kernel may still be sending these pages."""
    with filled(tmp_path) as log:
        path = log.segments[0].log_path
        inode = os.stat(path).st_ino
        append(log, 1)
        held = slice_of(log)
        held.release()
        log.truncate_to(log.high_watermark)
        assert os.stat(path).st_ino == inode
        log.truncate_to(log.high_watermark - 1)
        assert os.stat(path).st_ino != inode
        inode = os.stat(path).st_ino
        log.truncate_to(20)
        assert os.stat(path).st_ino == inode
        check_invariants(log)


def test_never_a_byte_at_or_above_the_high_watermark(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        hw = log.high_watermark
        append(log, 1)
        with FileSliceReader(slice_of(log)) as data:
            assert [b.last_offset for b in iter_batches(data)][-1] == hw - 1
        log.replica.update_high_watermark(hw + RECORDS)
        with FileSliceReader(slice_of(log)) as data:
            assert [b.last_offset for b in iter_batches(data)][-1] == hw + RECORDS - 1


class FileSliceReader:
    def __init__(self, held: FileSlice) -> None:
        self._held = held

    def __enter__(self) -> bytes:
        return self._held.read()

    def __exit__(self, *_: object) -> None:
        self._held.release()


def test_few_bytes_are_read(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        assert read(log, max_bytes=SLICE_MIN - 1).file_slice is None
        assert len(read(log, max_bytes=SLICE_MIN - 1).data) == SLICE_MIN - 1
        assert len(slice_of(log, max_bytes=SLICE_MIN)) == SLICE_MIN
        assert read(log, log.high_watermark).data == b""


def test_a_storage_without_descriptors_gives_bytes() -> None:
    with PartitionLog.open(
        "/d/t-0", LogConfig(), storage=MemoryStorage(), owner=LogOwner(replicated=True)
    ) as log:
        append(log, 0)
        log.replica.update_high_watermark(log.log_end_offset)
        found = read(log)
        assert found.file_slice is None
        assert found.data == log.read(0).data


def test_too_many_slices_or_descriptors_give_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path) as log:
        expected = log.read(0).data
        before = descriptors(tmp_path).total()
        monkeypatch.setattr(open_files, "_SLICES_MAX", live_slices() + 3)
        found = [read(log) for _ in range(10)]
        assert sum(each.file_slice is not None for each in found) == 3
        assert descriptors(tmp_path).total() == before + 3
        assert {bytes(f.data or f.file_slice.read()) for f in found} == {expected}  # type: ignore[union-attr]
        del found  # whoever drops an answer has released it
        assert descriptors(tmp_path).total() == before

        def refuse(descriptor: int) -> int:
            raise OSError(24, "too many open files")

        monkeypatch.setattr("logstore.storage.file_slice.os.dup", refuse)
        assert read(log).data == expected


def test_a_file_that_someone_else_cut_is_sent_short(tmp_path: Path) -> None:
    """The sender sees the end of the file, and closes the connection."""
    with filled(tmp_path) as log:
        held = slice_of(log)
        os.truncate(log.segments[0].log_path, 5000)
        assert len(held.read()) == 5000 < len(held)
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            assert os.sendfile(here.fileno(), held.fileno(), held.position, len(held)) == 5000
            assert os.sendfile(here.fileno(), held.fileno(), held.position + 5000, 1) == 0
        held.release()
        log.crash()


def test_a_renamed_file_is_not_another_one(tmp_path: Path) -> None:
    """A descriptor of one's own: retiring the file closes it under nobody."""
    (tmp_path / "f").write_bytes(bytes(range(256)) * 100)
    log_file = LogFile(LocalStorage(), lambda: str(tmp_path / "f"))
    held = log_file.slice(256, 512)
    assert held is not None
    log_file.retire()
    (tmp_path / "other").write_bytes(bytes(30_000))
    with (tmp_path / "other").open("rb"):  # takes the number that became free
        assert held.read() == bytes(range(256)) * 2
    held.release()


@for_each("seed", range(15), at_once=3)
def test_any_order_of_steps(tmp_path: Path, seed: int) -> None:
    """Slices of all ages show what was read when they were taken."""
    rng = random.Random(seed)
    log = open_log(tmp_path, segment_bytes=rng.choice([60_000, 1 << 20]))
    held: list[tuple[FileSlice, bytes]] = []
    taken = life = 0
    with log:
        for _ in range(60):
            kind = rng.random()
            if kind < 0.35:
                life += 1
                append(log, life, rng.randint(5, 30))
                log.replica.update_high_watermark(
                    rng.randint(log.high_watermark, log.log_end_offset)
                )
            elif kind < 0.5 and log.log_end_offset:
                end = log.log_end_offset
                log.truncate_to(rng.randint(max(log.log_start_offset, end - 250), end))
            elif kind < 0.55:
                log.roll()
                log.delete_records(rng.randint(log.log_start_offset, log.high_watermark))
                log.maintenance.delete_old_segments()
                log.maintenance.purge_deleted(2**62)
            elif kind < 0.9:
                start = rng.randint(log.log_start_offset, log.high_watermark)
                most = rng.choice([SLICE_MIN, 40_000, ALL])
                expected = log.read(start, most, up_to=log.high_watermark).data
                found = read(log, start, most)
                if found.file_slice is None:
                    assert found.data == expected
                else:
                    taken += 1
                    held.append((found.file_slice, expected))
            elif held:
                held.pop(rng.randrange(len(held)))[0].release()
            for each, expected in held:
                assert each.read() == expected
        for each, _ in held:
            each.release()
    assert taken


def _mixture(data: bytes) -> list[object]:
    """What is wrong with the bytes of one answer: a checksum, or newer records below older ones."""
    try:
        lives = [int((record.value or b"")[:4]) for record in read_records(data)]
    except CorruptBatchError as error:
        return [error]
    return [] if lives == sorted(lives) else [lives]


def test_senders_beside_truncations_send_one_lineage(tmp_path: Path) -> None:
    """By the kernel, out of the page cache: what arrives late is what was read, whole."""
    log = filled(tmp_path)
    wrong: list[object] = []
    sent = [0]
    stop = threading.Event()

    def send() -> None:
        here, there = socket.socketpair()
        with here, there:
            while not stop.is_set():
                with suppress(OffsetOutOfRangeError):
                    found = read(log, max_bytes=40_000)
                    held = found.file_slice
                    if held is None:
                        continue
                    size = os.sendfile(here.fileno(), held.fileno(), held.position, len(held))
                    held.release()
                    stop.wait(0.002)  # the bytes lie in the socket while the log is cut
                    data = there.recv(size, socket.MSG_WAITALL)
                    wrong.extend(_mixture(data))
                    sent[0] += 1

    senders = [threading.Thread(target=send) for _ in range(2)]
    for sender in senders:
        sender.start()
    life = 0
    while sent[0] < 60 and not wrong:
        life += 1
        log.truncate_to(30 + life % 7)
        append(log, life, batches=20)
        log.replica.update_high_watermark(log.log_end_offset)
        stop.wait(0.003)
    stop.set()
    for sender in senders:
        sender.join()
    log.close()
    assert not wrong
