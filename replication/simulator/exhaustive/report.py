"""A search's outcome in words, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from logstore.common.json_fields import json_fields
from replication.common.state import NO_LEADER
from replication.simulator.exhaustive.model import Model, members
from replication.simulator.exhaustive.search import SearchOutcome, Violation
from replication.simulator.exhaustive.state import Control, ModelPhase, ModelReplica, State


def to_dict(model: Model, outcome: SearchOutcome) -> dict[str, Any]:
    return {
        "bounds": json_fields(model.bounds),
        "truncation": model.rule.name,
        "asynchronousIsr": model.asynchronous_isr,
        "states": outcome.states,
        "explored": outcome.explored,
        "generated": outcome.generated,
        "depth": outcome.depth,
        "complete": outcome.complete,
        "violations": [
            {
                "property": violation.violated.value,
                "depth": violation.depth,
                "trace": [
                    {"step": step.text, "state": _state_text(model.decode(step.key))}
                    for step in violation.trace
                ],
            }
            for violation in outcome.violations
        ],
    }


def to_text(model: Model, outcome: SearchOutcome) -> str:
    """Counts, and the shortest way to each violation, with the state after each step below it."""
    bounds = model.bounds
    lines = [
        f"{bounds.replicas} replicas, logs of {bounds.log_size}, {bounds.records} records, leader"
        f" epochs 0 to {bounds.max_epoch}; truncation rule {model.rule.name}",
        f"{outcome.states:,} states ({outcome.explored:,} up to the names of the replicas),"
        f" {outcome.generated:,} steps, {outcome.depth} deep;"
        f" {'complete' if outcome.complete else 'stopped'}",
    ]
    if not outcome.violations:
        lines.append("no violation")
    # Properties that break in the same state share their way.
    by_end: dict[int, list[Violation]] = {}
    for violation in outcome.violations:
        end = violation.trace[-1].key if violation.trace else -1
        by_end.setdefault(end, []).append(violation)
    for together in by_end.values():
        names = ", ".join(v.violated.value for v in together)
        lines += ["", f"{names} violated after {together[0].depth} steps:"]
        lines += _trace_lines(model, together[0])
    return "\n".join(lines)


def _trace_lines(model: Model, violation: Violation) -> Iterator[str]:
    for number, step in enumerate(violation.trace, 1):
        yield f"{number:3}. {step.text}"
        yield f"       {_state_text(model.decode(step.key))}"


def _state_text(state: State) -> str:
    replicas = (_replica_text(i, replica) for i, replica in enumerate(state.replicas))
    return " | ".join([_control_text(state.control), *replicas])


def _control_text(control: Control) -> str:
    whom = "nobody leads" if control.leader == NO_LEADER else f"{control.leader} leads"
    return f"controller: {whom}, epoch {control.leader_epoch}, ISR {members(control.isr)}"


def _replica_text(me: int, replica: ModelReplica) -> str:
    log = " ".join(map(str, replica.log.records)) or "empty"
    if replica.leader == me:
        role = f"leads in {replica.leader_epoch}, ISR {members(replica.isr.committed)}"
        if replica.isr.proposed is not None:
            role += f" to be {members(replica.isr.proposed)}"
    elif replica.leader == NO_LEADER:
        role = "has no leader"
    else:
        role = f"follows {replica.leader} in {replica.leader_epoch}"
        role += "" if replica.phase is ModelPhase.FETCHING else ", to truncate"
    return f"{me}: {role}, HW {replica.high_watermark}, {log}"
