"""Kafka's DelayedOperationTest, TimerTest, TimingWheelTest and TimerTaskListTest, by their names.

Not here, as there is nothing to test: SystemTimerReaperTest and TimerTaskListTest.testGetDelay
(nothing in here has a thread or a clock), the cases of lock ownership (no operation has a lock that
others wait for), testAddExpiredTask's ``false`` (a late task runs at the next ``advance``), and
testDelayedFuture.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from replication.purgatory.purgatory import Purgatory
from tests.support.waiting import each_kernel, operation_type, race, task_type

pytestmark = each_kernel

KEYS = TEST1, TEST2, TEST3 = ("test", 1), ("test", 2), ("test", 3)


class TestDelayedOperation:
    @pytest.fixture
    def purgatory(self, kernel: ModuleType) -> Purgatory[Any]:
        return Purgatory("mock", kernel.Timer(0))

    def test_request_satisfaction(self, kernel: ModuleType, purgatory: Purgatory[Any]) -> None:
        """testRequestSatisfaction"""
        first, second = operation_type(kernel)(), operation_type(kernel)()
        assert purgatory.check_and_complete(TEST1) == 0
        assert not purgatory.try_complete_else_watch(first, [TEST1])
        assert purgatory.check_and_complete(TEST1) == 0
        assert not purgatory.try_complete_else_watch(second, [TEST2])
        assert purgatory.check_and_complete(TEST2) == 0
        first.ready = True
        assert purgatory.check_and_complete(TEST1) == 1
        assert purgatory.check_and_complete(TEST1) == 0
        second.ready = True
        assert purgatory.check_and_complete(TEST2) == 1
        assert purgatory.check_and_complete(TEST2) == 0

    def test_request_expiry(self, kernel: ModuleType, purgatory: Purgatory[Any]) -> None:
        """testRequestExpiry"""
        first, second = operation_type(kernel)(20), operation_type(kernel)(200_000)
        assert not purgatory.try_complete_else_watch(first, [TEST1])
        assert not purgatory.try_complete_else_watch(second, [TEST2])
        purgatory.advance(19)
        assert not first.completed
        purgatory.advance(20)
        assert first.completed
        assert not second.completed

    def test_request_purge(self, kernel: ModuleType, purgatory: Purgatory[Any]) -> None:
        """testRequestPurge: a completed one leaves the timer at once, the lists when checked."""
        ops = [operation_type(kernel)() for _ in range(3)]
        for number, op in enumerate(ops, 1):
            purgatory.try_complete_else_watch(op, KEYS[:number])
        assert (purgatory.delayed, purgatory.watched) == (3, 6)
        for op, delayed in ((ops[1], 2), (ops[2], 1)):
            op.ready = True
            op.try_complete()
            assert purgatory.delayed == delayed
        assert purgatory.watched == 6
        for key, watched in ((TEST1, 4), (TEST2, 2), (TEST3, 1)):
            purgatory.check_and_complete(key)
            # Kafka keeps ops[0], which is open, under its one key.
            assert purgatory.watched == watched

    def test_should_cancel_for_key_returning_cancelled_operations(
        self, kernel: ModuleType, purgatory: Purgatory[Any]
    ) -> None:
        """shouldCancelForKeyReturningCancelledOperations"""
        ops = [operation_type(kernel)(10_000) for _ in range(3)]
        for op, key in zip(ops, (TEST1, TEST1, TEST2), strict=True):
            purgatory.try_complete_else_watch(op, [key])
        assert purgatory.cancel_for_key(TEST1) == ops[:2]
        assert (purgatory.delayed, purgatory.watched) == (1, 1)

    def test_should_return_nil_operations_on_cancel_for_key_when_key_doesnt_exist(
        self, purgatory: Purgatory[Any]
    ) -> None:
        """shouldReturnNilOperationsOnCancelForKeyWhenKeyDoesntExist"""
        assert purgatory.cancel_for_key(TEST1) == []

    @pytest.mark.slow
    def test_try_complete_with_multiple_threads(
        self, kernel: ModuleType, purgatory: Purgatory[Any]
    ) -> None:
        """testTryCompleteWithMultipleThreads: whoever makes an operation completable may find it
        being looked at; it must be completed all the same. 20 checks each, by 20 threads."""
        ops = [operation_type(kernel)(10_000) for _ in range(100)]
        for number, op in enumerate(ops):
            purgatory.try_complete_else_watch(op, [number])
        attempts = [[*range(20)] for _ in ops]

        def check(seed: int) -> None:
            numbers = list(range(len(ops)))
            random.Random(seed).shuffle(numbers)
            for number in numbers:
                attempts[number].pop()
                if not attempts[number]:
                    ops[number].ready = True
                purgatory.check_and_complete(number)

        race(*(lambda seed=seed: check(seed) for seed in range(20)))
        assert all(op.events == ["complete"] for op in ops)

    def test_safe_try_complete_or_else(self, kernel: ModuleType, purgatory: Purgatory[Any]) -> None:
        """testSafeTryCompleteOrElse: it is watched only if the first look fails."""
        op = operation_type(kernel)()
        op.ready = True
        assert purgatory.try_complete_else_watch(op, [TEST1])
        assert purgatory.watched == 0
        assert not purgatory.try_complete_else_watch(operation_type(kernel)(), [TEST1])
        assert purgatory.watched == 1


class TestTimer:
    """With a tick of 1 ms and 3 buckets, as in Kafka's."""

    def test_already_expired_task(self, kernel: ModuleType) -> None:
        """testAlreadyExpiredTask"""
        ran: list[int] = []
        timer = kernel.Timer(0, 1, 3)
        for delay in range(-5, 0):
            timer.add(task_type(kernel)(ran, delay), delay)
        timer.advance(0)
        assert sorted(ran) == [-5, -4, -3, -2, -1]

    def test_task_expiration(self, kernel: ModuleType) -> None:
        """testTaskExpiration"""
        ran: list[int] = []
        timer = kernel.Timer(0, 1, 3)
        ids = [*range(5), *(i for i in range(10, 100) for _ in "ab"), *range(100, 500)]
        for delay in random.Random(1).sample(ids, len(ids)):
            timer.add(task_type(kernel)(ran, delay), delay)
        while timer.advance(2000):
            pass
        assert ran == ids


class TestTimingWheel:
    """From 1,000 ms, ticks of 10 ms, 5 buckets."""

    def test_add_valid_task(self, kernel: ModuleType) -> None:
        """testAddValidTask"""
        timer = kernel.Timer(1000, 10, 5)
        timer.add(task_type(kernel)([]), 20)
        assert (len(timer), timer.next_deadline_ms()) == (1, 1020)

    def test_add_expired_task(self, kernel: ModuleType) -> None:
        """testAddExpiredTask, testAddTaskInCurrentBucket: it is due now."""
        timer = kernel.Timer(1000, 10, 5)
        for delay in (-1, 5):
            timer.add(task_type(kernel)([]), delay)
            assert timer.next_deadline_ms() == 1000
            assert timer.advance(1000) == 1

    def test_add_cancelled_task(self, kernel: ModuleType) -> None:
        """testAddCancelledTask: here a completed operation is not added, a task may be again."""
        purgatory: Purgatory[Any] = Purgatory("mock", kernel.Timer(1000, 10, 5))
        op = operation_type(kernel)(20)
        op.force_complete()
        purgatory.try_complete_else_watch(op, [TEST1])
        assert purgatory.delayed == 0

    def test_advance_clock_within_tick(self, kernel: ModuleType) -> None:
        """testAdvanceClockWithinTick"""
        wheel = kernel.TimingWheel(10, 5, 1000)
        wheel.advance(1005)
        assert wheel.current_ms == 1000

    def test_advance_clock_to_next_tick(self, kernel: ModuleType) -> None:
        """testAdvanceClockToNextTick"""
        wheel = kernel.TimingWheel(10, 5, 1000)
        wheel.advance(1010)
        assert wheel.current_ms == 1010

    def test_overflow_wheel_creation(self, kernel: ModuleType) -> None:
        """testOverflowWheelCreation"""
        timer = kernel.Timer(1000, 10, 5)
        assert timer.wheel.overflow is None
        timer.add(task_type(kernel)([]), 60)
        overflow = timer.wheel.overflow
        assert (overflow.tick_ms, overflow.interval_ms) == (50, 250)
        timer.add(task_type(kernel)([]), 61)
        assert timer.wheel.overflow is overflow

    def test_advance_clock_with_overflow_wheel(self, kernel: ModuleType) -> None:
        """testAdvanceClockWithOverflowWheel"""
        wheel = kernel.TimingWheel(10, 5, 1000)
        overflow = wheel.coarser()
        wheel.advance(1060)
        assert (wheel.current_ms, overflow.current_ms) == (1060, 1050)


class TestTimerTaskList:
    def test_all(self, kernel: ModuleType) -> None:
        """testAll: adding again moves, the count stays; cancelling takes each out once."""
        timer = kernel.Timer(0)
        tasks = [task_type(kernel)([]) for _ in range(10)]
        for number, task in enumerate(tasks, 1):
            timer.add(task, 10)
            assert len(timer) == number
        for task in tasks[:4]:
            timer.add(task, 500)
            assert len(timer) == 10
        for left, task in zip(range(9, -1, -1), tasks, strict=True):
            assert task.cancel()
            assert len(timer) == left
