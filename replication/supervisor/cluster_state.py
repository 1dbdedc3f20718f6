"""What the brokers of a cluster say of themselves over HTTP, put together; and whether one of them
may be restarted (X-152): a pure function of it.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.clock import SystemClock
from replication.common.addresses import split_address
from replication.common.state import NO_LEADER
from replication.supervisor import zookeeper
from replication.supervisor.cluster_file import BrokerEntry, ClusterFile

ANSWER_S = 5.0
ANSWER_MAX = 256 << 20  # bytes: 100,000 partitions have 60 MB
REASONS_MAX = 5
ASKED_AT_ONCE = 8
_STRANGE = (ValueError, KeyError, TypeError, AttributeError)  # it is no broker of ours


class BrokerView(NamedTuple):
    """A broker as it shows itself.

    Attributes:
        problem: why it does not answer; empty.
        reasons: why it is not ready; empty.
        state: its row of ``/state``.
    """

    broker_id: int
    problem: str = ""
    reasons: tuple[str, ...] = ()
    is_controller: bool = False
    state: Mapping[str, Any] = {}

    @property
    def is_ready(self) -> bool:
        return not self.problem and not self.reasons

    @property
    def why(self) -> str:
        """Why it is not ready, in some words however many partitions it has."""
        some = ", ".join(self.reasons[:REASONS_MAX])
        return self.problem or some + " and more" * (len(self.reasons) > REASONS_MAX)


class PartitionView(NamedTuple):
    """A partition as its leader shows it. ``min_isr`` is 0 where the leader does not answer."""

    tp: TopicPartition
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int


class EngineView(NamedTuple):
    """``took_ms`` is that of the fastest answer, −1 without any."""

    url: str
    servers: int
    answering: int
    took_ms: float


class ClusterHealth(NamedTuple):
    brokers: tuple[BrokerView, ...]
    partitions: tuple[PartitionView, ...]

    @property
    def under_replicated(self) -> list[PartitionView]:
        return [
            each
            for each in self.partitions
            if each.leader != NO_LEADER and len(each.isr) < len(each.replicas)
        ]

    @property
    def leaderless(self) -> list[PartitionView]:
        return [each for each in self.partitions if each.leader == NO_LEADER]


# -- the decision ---------------------------------------------------------------------------------


def why_not_restart(
    broker_id: int, view: ClusterHealth, *, allow_unavailable: bool = False
) -> list[str]:
    """Why the broker must not be stopped now; empty if it may be.

    One at a time, and not while one recovers: all brokers have to be ready. One that does not
    answer has nothing to lose but its place in an ISR. No partition may fall below its
    ``min.insync.replicas``.

    Args:
        allow_unavailable: except those that cannot be kept up, for they need each of their
            replicas.
    """
    own = next((each for each in view.brokers if each.broker_id == broker_id), None)
    if own is None:
        return [f"there is no broker {broker_id}"]
    if own.problem:
        reasons = []
    else:
        reasons = [
            f"broker {each.broker_id} is not ready: {each.why}"
            for each in view.brokers
            if not each.is_ready
        ]
    for each in view.partitions:
        if broker_id not in each.isr:
            if broker_id in each.replicas and not own.problem:
                reasons.append(f"{each.tp}: broker {broker_id} catches up")
            continue
        left = len(each.isr) - 1
        needs_all = each.min_isr >= len(each.replicas)
        if each.min_isr == 0:
            reasons.append(f"{each.tp}: its leader does not say what it needs")
        elif left < each.min_isr and not (needs_all and allow_unavailable):
            reasons.append(
                f"{each.tp}: {left} in sync would be left, "
                f"and min.insync.replicas is {each.min_isr}"
                + (f" with {len(each.replicas)} replicas" if needs_all else "")
            )
    return reasons


def next_restart(
    pending: Collection[int], view: ClusterHealth, *, allow_unavailable: bool = False
) -> tuple[int | None, list[str]]:
    """Which of the brokers that are still to be restarted comes next, the controller last; None
    with the reasons if none may now."""
    controllers = {each.broker_id for each in view.brokers if each.is_controller}
    others = sorted(set(pending) - controllers)
    reasons: dict[str, None] = {}  # a set in order: each partition may have one
    for broker_id in others or sorted(pending):
        found = why_not_restart(broker_id, view, allow_unavailable=allow_unavailable)
        if not found:
            return broker_id, []
        reasons |= dict.fromkeys(found)
    return None, [*reasons]


# -- asking ---------------------------------------------------------------------------------------


def ask_cluster(brokers: Sequence[BrokerEntry], timeout_s: float = ANSWER_S) -> ClusterHealth:
    """Ask all of them at once; one that does not answer is in the view with the reason."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        answers = list(pool.map(lambda each: _ask_broker(each, timeout_s), brokers))
    states = [state for _, state in answers]
    return ClusterHealth(tuple(view for view, _ in answers), tuple(merged_partitions(states)))


def find_controller(brokers: Sequence[BrokerEntry], timeout_s: float = ANSWER_S) -> int | None:
    """The one that says it is."""
    views = ask_cluster(brokers, timeout_s).brokers
    return next((each.broker_id for each in views if each.is_controller), None)


def _ask_broker(entry: BrokerEntry, timeout_s: float) -> tuple[BrokerView, Mapping[str, Any]]:
    try:
        code, ready = _get(entry.http, "/ready", timeout_s)
        found, state = _get(entry.http, "/state", timeout_s)
        if found != http.client.OK:
            raise ValueError(f"/state answers with {found}")
        row: Mapping[str, Any] = next(iter(state["brokers"]), {})
        reasons = () if code == http.client.OK else _reasons(ready)
        view = BrokerView(entry.broker_id, "", reasons, bool(row.get("is_controller")), row)
    except (OSError, http.client.HTTPException, *_STRANGE) as error:
        why = str(error) or type(error).__name__
        return BrokerView(entry.broker_id, f"{entry.http} does not answer: {why}"), {}
    return view, state


def _reasons(ready: Mapping[str, Any]) -> tuple[str, ...]:
    """Why a broker is not ready, as its ``/ready`` says."""
    behind = [str(name) for names in ready.get("outOfSync", {}).values() for name in names]
    stages = [str(stage) for stage in ready.get("brokers", {}).values()] or ["it opens its logs"]
    return tuple(f"{name} is not in sync" for name in behind) or tuple(stages)


def _get(address: str, path: str, timeout_s: float) -> tuple[int, dict[str, Any]]:
    """Status and JSON.

    Raises:
        OSError, HTTPException, ValueError: there is no such answer.
    """
    at = split_address(address)
    assert at is not None
    connection = http.client.HTTPConnection(*at, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(ANSWER_MAX + 1)
        if len(body) > ANSWER_MAX:
            raise ValueError(f"{path}: more than {ANSWER_MAX} bytes")
        found = json.loads(body)
    finally:
        connection.close()
    if not isinstance(found, dict):
        raise ValueError(f"{path}: no object")
    return answer.status, found


def merged_partitions(states: Iterable[Mapping[str, Any]]) -> list[PartitionView]:
    """Each partition once: as the leader of its latest epoch shows it, if that answers."""
    best: dict[TopicPartition, tuple[tuple[int, int], Mapping[str, Any]]] = {}
    for state in states:
        for row in state.get("partitions", ()):
            tp = TopicPartition(str(row["topic"]), int(row["partition"]))
            rank = (int(row["leader_epoch"]), int(row["min_isr"]))
            if tp not in best or rank > best[tp][0]:
                best[tp] = (rank, row)
    return [
        PartitionView(
            tp,
            int(row["leader"]),
            tuple(int(each["broker"]) for each in row["replicas"]),
            tuple(map(int, row["isr"])),
            int(row["min_isr"]),
        )
        for tp, (_, row) in sorted(best.items())
    ]


def ask_engine(cluster: ClusterFile) -> EngineView:
    """Whether its servers answer; one that is no ZooKeeper has none that are known."""
    url = cluster.engine.url
    scheme, _, rest = url.partition("://")
    hosts = rest.partition("/")[0].split(",") if scheme == "zookeeper" else ()
    addresses = [at for text in hosts if (at := split_address(text)) is not None]
    clock, fastest, answering = SystemClock(), -1.0, 0
    for host, port in addresses:
        began = clock.monotonic_ns()
        try:
            answer = zookeeper.ask(host, port, "srvr")
        except OSError:
            continue
        if "Mode: " in answer:
            answering += 1
            took_ms = (clock.monotonic_ns() - began) / 1e6
            fastest = took_ms if fastest < 0 else min(fastest, took_ms)
    return EngineView(url, len(addresses), answering, fastest)
