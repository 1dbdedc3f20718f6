"""A schedule as a value: what the clients do, which faults come when. Drawn from a seed; can be
kept as JSON, and run again with parts left out."""

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
OPERATIONS = (
    "produce", "consume", "elect", "delete-records", "stop", "reassign", "transaction", "make-anew",
    "produce-anew", "grow", "reconfigure", "produce-latest",
)  # fmt: skip
MAX_BROKERS = 7


@dataclass(frozen=True, slots=True)
class Options:
    """What a search may choose from.

    Attributes:
        truncation: the rule of ``replication.decisions.truncation``.
        faults: kinds of ``fault_kinds.KINDS`` or its groups; ``("all",)``.
        flush: ``ack``, ``os`` or ``both``.
        brokers, events: how many brokers; about how many events the safety phase has.
    """

    truncation: str = "fetch"
    faults: tuple[str, ...] = ("all",)
    flush: str = "both"
    brokers: int = 3
    events: int = 150
    mutant: str | None = None


# Negative numbers in place of brokers (``faults``, ``moments``), as people read them.
_NAMES = {
    -1: "coordinator", -2: "clients", -3: "controller", -4: "leader", -5: "its sender",
    -6: "its receiver", -7: "who joins",
}  # fmt: skip


def _name(broker: int) -> str:
    return _NAMES.get(broker, f"broker {broker}")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the plan.

    Attributes:
        at_ms, duration_ms: virtual time from the start of the safety phase; what is over at once
            has no duration, and a broker that goes down comes back after it.
        kind: a key of ``fault_kinds.KINDS``.
        broker: whom it meets; −1 where that is everybody, or whoever is controller then.
        amount: a rate, a number of operations, ms: what the kind says.
        moment: from ``at_ms`` on it waits for such a message (``moments``). ``broker`` and
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
        """Not brokers, but what they are when it strikes."""
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
            ``reconfigure`` (``lives``); ``produce-latest`` (``compaction``).
        client: which producer or consumer; the broker for ``stop``.
        size: bytes of the value; for ``delete-records`` a percentage; which of the choices.
        records: in one batch; for ``consume`` how many polls.
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
class Plan:
    """Everything that one run needs; the same plan gives the same run."""

    seed: int
    truncation: str
    flush: str
    brokers: int
    partitions: int
    min_isr: int
    idempotent: tuple[bool, ...]  # by producer
    faults: tuple[Fault, ...]
    operations: tuple[Operation, ...]
    duration_ms: int
    segment_bytes: int = 800
    fetch_bytes: int = 1 << 20  # a follower gets at a time
    mutant: str | None = None
    racks: bool = False  # consumers read from the replica of theirs (KIP-392)
    poll_bytes: int = 1000  # a consumer gets of a partition at a time
    unclean: bool = False  # the topic may elect a leader outside its ISR
    violation: str = ""  # what it once found; for people

    def to_json(self) -> str:
        return json.dumps(json_fields(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """
        Raises:
            ConfigError: not a plan.
        """
        try:
            data: dict[str, Any] = json.loads(text, object_pairs_hook=_fields)
            data["faults"] = tuple(
                Fault(**{**fault, "others": tuple(fault["others"])}) for fault in data["faults"]
            )
            data["operations"] = tuple(Operation(**step) for step in data["operations"])
            data["idempotent"] = tuple(data["idempotent"])
            plan = cls(**data)
            _check(plan)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(f"not a plan of a simulation: {error}") from None
        return plan


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """By the names of the fields, which earlier files have as keys."""
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
    "tuple[Fault, ...]": _tuple_of(Fault),
    "tuple[Operation, ...]": _tuple_of(Operation),
}


def _check(plan: Plan) -> None:
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
    """What a run gave."""

    seed: int
    events: int
    trace_hash: str
    violations: list[str]
    counters: dict[str, int] = field(default_factory=dict)
    trace: list[str] | None = None

    @property
    def failed(self) -> bool:
        return bool(self.violations)


def plan_size(plan: Plan) -> int:
    """What shrinking makes small."""
    return len(plan.faults) + len(plan.operations)


__all__ = ["FLUSH_MODES", "Fault", "Operation", "Options", "Plan", "Result", "plan_size"]
