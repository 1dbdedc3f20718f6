"""Fuzzers of ``_waiting``: the same calls to both twins, in virtual time."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

from replication.kernels import _waiting
from tests.fuzz.kernels.compare import outcome
from tests.fuzz.kernels.inputs import LONG, number
from tests.support.waiting import KERNELS, operation_type, task_type


def timers(rng: random.Random) -> None:
    seed = rng.getrandbits(64)
    assert timer_story(_waiting, random.Random(seed)) == timer_story(
        KERNELS[1], random.Random(seed)
    )


def timer_story(kernel: Any, rng: random.Random) -> list[Any]:
    """What happened, step by step; times far from the end of time, where both agree."""
    told: list[Any] = []
    timer = kernel.Timer(
        rng.choice((0, 5, 10**12)), rng.choice((1, 3, 100)), rng.choice((2, 3, 20))
    )
    now = timer.wheel.current_ms
    tasks: list[Any] = []
    for step in range(rng.choice((3, 30, 100))):
        kind = rng.randrange(6)
        if kind < 3:
            delay = rng.choice((0, 1, 5, 399, 400, 10**6, 2**40, 2**55, -1, -(2**40)))
            if tasks and rng.random() < 0.2:
                task = rng.choice(tasks)
            else:
                task = task_type(kernel)(told, step)
                tasks.append(task)
            timer.add(task, delay, rng.choice((None, now, now + 3)))
            told.append(task.expiry_ms)
        elif kind == 3 and tasks:
            told.append(rng.choice(tasks).cancel())
        else:
            now += rng.choice((0, 1, 7, 400, 10**7, -5))
            told.append(timer.advance(now))
        told += [len(timer), timer.next_deadline_ms(), timer.wheel.current_ms]
    return told


def ends_of_time(rng: random.Random) -> None:
    """Numbers up to 2^63 − 1: refused, or every task runs once, in order, when time has come."""
    arguments = abs(number(rng, 32)), number(rng), rng.choice((2, 20, number(rng, 16)))
    outcome(lambda: _waiting.TimingWheel(arguments[1], arguments[2], arguments[0]))
    kind, timer = outcome(lambda: _waiting.Timer(*arguments))
    if kind != "returned":
        return
    ran: list[Any] = []
    tasks = [task_type(_waiting)(ran, n) for n in range(rng.choice((1, 5)))]
    for task in tasks:
        now = rng.choice((None, number(rng)))
        timer.add(task, rng.choice((LONG, -LONG, number(rng))), now)
    for now in sorted(abs(number(rng)) for _ in range(3)):
        timer.advance(min(now, LONG))
        assert timer.next_deadline_ms() is None or len(timer)
    timer.advance(LONG)
    assert sorted(ran) == list(range(len(tasks)))
    assert len(timer) == 0
    wheel = timer.wheel
    wheel.advance(number(rng))
    wheel.coarser().advance(number(rng))


def nothing(rng: random.Random) -> None:
    """None in place of an object."""
    timer = _waiting.Timer(0)
    watchers = _waiting.Watchers({}, "key")
    for call in (
        lambda: timer.add(None, 5),
        lambda: watchers.add(None),
        lambda: _waiting.raise_all(None),
        lambda: _waiting.Watchers(None, "key").sweep(),
    ):
        with suppress(AttributeError, SystemError):
            outcome(call)
    assert len(timer) == len(watchers) == 0


def operations(rng: random.Random) -> None:
    seed = rng.getrandbits(64)
    found, wanted = (operation_story(kernel, random.Random(seed)) for kernel in KERNELS)
    assert found == wanted


class Expirations:
    def __init__(self) -> None:
        self.count = 0

    def count_expiration(self) -> None:
        self.count += 1


def operation_story(kernel: Any, rng: random.Random) -> list[Any]:
    """Operations that are registered, looked at, completed and expire in any order."""
    timer, by_key, now = kernel.Timer(0), {}, 0
    purgatory, told, made = Expirations(), [], []
    for _ in range(rng.choice((3, 20, 60))):
        kind = rng.randrange(7)
        operation = rng.choice(made) if made else None
        if kind < 2 or operation is None:
            operation = operation_type(kernel)(rng.choice((0, 1, 50, -1, 10**6)))
            operation.ready = rng.random() < 0.2
            keys = tuple(rng.choices("abc", k=rng.choice((0, 1, 3))))
            told.append(operation._register(purgatory, by_key, keys, timer, now))
            made.append(operation)
        elif kind == 2:
            operation.ready = True
            told.append(operation.attempt())
        elif kind == 3:
            told.append(operation.force_complete())
        elif kind == 4:
            now += rng.choice((0, 1, 60))
            told.append(timer.advance(now))
        elif kind == 5 and by_key:
            errors: list[Exception] = []
            watchers = by_key[rng.choice(sorted(by_key))]
            told += [watchers.try_complete(errors), errors]
            told.append(len(watchers))
        elif by_key and rng.random() < 0.3:
            told.append(len(by_key[rng.choice(sorted(by_key))].take()))
        told += [len(timer), sorted(by_key), purgatory.count, [o.events[:] for o in made[-3:]]]
    return told


FUZZERS = {
    "timers": timers,
    "ends_of_time": ends_of_time,
    "nothing": nothing,
    "operations": operations,
}
