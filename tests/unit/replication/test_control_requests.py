"""The controller's requests on their way into a broker: order, places in the queue, and the end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.testing import FaultyStorage
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    LeaderAndIsrRequest,
    Response,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from replication.common.runtime import ThreadRuntime
from replication.replica_manager.control_requests import ControlRequests
from tests.support.replica_managers import BROKER, EPOCH, TOPIC_ID, Host, live
from tests.support.replication import ManualRuntime
from tests.support.until import until

STALE = ErrorCode.STALE_CONTROLLER_EPOCH


def news(sequence: int, controller_epoch: int = 1, broker_epoch: int = 7) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(9, controller_epoch, broker_epoch, (), live(1), sequence=sequence)


class Queue:
    """Requests of a broker of epoch 7, and what came of them."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.epoch = 7
        self.done: list[tuple[int, int]] = []
        self.replies: dict[tuple[int, int], Any] = {}
        self.requests = ControlRequests(
            self.runtime.actor("control"), lambda: self.epoch, {UpdateMetadataRequest: self._do}
        )

    def _do(self, request: UpdateMetadataRequest) -> Response:
        self.done.append((request.controller_epoch, request.sequence))
        return news_done()

    def send(self, request: UpdateMetadataRequest) -> None:
        key = request.controller_epoch, request.sequence

        def reply(response: Response | None) -> None:
            assert key not in self.replies, "answered twice"
            self.replies[key] = None if response is None else response.error_code  # type: ignore[union-attr]

        self.requests.accept(request, reply)

    def run(self) -> None:
        self.runtime.run_until_idle()


def news_done() -> Response:
    return UpdateMetadataResponse(ErrorCode.NONE)


def test_nothing_runs_on_the_thread_of_the_sender() -> None:
    queue = Queue()
    queue.send(news(1))
    assert (queue.done, queue.replies) == ([], {})
    queue.run()
    assert (queue.done, queue.replies) == ([(1, 1)], {(1, 1): ErrorCode.NONE})


def test_of_those_that_wait_the_newest_counts() -> None:
    """R-183: a controller that does not wait any more sends the content again, so nothing is lost.
    And nothing piles up behind a slow disk."""
    queue = Queue()
    for sequence in range(1, 100):
        queue.send(news(sequence))
    queue.run()
    assert queue.done == [(1, 99)]
    assert queue.replies == {**{(1, n): None for n in range(1, 99)}, (1, 99): ErrorCode.NONE}


def test_a_copy_that_was_overtaken_is_refused_at_once() -> None:
    queue = Queue()
    queue.send(news(2))
    queue.send(news(1))
    assert queue.replies == {(1, 1): STALE}
    queue.run()
    assert queue.done == [(1, 2)]


def test_a_new_controller_takes_the_place_of_the_one_before() -> None:
    queue = Queue()
    queue.send(news(8))
    queue.send(news(1, controller_epoch=2))
    queue.send(news(9))  # it has not heard
    assert queue.replies == {(1, 8): None, (1, 9): STALE}
    queue.run()
    assert queue.done == [(2, 1)]
    assert queue.requests.controller_epoch == 2


def test_a_broker_that_registers_while_a_request_waits() -> None:
    queue = Queue()
    queue.send(news(1))
    queue.epoch = 8
    queue.run()
    assert (queue.done, queue.replies) == ([], {(1, 1): ErrorCode.STALE_BROKER_EPOCH})
    queue.send(news(2))
    assert queue.replies[1, 2] is ErrorCode.STALE_BROKER_EPOCH
    assert queue.requests.reported_broker_epoch == 7


@pytest.mark.parametrize("wait", [True, False])
def test_the_end_of_a_broker(wait: bool) -> None:
    queue = Queue()
    queue.send(news(1))
    queue.requests.close(wait=wait)
    queue.send(news(2))
    queue.run()
    assert (queue.done, queue.replies) == ([], {(1, 1): None, (1, 2): None})


def test_an_error_is_answered_too() -> None:
    runtime = ManualRuntime()

    def fail(request: Any) -> Response:
        raise LookupError

    requests = ControlRequests(runtime.actor("x"), lambda: 7, {UpdateMetadataRequest: fail})
    answers: list[Any] = []
    requests.accept(news(1), answers.append)
    with pytest.raises(LookupError):
        runtime.run_until_idle()
    assert answers == [None]
    requests.accept(news(2), answers.append)  # it goes on
    with pytest.raises(LookupError):
        runtime.run_until_idle()


def test_two_threads() -> None:
    """A piece that waits for a disk keeps neither a sender nor the metadata of another waiting."""
    runtime, disk = ThreadRuntime(), threading.Event()
    begun: list[int] = []

    def wait(request: UpdateMetadataRequest) -> Response:
        begun.append(request.sequence)
        assert disk.wait(30)
        return news_done()

    requests = ControlRequests(runtime.actor("control"), lambda: 7, {UpdateMetadataRequest: wait})
    answers: list[Any] = []
    requests.accept(news(1), answers.append)
    until(lambda: begun == [1])
    requests.accept(news(2), answers.append)
    requests.accept(news(3), answers.append)  # returns at once, as the one before
    assert (answers, begun) == ([None], [1])
    disk.set()
    until(lambda: len(answers) == 3)
    assert begun == [1, 3]
    requests.close(wait=True)
    runtime.close()


# -- many partitions ------------------------------------------------------------------------------


def _tps(count: int) -> list[TopicPartition]:
    return [TopicPartition("big", number) for number in range(count)]


class Counted(FaultyStorage):
    """Counts syncs, all changes of the disk, and the bytes of small files that are replaced."""

    syncs = changes = size = 0

    def change(self, operation: str, path: str) -> None:
        self.syncs += operation in ("sync", "sync_dir")
        self.changes += 1
        super().change(operation, path)

    def write_file(self, path: str, data: bytes) -> None:
        self.size += len(data)
        super().write_file(path, data)

    def per(self, count: int) -> tuple[float, ...]:
        found = self.syncs / count, self.changes / count, self.size / count
        self.syncs = self.changes = self.size = 0
        return found


def costs(count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What one partition of ``count`` costs to be made, and to be deleted."""
    storage = Counted()
    host = Host(storage=storage)
    tps = _tps(count)
    storage.per(1)
    changes = [host.change(tp, leader=BROKER if tp.partition % 3 else 2) for tp in tps]
    for start in range(0, count, 50):
        response = host.order(*changes[start : start + 50])
        assert {code for _, code in response.partitions} == {ErrorCode.NONE}
    made = storage.per(count)
    host.manager.log_manager.housekeeper.checkpoint_recovery_points()
    host.manager.log_manager.housekeeper.checkpoint_high_watermarks()
    storage.per(1)
    stops = tuple(StopReplicaPartition(tp, -2, True, TOPIC_ID) for tp in tps)
    response = host.control(StopReplicaRequest(9, 1, EPOCH + BROKER, stops))
    assert {code for _, code in response.partitions} == {ErrorCode.NONE}
    assert not host.log_manager.logs
    return made, storage.per(count)


@pytest.mark.parametrize(
    "counts",
    [
        (10, 100),
        pytest.param((100, 1000), marks=pytest.mark.slow),
        pytest.param((1000, 10_000), marks=pytest.mark.long),
    ],
)
def test_a_partition_costs_the_same_among_many(counts: tuple[int, int]) -> None:
    few, many = map(costs, counts)
    for before, after in zip((*few[0], *few[1]), (*many[0], *many[1]), strict=True):
        assert after <= 1.5 * before + 0.01, (few, many)


def test_what_a_new_partition_waits_for() -> None:
    """The syncs of its id and of its directory; the names of all are synced together."""
    made, deleted = costs(50)
    assert made[0] <= 2 + 1 / 50
    assert made[2] == 0  # no checkpoint, and no file of epochs without a record
    assert deleted[0] * 50 <= 1 + 2 * 2  # the names, and two checkpoints with their directory


def test_a_repeated_order_writes_nothing() -> None:
    storage = Counted()
    host = Host(storage=storage)
    changes = [host.change(tp) for tp in _tps(5)]
    host.order(*changes)
    storage.per(1)
    host.order(*changes)
    assert storage.per(1) == (0, 0, 0)


def test_a_disk_that_fails_takes_only_its_own_partitions() -> None:
    host = Host(directories=("/one", "/two"))
    tps = _tps(10)
    host.storage.fail("sync", "/one/*", after=2)
    response = host.order(*[host.change(tp) for tp in tps])
    codes = dict(response.partitions)
    homes = {tp: log.directory for tp, log in host.log_manager.logs.items()}
    assert all(home.startswith("/two/") for home in homes.values())
    assert {tp for tp, code in codes.items() if code is ErrorCode.NONE} == {*homes}
    assert len(homes) == 5
    lost = {code for code in codes.values() if code is not ErrorCode.NONE}
    assert lost == {ErrorCode.KAFKA_STORAGE_ERROR}


def test_a_topic_that_is_deleted_and_made_again_between_two_pieces() -> None:
    """A late piece of the first life makes nothing of the second one."""
    host = Host()
    first, again = _tps(2)
    old = host.change(first, topic_id=TOPIC_ID)
    host.order(old, sequence=1)
    host.stop(first)
    other = type(TOPIC_ID)(int=8)
    host.order(host.change(first, topic_id=other), sequence=2)
    late = LeaderAndIsrRequest(
        9, 1, EPOCH + BROKER, (old, host.change(again)), host.brokers, sequence=1
    )
    assert host.control(late).error_code is STALE
    assert host.partition(first).log.topic_id == other  # type: ignore[union-attr]
    assert again not in host.manager.partitions
