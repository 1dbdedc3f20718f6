"""Checks what brokers log, and how often they send requests (I-29, I-30).

A cluster that loses records, or repeats itself endlessly, usually logs that long before a record is
missed. So each kind of warning has its reasons here, in terms of the plan, and a bound.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from logstore.common.errors import CorruptDataError, ResourceBusyError, StorageFailedError
from replication.common.errors import FencedLeaderEpochError, KafkaStorageError
from replication.common.limited_log import COUNT
from replication.common.messages import Request
from replication.simulator.oracle.excuses import Excuse, Excuses
from replication.simulator.oracle.unclean import ELECTIONS
from replication.simulator.world.cluster import DISK_FAILS
from replication.simulator.world.fault_kinds import IDENTITY
from replication.simulator.world.plan import SchedulePlan
from replication.simulator.world.scheduler import US_PER_MS, Process, Scheduler

WARNED = "warned: "

DAMAGES = frozenset({"bit-rot", "flipped-read", "misdirected-write", "epoch-flip"})
FORGETS = frozenset({"bit-rot", "misdirected-write", "wiped-disk", *IDENTITY})
FOREIGN_TREE = frozenset({"foreign-tree"})
FORGETS_UNSYNCED = frozenset(
    {"power-loss", "partial-power-loss", "sync-error"}
)  # only with flush=os


class Reason(NamedTuple):
    """The reason that justifies a kind of warning.

    Attributes:
        kinds: one of these faults must be planned; empty for any plan.
        forgetting: a replica may have lost committed records, or the truncation rule is an old one.
        most: how many of this kind one schedule may have in a second.
    """

    kinds: frozenset[str] = frozenset()
    forgetting: bool = False
    most: int = 100


REASONS = {
    "%s: cut to %d below %d": Reason(forgetting=True),
    "%s: the leader ends at %d, we at %d": Reason(forgetting=True),
    "%s: fetched what is not valid, again later: %s": Reason(DAMAGES),
    "log directory %s is offline: %s": Reason(DISK_FAILS | DAMAGES),
    "%s failed (%s); offline: %s": Reason(DISK_FAILS | DAMAGES),
    "broker %s: no log directory is left": Reason(DISK_FAILS | DAMAGES),
    "background flush: %s": Reason(DISK_FAILS),
    "broker %s stops: %s": Reason(FOREIGN_TREE),
}
"""Reasons by the message format. Every other kind may occur in any plan, up to the bound."""

ANY_PLAN = Reason()


class LogWatch(logging.Handler):
    """Counts warnings by kind.

    ``found`` gets those without a reason, and every exception that the code under test caught and
    survived.
    """

    def __init__(
        self, plan: SchedulePlan, scheduler: Scheduler, counters: Counter[str], found: list[str]
    ) -> None:
        super().__init__(logging.DEBUG)  # of lines that were left out; of others, warnings
        self._scheduler = scheduler
        self._counters = counters
        self._excuses = Excuses(counters)
        self._found = found
        self._planned = frozenset(fault.kind for fault in plan.faults)
        forgetting = FORGETS | (FORGETS_UNSYNCED if plan.flush == "os" else frozenset())
        self._forgets = plan.truncation != "fetch" or bool(self._planned & forgetting)
        self._cuts_exactly = plan.truncation == "fetch"
        self._rates: Counter[tuple[str, int]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._exception(record, error)
            return
        kind = str(record.msg).removesuffix(COUNT)
        self._counters[WARNED + kind] += 1
        reason = REASONS.get(kind, ANY_PLAN)
        # Under the older rules a follower may hold records that contradict its leader's.
        strikes = reason.kinds & self._planned or not self._cuts_exactly
        if reason.kinds and not strikes:
            self._found.append(f"I-29 without a reason: {record.getMessage()}")
        if reason.forgetting:
            if self._forgets or self._counters[ELECTIONS]:
                self._excuses.use(Excuse.FORGOTTEN)
            else:
                self._found.append(f"I-29 nobody forgot anything: {record.getMessage()}")
        window = (kind, self._scheduler.now_us // (1000 * US_PER_MS))
        self._rates[window] += 1
        if self._rates[window] > reason.most:
            self._found.append(f"I-29 again and again: {record.getMessage()}")

    def _exception(self, record: logging.LogRecord, error: BaseException) -> None:
        if isinstance(error, FencedLeaderEpochError):
            return  # a fetcher waits for the next epoch
        storage = isinstance(error, KafkaStorageError | StorageFailedError | ResourceBusyError)
        if storage and DISK_FAILS & self._planned:
            self._excuses.use(Excuse.STORAGE_ERROR)
            return
        if isinstance(error, CorruptDataError) and DAMAGES & self._planned:
            self._excuses.use(Excuse.DAMAGE_REPORTED)
            return
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = ""
        if place is not None:
            file = place.tb_frame.f_code.co_filename.rpartition("/")[2]
            where = f" ({file}:{place.tb_lineno})"
        self._found.append(f"error: {record.getMessage()}: {error!r}{where}")


MOST_ASKED = 300  # the most requests of one kind from one process to another in 100 ms


class Pace:
    """Checks the rate of every kind of request."""

    def __init__(self, scheduler: Scheduler, found: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._found = found
        self._window = -1
        self._asked: Counter[tuple[int, int, type[Request]]] = Counter()

    def sent(self, sender: Process, receiver: int, request: Request) -> None:
        window = self._scheduler.now_us // (100 * US_PER_MS)
        if window != self._window:
            self._window = window
            self._asked.clear()
        key = (sender.node, receiver, type(request))
        self._asked[key] += 1
        if self._asked[key] == MOST_ASKED:
            self._found(
                f"I-30 {sender.name} asks b{receiver} {MOST_ASKED} times in 100 ms: "
                f"{type(request).__name__}"
            )
