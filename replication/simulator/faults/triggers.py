"""Faults at the worst moment: a fault may wait for a message of a certain kind, and then hit that
message or a broker that is involved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from replication.common.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    FetchResponse,
    LeaderAndIsrRequest,
    Request,
)
from replication.coordination import nodes
from replication.simulator.world.cluster import SimCluster
from replication.simulator.world.coordinator import (
    CARRIED_OUT,
    CRASH,
    NOT_CARRIED_OUT,
    CallFate,
    CoordinatorCall,
    Silence,
)
from replication.simulator.world.network import SimMessage
from replication.simulator.world.plan import PlannedFault
from replication.simulator.world.scheduler import US_PER_MS, Scheduler

# Roles that a plan may name instead of a broker; ``faults`` defines −1 and −2.
CONTROLLER, LEADER, SENDER, RECEIVER, JOINER = -3, -4, -5, -6, -7

GROWS, SHRINKS, ANSWERED = "ISR grows", "ISR shrinks", "ISR change answered"
ROLE_CHANGE, RECORDS, DIVERGING = "role change", "records fetched", "diverging answer"
# Calls to the coordinator. The sender is the broker of the session.
STANDS, REGISTERS = "controller stands", "broker registers"
SEEKS, WRITTEN = "controller sought", "leaders written"
CALLS = (STANDS, REGISTERS, SEEKS, WRITTEN)
MOMENTS = (GROWS, SHRINKS, ANSWERED, ROLE_CHANGE, RECORDS, DIVERGING, *CALLS)

MESSAGE_KINDS = frozenset(
    {"message-loss", "message-delay", "message-twice", "connection-reset"}
)  # faults of the message itself
CALL_KINDS = frozenset({NOT_CARRIED_OUT, CARRIED_OUT, CRASH})  # faults of the call itself


BEFORE_THE_CALL, AFTER_THE_CALL, IN_THE_WRITE = 0.0, 1.0, 2.0  # amounts for a crash during the call


class Seen(NamedTuple):
    """A moment, and the broker that joins the ISR in it, if there is one."""

    name: str
    joiner: int | None = None


class Triggers:
    """Checks every message while a fault waits for one."""

    def __init__(
        self,
        cluster: SimCluster,
        scheduler: Scheduler,
        struck: Counter[str],
        begin: Callable[[PlannedFault], None],
    ) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._struck = struck
        self._begin = begin
        self._waiting: list[PlannedFault] = []

    def wait(self, fault: PlannedFault) -> None:
        self._waiting.append(fault)
        self._look()

    def stop(self) -> None:
        self._waiting.clear()
        self._look()

    def _look(self) -> None:
        """Watch messages only while a fault waits."""
        calls = any(fault.moment in CALLS for fault in self._waiting)
        messages = any(fault.moment not in CALLS for fault in self._waiting)
        self._cluster.coordinator.gate = self._on_call if calls else None
        self._cluster.network.gate = self._pass if messages else None

    def _met(self, here: list[PlannedFault]) -> None:
        """Remove faults that have met their moment."""
        self._waiting = [f for f in self._waiting if all(f is not met for met in here)]
        self._look()

    # -- calls of the coordinator --------------------------------------------------------------

    def _on_call(self, call: CoordinatorCall) -> CallFate | None:
        name = moment_of(call)
        here = [f for f in self._waiting if f.moment == name and _concerns(f, call.broker)]
        if name is None or not here:
            return None
        on_call = next((fault for fault in here if fault.kind in CALL_KINDS), None)
        here = [fault for fault in here if fault is on_call or fault.kind not in CALL_KINDS]
        self._met(here)
        for fault in here:
            if fault is not on_call:
                met = with_roles(fault, {SENDER: call.broker})
                if met is not None:  # when the event with the call is over
                    begin = partial(self._begin, replace(met, moment=""))
                    self._scheduler.after(0, None, "", begin)
        if on_call is None:
            return None
        self._scheduler.note(f"fault {on_call}")
        if on_call.kind != CRASH:
            fate = CallFate(on_call.kind, connection_ms=on_call.duration_ms)
            if not on_call.amount:
                return fate
            silences = self._cluster.coordinator.silence
            silences.setdefault(call.broker, Silence()).planned.append((int(on_call.amount), fate))
            return None
        if on_call.amount == IN_THE_WRITE:
            self._cluster.coordinator.crash_after(1, on_call.duration_ms)
            return None
        carried_out = on_call.amount == AFTER_THE_CALL
        return CallFate(CRASH, restart_ms=on_call.duration_ms, carried_out=carried_out)

    # -- messages ------------------------------------------------------------------------------

    def _pass(self, message: SimMessage) -> None:
        seen = self._seen(message)
        here = [] if seen is None else [f for f in self._waiting if f.moment == seen.name]
        if seen is None or not here:
            message.go(message.content)
            return
        on_message = next((f for f in here if f.kind in MESSAGE_KINDS), None)
        here = [f for f in here if f is on_message or f.kind not in MESSAGE_KINDS]
        self._met(here)
        roles = {SENDER: message.source, RECEIVER: message.target}
        if seen.joiner is not None:
            roles[JOINER] = seen.joiner
        if on_message is None:
            message.go(message.content)
        else:
            self._strike(on_message, message)
        for fault in here:
            if fault.kind not in MESSAGE_KINDS:
                met = with_roles(fault, roles)
                if met is not None:
                    self._begin(replace(met, moment=""))

    def _strike(self, fault: PlannedFault, message: SimMessage) -> None:
        self._struck[fault.kind] += 1
        self._scheduler.note(f"fault {fault}: {type(message.content).__name__}")
        if fault.kind == "message-loss":
            return  # the sender gets no answer
        if fault.kind == "connection-reset":
            message.lose()
            return
        if fault.kind == "message-twice":
            if isinstance(message.content, Request):
                self._cluster.network.on_repeat(message.content)
            message.go(message.content)
        self._cluster.network.hold(message, fault.duration_ms * US_PER_MS)

    def _seen(self, message: SimMessage) -> Seen | None:
        content = message.content
        if isinstance(content, AlterPartitionRequest):
            machine = self._cluster.machines[message.source]
            for item in content.partitions:
                partition = (
                    None
                    if machine.broker is None
                    else machine.broker.replica_manager.partitions.get(item.tp)
                )
                if partition is not None:
                    known = partition.isr.committed
                    for member, _ in item.new_isr:
                        if member not in known:
                            return Seen(GROWS, member)
            return Seen(SHRINKS)
        if isinstance(content, AlterPartitionResponse):
            return Seen(ANSWERED)
        if isinstance(content, LeaderAndIsrRequest):
            return Seen(ROLE_CHANGE)
        if isinstance(content, FetchResponse) and message.target >= 0:
            if any(part.diverging_epoch is not None for part in content.partitions):
                return Seen(DIVERGING)
            if any(part.records for part in content.partitions):
                return Seen(RECORDS)
        return None


def _concerns(fault: PlannedFault, broker: int) -> bool:
    """Whether a fault waits for calls of this broker."""
    return fault.kind not in CALL_KINDS or fault.broker in (-1, broker)


def moment_of(call: CoordinatorCall) -> str | None:
    """The moment that a call to the coordinator makes."""
    if call.name == "transact":
        if call.path == nodes.CONTROLLER:
            return STANDS
        return WRITTEN if any(op.path.endswith("/state") for op in call.ops) else None
    if call.name == "create" and call.path.startswith(nodes.BROKER_IDS + "/"):
        return REGISTERS
    return SEEKS if call.name == "get" and call.path == nodes.CONTROLLER else None


def with_roles(fault: PlannedFault, roles: dict[int, int]) -> PlannedFault | None:
    """The fault with brokers in place of ``roles``. None if no broker has a role."""
    if fault.broker <= CONTROLLER:
        if fault.broker not in roles:
            return None
        fault = replace(fault, broker=roles[fault.broker])
    if any(other <= CONTROLLER for other in fault.others):
        others = (roles.get(other, other) for other in fault.others)
        fault = replace(fault, others=tuple(o for o in others if o > CONTROLLER))
    return fault
