"""A schedule as a value: the operations of clients, and the faults with their times.

It is drawn from a seed, can be stored as JSON, and can run again with parts left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from logstore.common.errors import ConfigError
from logstore.common.json_fields import json_fields, snake_case
from replication.common.config import TRUNCATION_RULES
from replication.simulator.world.fault_kinds import KINDS

FLUSH_MODES = ("ack", "os")
GROUP_OPERATIONS = ("join-group", "leave-group", "commit-offsets", "restart-member")
TRANSFER_OPERATIONS = ("write-transaction", "copy-transaction", "replace-producer")
OPERATIONS = (
    "produce",
    "consume",
    "elect",
    "delete-records",
    "stop",
    "reassign",
    "transaction",
    "make-anew",
    "produce-anew",
    "grow",
    "reconfigure",
    "produce-latest",
    *GROUP_OPERATIONS,
    *TRANSFER_OPERATIONS,
)
MAX_BROKERS = 7


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The choices of a search.

    Attributes:
        truncation: a rule of ``replication.decisions.truncation``.
        faults: kinds of ``fault_kinds.KINDS`` or its groups; ``("all",)``.
        flush: ``ack``, ``os`` or ``both``.
        brokers, events: how many brokers, and about how many events in the safety phase.
        groups: whether there is a group of consumers too.
        transactions: whether there are transactions through their coordinators.
    """

    truncation: str = "fetch"
    faults: tuple[str, ...] = ("all",)
    flush: str = "both"
    brokers: int = 3
    events: int = 150
    groups: bool = False
    transactions: bool = False


# Names of the negative numbers that stand for roles (``faults``, ``triggers``).
_NAMES = {
    -1: "coordinator",
    -2: "clients",
    -3: "controller",
    -4: "leader",
    -5: "its sender",
    -6: "its receiver",
    -7: "who joins",
}


def _name(broker: int) -> str:
    return _NAMES.get(broker, f"broker {broker}")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of the plan.

    Attributes:
        at_ms, duration_ms: virtual time from the start of the safety phase. An instantaneous fault
            has no duration. A broker that goes down comes back after it.
        kind: a key of ``fault_kinds.KINDS``.
        broker: the affected broker; −1 for all, or for the controller at that time.
        amount: a rate, a number of operations or ms, depending on the kind.
        moment: from ``at_ms`` on the fault waits for such a message (``triggers``). ``broker`` and
            ``others`` may then name roles in it.
    """

    at_ms: int
    kind: str
    broker: int = -1
    duration_ms: int = 0
    amount: float = 0.0
    others: tuple[int, ...] = ()
    moment: str = ""

    @property
    def names_roles(self) -> bool:
        """Whether it names roles at the time of the fault instead of brokers."""
        return min((self.broker, *self.others)) < -2

    def __str__(self) -> str:
        whom = "" if self.broker in (-1, -2) else f" {_name(self.broker)}"
        more = f" from {', '.join(map(_name, self.others))}" if self.others else ""
        when = f" at: {self.moment}" if self.moment else ""
        long = f" for {self.duration_ms} ms" if self.duration_ms else ""
        much = f" ({self.amount:g})" if self.amount else ""
        return f"{self.at_ms:6} ms  {self.kind}{whom}{more}{much}{long}{when}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a client.

    Attributes:
        kind: ``produce``, ``consume``, ``elect``, ``delete-records``, ``stop`` (a clean restart),
            ``reassign``, ``transaction``; ``make-anew``, ``produce-anew``, ``grow`` and
            ``reconfigure`` (``lives``); ``produce-latest`` (``compaction``); ``join-group``,
            ``leave-group``, ``commit-offsets`` and ``restart-member`` (``groups``);
            ``write-transaction``, ``copy-transaction`` and ``replace-producer`` (``transfers``).
        client: the number of the producer or consumer; for ``stop`` the broker.
        partition: for ``join-group`` the number of an instance id, 0 for a dynamic member; for
            ``write-transaction`` a bit for each partition.
        size: bytes of the value, for ``delete-records`` a percentage, or the number of a choice.
        records: how many in one batch; for ``consume`` how many polls.
    """

    at_ms: int
    kind: str
    client: int = 0
    partition: int = 0
    acks: int = -1
    records: int = 1
    size: int = 10

    def __str__(self) -> str:
        what = f"{self.kind} {self.client} partition {self.partition}"
        if self.kind == "produce":
            what += f" acks {self.acks}, {self.records} × {self.size} bytes"
        return f"{self.at_ms:6} ms  {what}"


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """Everything that one run needs. The same plan gives the same run."""

    seed: int
    truncation: str
    flush: str
    brokers: int
    partitions: int
    min_isr: int
    idempotent: tuple[bool, ...]  # acks by producer
    faults: tuple[PlannedFault, ...]
    operations: tuple[Operation, ...]
    duration_ms: int
    segment_bytes: int = 800
    fetch_bytes: int = 1 << 20  # bytes that a follower gets at a time
    racks: bool = False  # whether consumers read from the replica in their rack (KIP-392)
    poll_bytes: int = 1000  # bytes of a partition that a consumer gets at a time
    unclean: bool = False  # whether the topic may elect a leader outside its ISR
    wire: bool = False  # whether requests between brokers go as bytes
    violation: str = ""  # what it once found, for readers

    def does_any(self, kinds: tuple[str, ...]) -> bool:
        """Whether it has an operation of one of these kinds."""
        return any(step.kind in kinds for step in self.operations)

    def to_json(self) -> str:
        return json.dumps(json_fields(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> SchedulePlan:
        """
        Raises:
            ConfigError: the text is not a plan.
        """
        try:
            data: dict[str, Any] = json.loads(text, object_pairs_hook=_fields)
            data["faults"] = tuple(
                PlannedFault(**{**fault, "others": tuple(fault["others"])})
                for fault in data["faults"]
            )
            data["operations"] = tuple(Operation(**step) for step in data["operations"])
            data["idempotent"] = tuple(data["idempotent"])
            if data.get("mutant", "") is None:
                del data["mutant"]  # of plans that were saved when there was such a field
            plan = cls(**data)
            _check(plan)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(f"not a plan of a simulation: {error}") from None
        return plan


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Map the keys of JSON to fields. Earlier files have the field names as keys."""
    return {snake_case(key): value for key, value in pairs}


def _tuple_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is tuple and all(type(part) is kind for part in value)


_SHAPES: dict[Any, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int,
    "float": lambda value: type(value) in (int, float),
    "bool": lambda value: type(value) is bool,
    "str": lambda value: type(value) is str,
    "str | None": lambda value: value is None or type(value) is str,
    "tuple[bool, ...]": _tuple_of(bool),
    "tuple[int, ...]": _tuple_of(int),
    "tuple[PlannedFault, ...]": _tuple_of(PlannedFault),
    "tuple[Operation, ...]": _tuple_of(Operation),
}


def _check(plan: SchedulePlan) -> None:
    """
    Raises:
        ValueError: a value that no run can have.
    """
    parts: list[Any] = [plan, *plan.faults, *plan.operations]
    for part in parts:
        for each in fields(part):
            if not _SHAPES[each.type](getattr(part, each.name)):
                raise ValueError(f"{each.name} is not of type {each.type}")
    known = {fault.kind for fault in plan.faults} <= set(KINDS)
    known &= {step.kind for step in plan.operations} <= set(OPERATIONS)
    known &= plan.truncation in TRUNCATION_RULES and plan.flush in FLUSH_MODES
    if not known:
        raise ValueError("a kind of fault, an operation, a rule or a flush mode is not known")
    if not 1 <= plan.brokers <= MAX_BROKERS or min(plan.partitions, plan.min_isr) < 1:
        raise ValueError("numbers of brokers, partitions or in-sync replicas out of range")
    if not plan.idempotent or min(plan.duration_ms, plan.segment_bytes) < 1:
        raise ValueError("without a producer, a duration or a size of segments")


@dataclass(slots=True)
class Result:
    """The result of a run."""

    seed: int
    events: int
    trace_hash: str
    violations: list[str]
    counters: dict[str, int] = field(default_factory=dict)
    trace: list[str] | None = None

    @property
    def failed(self) -> bool:
        return bool(self.violations)


def plan_size(plan: SchedulePlan) -> int:
    """The size that shrinking reduces."""
    return len(plan.faults) + len(plan.operations)


__all__ = [
    "FLUSH_MODES",
    "GROUP_OPERATIONS",
    "TRANSFER_OPERATIONS",
    "Operation",
    "PlannedFault",
    "Result",
    "SchedulePlan",
    "SearchOptions",
    "plan_size",
]
