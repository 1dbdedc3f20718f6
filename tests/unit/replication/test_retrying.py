"""``Backoff``, tables of reactions, and ``RetryingCall``: asked again until something ends it."""

from __future__ import annotations

import random

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.retrying import Backoff, Reaction, RetryingCall, Settle, reactions
from tests.support.replication import ManualRuntime

STEADY = Backoff(100, 1000, jitter=0)


class Asked:
    """A call whose tries the test settles."""

    def __init__(self, backoff: Backoff = STEADY, tries: int | None = None) -> None:
        self.runtime = ManualRuntime()
        self.settles: list[Settle] = []
        self.ended: list[Reaction] = []
        self.searches = 0
        self.fails = False
        self.call = RetryingCall(
            self.runtime,
            self.runtime.actor("a"),
            backoff,
            self._attempt,
            self.ended.append,
            find_controller=self._search,
            tries=tries,
        )

    def _attempt(self, settle: Settle) -> None:
        if self.fails:
            raise OSError("now")
        self.settles.append(settle)

    def _search(self) -> None:
        self.searches += 1

    def settle(self, reaction: Reaction) -> None:
        self.settles[-1](reaction)
        self.runtime.run_until_idle()


def test_pauses_grow_up_to_the_longest() -> None:
    source = random.Random(1)
    assert [STEADY.delay_ms(n, source) for n in (1, 2, 3, 4, 5, 10**6)] == [
        100,
        200,
        400,
        800,
        1000,
        1000,
    ]


def test_jitter_spreads_them_and_keeps_the_limit() -> None:
    source, backoff = random.Random(1), Backoff(100, 1000, jitter=0.2)
    first = [backoff.delay_ms(1, source) for _ in range(500)]
    assert 80 <= min(first) < 85
    assert 115 < max(first) <= 120
    late = [backoff.delay_ms(40, source) for _ in range(500)]
    assert min(late) >= 800
    assert max(late) == 1000


@pytest.mark.parametrize(
    "wrong", [(0, 1), (-1, 1), (5, 4), (1, 2, 0.5), (1, 2, 2.0, 1.0), (1, 2, 2.0, -0.1)]
)
def test_pauses_that_make_no_sense_are_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        Backoff(*wrong)


def test_a_table_of_reactions_is_complete_and_says_each_thing_once() -> None:
    table = reactions({Reaction.DONE: [ErrorCode.NONE]}, otherwise=Reaction.AGAIN)
    assert set(table) == set(ErrorCode)
    assert {code for code in table if table[code] is not Reaction.AGAIN} == {ErrorCode.NONE}
    twice = {Reaction.AGAIN: [ErrorCode.NOT_CONTROLLER], Reaction.DONE: [ErrorCode.NOT_CONTROLLER]}
    with pytest.raises(ValueError, match="NOT_CONTROLLER stands twice"):
        reactions(twice, otherwise=Reaction.AGAIN)


@pytest.mark.parametrize("reaction", [Reaction.DONE, Reaction.GIVE_UP, Reaction.FATAL])
def test_what_ends_it_is_told_once(reaction: Reaction) -> None:
    asked = Asked()
    asked.call.start()
    asked.settles[0](reaction)
    asked.settles[0](Reaction.AGAIN)  # a second outcome of one try
    asked.runtime.advance(10_000)
    assert asked.ended == [reaction]
    assert len(asked.settles) == 1
    assert not asked.call.active


def test_it_asks_again_after_growing_pauses() -> None:
    asked = Asked()
    asked.call.start()
    at = []
    for _ in range(5):
        begun = asked.runtime.now_ms()
        tries = len(asked.settles)
        asked.settle(Reaction.AGAIN)
        while len(asked.settles) == tries:
            asked.runtime.advance(1)
        at.append(asked.runtime.now_ms() - begun)
    assert at == [100, 200, 400, 800, 1000]
    assert asked.call.failures == 5
    asked.settle(Reaction.DONE)
    asked.call.start()
    assert asked.call.failures == 0


def test_never_two_tries_at_once() -> None:
    asked = Asked()
    for _ in range(3):
        asked.call.start()
        asked.call.hurry()
    assert len(asked.settles) == 1
    asked.settle(Reaction.AGAIN)
    asked.call.start()  # it waits already
    assert len(asked.settles) == 1


def test_the_controller_is_looked_for_before_the_pause() -> None:
    asked = Asked()
    asked.call.start()
    asked.settle(Reaction.FIND_CONTROLLER)
    assert asked.searches == 1
    assert len(asked.settles) == 1
    asked.runtime.advance(100)
    assert len(asked.settles) == 2


def test_hurry_ends_a_pause() -> None:
    asked = Asked()
    asked.call.start()
    asked.settle(Reaction.AGAIN)
    asked.call.hurry()
    assert len(asked.settles) == 2
    asked.runtime.advance(5000)
    assert len(asked.settles) == 2


def test_cancelled_it_asks_no_more_and_hears_nothing() -> None:
    asked = Asked()
    asked.call.start()
    asked.settle(Reaction.AGAIN)
    asked.call.cancel()
    asked.runtime.advance(5000)
    other = Asked()
    other.call.start()
    other.call.cancel()
    other.settle(Reaction.DONE)
    for each in (asked, other):
        each.call.cancel()
        each.call.start()
        each.call.hurry()
        assert len(each.settles) == 1
        assert each.ended == []


def test_a_cancellation_between_the_timer_and_the_actor() -> None:
    asked = Asked()
    asked.call.start()
    asked.settle(Reaction.AGAIN)
    queued = asked.runtime._timers[0][2].task
    queued()  # the timer has posted it
    asked.call.cancel()
    asked.runtime.run_until_idle()
    assert len(asked.settles) == 1


def test_it_ends_after_as_many_tries_as_it_has() -> None:
    asked = Asked(tries=3)
    asked.call.start()
    for _ in range(2):
        asked.settle(Reaction.AGAIN)
        asked.runtime.advance(5000)
    asked.settle(Reaction.FIND_CONTROLLER)
    asked.runtime.advance(5000)
    assert len(asked.settles) == 3
    assert asked.ended == [Reaction.FIND_CONTROLLER]


def test_a_try_that_raises_is_tried_again_and_is_not_hidden() -> None:
    asked = Asked()
    asked.fails = True
    with pytest.raises(OSError):
        asked.call.start()
    asked.fails = False
    asked.runtime.advance(100)
    assert len(asked.settles) == 1


def test_it_may_begin_anew_when_it_ends() -> None:
    runtime, numbers = ManualRuntime(), iter(range(3))

    def attempt(settle: Settle) -> None:
        settle(Reaction.DONE)

    def on_end(reaction: Reaction) -> None:
        if next(numbers) < 2:
            call.start()

    call = RetryingCall(runtime, runtime.actor("a"), STEADY, attempt, on_end)
    call.start()
    assert runtime.run_until_idle() == 3
    assert not call.active
