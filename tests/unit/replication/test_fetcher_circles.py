"""A leader, or the way from it, that says again and again what leads nowhere; and cuts that the
checkpoints do not know of yet."""

from __future__ import annotations

import errno
import threading
from typing import Any

from checkpoints.offset_checkpoint import HIGH_WATERMARK, RECOVERY_POINT
from checkpoints.types import TopicPartition
from logstore.common.errors import ResourceBusyError
from logstore.format.reader import iter_batches
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Request,
    Response,
)
from replication.fetcher.fetch_failures import REACTIONS, FetchReaction
from tests.support.cases import for_each
from tests.support.fetchers import TP, Stage, fetched
from tests.support.until import patience

BACKOFF_MS = 1000
WAIT_MS = 500
CODES = [
    code
    for reaction in FetchReaction
    for code in [each for each in ErrorCode if each and REACTIONS[each] is reaction][:2]
]
"""Two of each reaction: of those for a new session, the fetch sessions treat one apart."""
HEADER_EPOCH_AT = 12  # of a batch; the checksum begins behind it


def flip_epoch(records: Any, batch: int, bit: int) -> bytes:
    """One bit of the leader epoch of one batch, as a bad link would."""
    data = bytearray(records)
    at = list(iter_batches(bytes(records)))[batch].position + HEADER_EPOCH_AT
    data[at + 3 - bit // 8] ^= 1 << bit % 8
    return bytes(data)


def has_nothing(response: Response) -> bool:
    """A leader waits before it says so."""
    return (
        isinstance(response, FetchResponse)
        and not response.error_code
        and not any(p.records or p.error_code or p.diverging_epoch for p in response.partitions)
    )


def run(stage: Stage, answer: Any, ms: int) -> list[Request]:
    """What the follower asks within ``ms`` of a leader that answers by ``answer``."""
    asked = []
    end = stage.runtime.now_ms() + ms
    while stage.runtime.now_ms() < end:
        if stage.is_idle():
            stage.runtime.advance(5)
            continue
        request = stage.request()
        asked.append(request)
        assert len(asked) < 1000, "in a circle, without a pause"
        response = answer(request)
        if has_nothing(response):
            stage.runtime.advance(WAIT_MS)
        stage.reply(response)
    return asked


class TestFlippedEpoch:
    """Leader epochs lie outside the checksums of their batches."""

    @for_each("batch", [0, 2, 4])
    @for_each("bit", [0, 1, 2, 3, 7, 8, 15, 30, 31])
    def test_heals(self, batch: int, bit: int) -> None:
        """Seen at once, or by the leader at the next fetch; never a circle, never another log, but
        where the epoch still is between those of its neighbours: nobody can see that."""
        stage = Stage()
        stage.lead(5, (2, 3))
        stage.hold((2, 3), hw=2)
        stage.produce(5)
        stage.follow(5)
        (part,) = stage.leader.answer(stage.request()).partitions
        flipped = flip_epoch(part.records, batch, bit)
        stage.reply(FetchResponse((part._replace(records=flipped),)))
        asked = run(stage, stage.leader.answer, 3 * BACKOFF_MS)
        assert all(isinstance(request, FetchRequest) for request in asked)
        stage.settle()
        if (batch, bit) == (0, 0):
            assert [e.epoch for e in stage.follower.log().epochs.entries] == [3, 4, 5]
            assert stage.end == stage.leader.log().log_end_offset
        else:
            stage.assert_equal_logs()

    def test_above_the_leaders_is_refused(self) -> None:
        stage = Stage()
        stage.lead(5, (2, 3))
        stage.hold((2, 3), hw=2)
        stage.produce(1)
        stage.follow(5)
        (part,) = stage.leader.answer(stage.request()).partitions
        stage.reply(FetchResponse((part._replace(records=flip_epoch(part.records, 0, 8)),)))
        assert stage.end == 2
        assert stage.is_idle()
        assert not stage.manager.failed_partitions
        stage.runtime.advance(BACKOFF_MS)
        stage.settle()
        stage.assert_equal_logs()


class TestCircles:
    def test_out_of_range_for_ever(self) -> None:
        """With ends of the log that fit: fetch, latest, earliest, the same fetch."""
        stage = Stage()
        stage.lead(3, (5, 1))
        stage.hold((5, 1))
        stage.follow(3)

        def answer(request: Request) -> Response:
            if isinstance(request, ListOffsetsRequest):
                return stage.leader.answer(request)
            return fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)

        asked = run(stage, answer, 20 * BACKOFF_MS)
        fetches = [r for r in asked if isinstance(r, FetchRequest)]
        assert 20 <= len(fetches) <= 40
        run(stage, stage.leader.answer, 2 * BACKOFF_MS)
        stage.assert_equal_logs()

    def test_records_and_then_a_cut_for_ever(self) -> None:
        """What was fetched well is cut off again: the good answers do not end the row."""
        stage = Stage()
        stage.lead(3, (3, 1))
        stage.hold((2, 1))
        stage.follow(3)

        def answer(request: Request) -> Response:
            (part,) = request.partitions  # type: ignore[union-attr]
            if part.fetch_offset == 3:  # type: ignore[union-attr]
                return fetched(diverging_epoch=EpochEndOffset(1, 2), high_watermark=0)
            return stage.leader.answer(request)

        asked = run(stage, answer, 20 * BACKOFF_MS)
        assert 20 <= len(asked) <= 80

    def test_a_cut_at_our_end_is_asked_for_after_a_pause(self) -> None:
        """R-140 by a leader who breaks it: a delay, not a circle."""
        stage = Stage()
        stage.lead(3)
        stage.hold((5, 1))
        stage.follow(3)
        stage.reply(fetched(diverging_epoch=EpochEndOffset(1, 20), high_watermark=0))
        assert stage.end == 5
        assert stage.is_idle()
        stage.runtime.advance(BACKOFF_MS)
        assert not stage.is_idle()

    def test_a_change_of_leader_needs_no_pause(self) -> None:
        """Through several epochs back, then forward."""
        stage = Stage()
        stage.lead(8, (4, 0), (2, 3), (2, 6))
        stage.hold((4, 0), (1, 2), (1, 4), (1, 5))
        stage.follow(8)
        before = stage.runtime.now_ms()
        stage.settle()
        assert stage.runtime.now_ms() == before
        stage.assert_equal_logs()

    @for_each("code", CODES)
    @for_each("kind", ["fetch", "ends"])
    def test_no_code_makes_a_circle(self, code: ErrorCode, kind: str) -> None:
        """Whatever the leader answers with, again and again."""
        stage = Stage()
        stage.lead(3, (5, 1))
        stage.hold((5, 1))
        stage.follow(3)

        def answer(request: Request) -> Response:
            if isinstance(request, ListOffsetsRequest):
                part = ListOffsetsPartitionResponse(TP, code)
                if kind == "ends":
                    return ListOffsetsResponse((part,))
                return stage.leader.answer(request)
            if kind == "ends":
                return fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
            return fetched(error_code=code)

        asked = run(stage, answer, 10 * BACKOFF_MS)
        assert len(asked) <= 60

    @for_each("code", CODES)
    def test_no_code_of_a_whole_answer_makes_a_circle(self, code: ErrorCode) -> None:
        stage = Stage()
        stage.lead(3, (5, 1))
        stage.hold((5, 1))
        stage.follow(3)
        asked = run(stage, lambda request: FetchResponse((), code), 10 * BACKOFF_MS)
        assert 8 <= len(asked) <= 30
        run(stage, stage.leader.answer, 2 * BACKOFF_MS)
        stage.assert_equal_logs()


def test_every_code_has_a_reaction() -> None:
    assert set(REACTIONS) == set(ErrorCode)
    assert REACTIONS[ErrorCode.NONE] is FetchReaction.APPLY
    assert REACTIONS[ErrorCode.FENCED_LEADER_EPOCH] is FetchReaction.FAIL
    assert set(REACTIONS.values()) == set(FetchReaction)


# -- checkpoints of cuts -----------------------------------------------------------------------


def parted(count: int) -> tuple[Stage, list[TopicPartition]]:
    """``count`` partitions of which the follower has two records more than it should, flushed and
    believed to be committed."""
    stage = Stage()
    tps = [TopicPartition("t", number) for number in range(count)]
    for tp in tps:
        stage.lead(3, (4, 1), tp=tp)
        stage.hold((3, 1), (3, 2), tp=tp, hw=6)
        stage.follower.log(tp).flush()
    stage.follower.logs.housekeeper.checkpoint_recovery_points()
    stage.follower.logs.housekeeper.checkpoint_high_watermarks()
    return stage, tps


def stored(stage: Stage, name: str) -> dict[TopicPartition, int]:
    text = bytes(stage.follower.storage.read_file(f"/logs/{name}")).decode()
    entries = (line.split(" ") for line in text.splitlines()[2:])
    return {TopicPartition(topic, int(number)): int(at) for topic, number, at in entries}


class Checkpoints:
    """Stands before the follower's log manager: counts, refuses, looks at locks."""

    def __init__(self, stage: Stage) -> None:
        self._logs = stage.follower.logs
        self._stage = stage
        self.calls: list[list[TopicPartition]] = []
        self.error: Exception | None = None
        self.under_lock = False

    def __call__(self, tps: list[TopicPartition]) -> None:
        self.calls.append(list(tps))
        for fetcher in self._stage.manager.fetchers:

            def look(lock: Any = fetcher._lock) -> None:
                if lock.acquire(timeout=patience()):
                    lock.release()
                else:
                    self.under_lock = True

            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
        if self.error is not None:
            raise self.error
        self._logs.housekeeper.checkpoint_truncations(tps)


def watched(count: int) -> tuple[Stage, list[TopicPartition], Checkpoints]:
    stage, tps = parted(count)
    checkpoints = Checkpoints(stage)
    object.__setattr__(stage.env, "finish_changes", checkpoints)
    return stage, tps, checkpoints


def test_one_checkpoint_for_all_cuts_of_an_answer() -> None:
    """Durable before the next fetch is sent, and not under the lock of the fetcher."""
    stage, tps, checkpoints = watched(30)
    stage.follow(3, *tps)
    stage.exchange()
    assert [stage.follower.log(tp).log_end_offset for tp in tps] == [3] * 30
    assert len([call for call in checkpoints.calls if call]) == 2  # of the beginning, of the cuts
    assert not checkpoints.under_lock
    assert stored(stage, RECOVERY_POINT) == dict.fromkeys(tps, 3)
    assert stored(stage, HIGH_WATERMARK) == dict.fromkeys(tps, 3)
    stage.settle()
    stage.assert_equal_logs(tps)


def test_nothing_is_fetched_behind_a_cut_that_the_checkpoints_do_not_know() -> None:
    stage, tps, checkpoints = watched(3)
    stage.follow(3, *tps)
    stage.request()
    checkpoints.error = ResourceBusyError("/logs", "write checkpoint", "no descriptors")
    stage.exchange()
    assert stage.is_idle()
    assert stored(stage, RECOVERY_POINT) == dict.fromkeys(tps, 6)
    stage.runtime.advance(BACKOFF_MS)
    assert stage.is_idle()
    checkpoints.error = None
    stage.runtime.advance(BACKOFF_MS)
    assert not stage.is_idle()
    assert stored(stage, RECOVERY_POINT) == dict.fromkeys(tps, 3)
    stage.settle()
    stage.assert_equal_logs(tps)


def test_what_is_owed_is_remembered_by_the_next_leadership() -> None:
    """Another fetch of the same partition, perhaps by another fetcher: it has no cut to make."""
    stage, tps, checkpoints = watched(2)
    stage.follow(3, *tps)
    stage.request()
    checkpoints.error = ResourceBusyError("/logs", "write checkpoint", "no descriptors")
    stage.exchange()
    stage.manager.remove_fetchers(tps)
    for tp in tps:
        stage.leader.become(1, 4, tp)
    checkpoints.error = None
    stage.follow(4, *tps)
    assert not stage.is_idle()
    assert stored(stage, RECOVERY_POINT) == dict.fromkeys(tps, 3)
    stage.settle()
    stage.assert_equal_logs(tps)


def test_a_fault_of_the_disk_ends_the_following() -> None:
    stage, tps, checkpoints = watched(2)
    stage.follow(3, *tps)
    stage.request()
    checkpoints.error = OSError(errno.EIO, "the disk")
    stage.exchange()
    assert set(stage.manager.failed_partitions) == set(tps)
    assert stage.is_idle()


def test_partitions_that_are_not_concerned_go_on() -> None:
    stage, tps, checkpoints = watched(1)
    other = TopicPartition("t", 7)
    stage.lead(3, (4, 1), tp=other)
    stage.hold((2, 1), tp=other)
    stage.follow(3, *tps, other)
    stage.request()
    checkpoints.error = ResourceBusyError("/logs", "write checkpoint", "no descriptors")
    stage.exchange()
    request = stage.fetch_request()
    assert {part.tp for part in request.partitions} <= {other}
    stage.exchange()
    stage.assert_equal_logs([other])
    assert stage.follower.log(tps[0]).log_end_offset == 3


def test_foreign_answer_while_cuts_are_written() -> None:
    """Roles change while the disk is waited for: nothing of it is applied to the new state."""
    stage, tps, checkpoints = watched(2)
    stage.follow(3, *tps)
    stage.request()
    write = checkpoints._logs.housekeeper.checkpoint_truncations

    def change(cut: list[TopicPartition]) -> None:
        stage.manager.remove_fetchers(tps)
        write(cut)

    checkpoints._logs.housekeeper.checkpoint_truncations = change  # type: ignore[method-assign]
    stage.exchange()
    assert stage.is_idle()
    assert not stage.manager.failed_partitions
