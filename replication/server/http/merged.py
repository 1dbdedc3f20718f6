"""The states of brokers in processes of their own, put together to one: to what ``cluster_state``
would show, were they in one process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from checkpoints.types import TopicPartition
from replication.broker.broker import BrokerState
from replication.server.http.state import STATE_VERSION, GroupSnapshot, assembled

SILENT, STARTING = "no answer", BrokerState.STARTING.value
"""The states of a broker that does not answer, and of one that opens its logs."""


def _numbers(names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), int)


# What each row has; a list is of rows like its element.
_BROKER = {
    **_numbers("id epoch partitions leaders under_replicated bytes_in bytes_out messages_in"),
    "state": str,
    "is_controller": bool,
    "offline_directories": [str],
}
_OFFSETS = _numbers("log_start_offset log_end_offset high_watermark")
_REPLICA = {"broker": int, "is_online": bool, "state": str, **_OFFSETS}
_PARTITION = {
    **_numbers("partition leader leader_epoch min_isr high_watermark"),
    "topic": str,
    "isr": [int],
    "replicas": [_REPLICA],
}
_COMMITTED = {"topic": str, **_numbers("partition committed")}
_GROUP = {
    **dict.fromkeys(("group", "state", "protocol_type"), str),
    "members": int,
    "offsets": [_COMMITTED],
}
_TRUNCATION = {
    "topic": str,
    **_numbers("broker partition leader_epoch from_offset to_offset ago_ms"),
}
_STATE = {
    "version": int,
    "brokers": [_BROKER],
    "partitions": [_PARTITION],
    "groups": [_GROUP],
    "truncations": [_TRUNCATION],
}


def read_state(broker_id: int, body: bytes) -> dict[str, Any]:
    """The ``/state`` of a process with this one broker, or with none yet. Nothing else is let
    through: somebody else may have its port.

    Raises:
        ValueError: it is none.
    """
    try:
        found: dict[str, Any] = _checked(json.loads(body), _STATE)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no state of a broker: {error}") from None
    if found["version"] != STATE_VERSION:
        raise ValueError(f"a state of version {found['version']}, not {STATE_VERSION}")
    if any(each["id"] != broker_id for each in found["brokers"]) or len(found["brokers"]) > 1:
        raise ValueError(f"not broker {broker_id} alone")
    return found


def _checked(found: Any, kind: Any) -> Any:
    """What is known of it here."""
    its_type = type(found)
    if its_type is not (kind if isinstance(kind, type) else type(kind)):
        raise TypeError(f"a value is of type {its_type.__name__}")
    if isinstance(kind, list):
        return [_checked(each, kind[0]) for each in found]
    if isinstance(kind, dict):  # most values are numbers and texts, and need no call
        return {
            name: value if type(value := found[name]) is each else _checked(value, each)
            for name, each in kind.items()
        }
    return found


def merged_state(states: Mapping[int, Mapping[str, Any] | None]) -> dict[str, Any]:
    """
    Args:
        states: of each broker, as of ``read_state``; None if it does not answer.
    Returns:
        As ``cluster_state``. The row of a broker that does not answer, or that only starts, has its
        state and no numbers.
    """
    answers = {broker_id: states[broker_id] for broker_id in sorted(states)}
    known = [state for state in answers.values() if state is not None]
    here = {each["id"] for state in known for each in state["brokers"]}
    brokers: list[Mapping[str, Any]] = []
    rows: dict[TopicPartition, dict[int, Mapping[str, Any]]] = {}
    for broker_id, state in answers.items():
        own = () if state is None else state["brokers"]
        brokers += own or [_without_numbers(broker_id, state)]
        for row in state["partitions"] if state else ():
            tp = TopicPartition(row["topic"], row["partition"])
            rows.setdefault(tp, {})[broker_id] = row
    return assembled(
        brokers,
        {tp: _partition(rows[tp], here) for tp in sorted(rows)},
        [_group(group) for state in known for group in state["groups"]],
        [event for state in known for event in state["truncations"]],
    )


def _without_numbers(broker_id: int, state: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        **dict.fromkeys(_BROKER),
        "id": broker_id,
        "state": SILENT if state is None else STARTING,
        "epoch": -1,
        "is_controller": False,
        "offline_directories": [],
    }


def _partition(rows: Mapping[int, Mapping[str, Any]], here: set[int]) -> dict[str, Any]:
    """As the leader of the latest epoch shows it, or those that follow one that does not answer.

    Args:
        rows: of the brokers that have a replica.
    """
    epoch = max(row["leader_epoch"] for row in rows.values())
    leading = (
        row
        for broker_id, row in rows.items()
        if row["leader"] == broker_id and row["leader_epoch"] == epoch
    )
    led = [row for row in rows.values() if row["leader"] >= 0 and row["leader"] not in here]
    nobody = {"leader": -1, "isr": [], "min_isr": 0, "high_watermark": -1}
    word = next(leading, None) or max(led, key=lambda row: row["leader_epoch"], default=nobody)
    assigned = max((row["replicas"] for row in rows.values()), key=len)
    first = next(iter(rows.values()))
    return {
        "topic": first["topic"],
        "partition": first["partition"],
        "leader": word["leader"],
        "leader_epoch": epoch,
        "isr": word["isr"],
        "min_isr": word["min_isr"],
        "high_watermark": word["high_watermark"],
        "replicas": [
            _replica(broker_id, rows.get(broker_id), broker_id in here)
            for broker_id in sorted({*rows, *(each["broker"] for each in assigned)})
        ],
    }


def _replica(broker_id: int, row: Mapping[str, Any] | None, is_here: bool) -> Mapping[str, Any]:
    """As its own broker shows it."""
    for each in () if row is None else row["replicas"]:
        if each["broker"] == broker_id:
            found: Mapping[str, Any] = each
            return found
    return {
        "broker": broker_id,
        "is_online": False,
        "state": "absent" if is_here else "unknown",
        **dict.fromkeys(_OFFSETS, -1),
    }


def _group(row: Mapping[str, Any]) -> GroupSnapshot:
    committed = {
        TopicPartition(each["topic"], each["partition"]): each["committed"]
        for each in row["offsets"]
    }
    return GroupSnapshot(
        row["group"], row["state"], row["protocol_type"], row["members"], committed
    )
