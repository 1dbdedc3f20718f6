"""Types of the native module; see the stub for what each thing promises."""

from collections.abc import Hashable
from typing import Any, final

class TimerTask:
    """What runs at a deadline. In one timer at a time; hash and equality are by identity."""
    def run(self) -> None:
        """Called once per ``add`` that was not cancelled, by ``advance``, without any lock."""
    @property
    def expiry_ms(self) -> int: ...
    @property
    def waiting(self) -> bool: ...
    def cancel(self) -> bool:
        """Leave the timer, in O(1), from any thread.

        Returns:
            True: it was waiting and will not run. False: it was not in a timer, or ``advance`` has
            taken it out and it runs now, soon, or has run.
        """

@final
class TimingWheel:
    """One level; its owner's lock guards it."""
    def __init__(self, tick_ms: int, size: int, start_ms: int) -> None: ...
    @property
    def tick_ms(self) -> int: ...
    @property
    def interval_ms(self) -> int: ...
    @property
    def current_ms(self) -> int: ...
    @property
    def end_ms(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def overflow(self) -> TimingWheel | None: ...
    def advance(self, now_ms: int) -> None:
        """Move the clocks of this and all coarser wheels, in whole ticks, never back."""
    def coarser(self) -> TimingWheel: ...

class Timer:
    """Tasks by deadline. Any method from any thread (not from a finalizer, which may come while
    this thread holds the lock); one short lock, never held while a task runs.

    Within one tick tasks run in the order in which they reached its bucket; between ticks in the
    order of time. A bucket is moved under the lock as a whole, as in Kafka: one of a million tasks
    keeps other threads waiting for some hundred ms, once, at most every 8 s.

    Args:
        start_ms: now, in ms of a clock that never goes back; at least 0.
        tick_ms: length of a bucket of the finest wheel; a task may run that much, less 1 ms, early.
        wheel_size: buckets of a wheel, at least 2.
    """
    def __init__(self, start_ms: int, tick_ms: int = 1, wheel_size: int = 20) -> None: ...
    @property
    def wheel(self) -> TimingWheel: ...
    def add(self, task: TimerTask, delay_ms: int, now_ms: int | None = None) -> None:
        """Run ``task`` at the first ``advance`` to ``delay_ms`` from now or later.

        ``now_ms`` is the caller's time; without it, the time last advanced to. A task that waits
        already gets the new deadline. One that is due already runs at the next ``advance``,
        whatever its time: nothing ever runs in here.
        """
    def advance(self, now_ms: int) -> int:
        """Run all that falls due up to ``now_ms``; an earlier time than the last changes nothing.

        An exception of a task does not keep the others from running; it is raised at the end, in
        an ``ExceptionGroup`` where there are several.

        Returns:
            How many tasks ran, those that a task added and that fell due by then included.
        """
    def next_deadline_ms(self) -> int | None:
        """When ``advance`` next has something to do (run tasks, or sort a bucket of a coarser
        wheel), at or before the earliest expiry; None when nothing waits."""
    def __len__(self) -> int:
        """Tasks that wait. O(buckets); there are some dozens."""

class DelayedOperation(TimerTask):
    """Something to answer once: when a condition holds, or ``delay_ms`` after its registration.

    One thread at a time looks (``try_complete``); another that wants to look leaves word, and the
    first one looks again: nobody waits for a lock here, and no look is lost. Whoever completes it
    answers; if a look is under way, the thread that looks does it, right after. So answers never
    run beside a look, and run without any lock.
    """

    _purgatory: Any
    def __init__(self, delay_ms: int) -> None: ...
    @property
    def delay_ms(self) -> int: ...
    @property
    def completed(self) -> bool: ...
    def try_complete(self) -> bool:
        """If the condition holds, ``return self.force_complete()``, else return False.

        By one thread at a time. The condition is read under a lock under which it changes: that
        lock puts the order into R-89.
        """
    def on_complete(self) -> None:
        """Answer. Called exactly once, without locks."""
    def on_expiration(self) -> None:
        """Called after ``on_complete`` when it was the deadline that completed it."""
    def force_complete(self) -> bool:
        """Complete now, unless it is completed already: True for exactly one caller (R-88).

        From any thread. If a look is under way, the answer follows right after it, from there.
        """
    def attempt(self) -> bool:
        """Look, from any thread: Kafka's ``safeTryComplete``. True: this call answered it."""
    def _register(
        self,
        purgatory: Any,
        by_key: dict[Hashable, Watchers],
        keys: tuple[Hashable, ...],
        timer: Timer,
        now_ms: int | None,
    ) -> bool:
        """Look, watch under every key, look again, and into the timer if still open (R-89).

        True: it went into the watch lists. False: completed before, or there is no delay.
        """

@final
class Watchers:
    """The operations that watch one key. When the last is gone it leaves ``by_key`` for good."""
    def __init__(self, by_key: dict[Hashable, Watchers], key: Hashable) -> None: ...
    def __len__(self) -> int: ...
    def add(self, operation: DelayedOperation) -> bool:
        """False: dropped meanwhile, look for the successor in ``by_key``."""
    def try_complete(self, errors: list[Exception]) -> int:
        """Look at all, put aside what they raise; returns how many this call completed."""
    def sweep(self) -> None:
        """Drop what is completed."""
    def take(self) -> list[DelayedOperation]:
        """Drop all, and return it."""

def raise_all(errors: list[Exception]) -> None:
    """Raise what was put aside so that the rest could be done: one as it is, several as a group."""
