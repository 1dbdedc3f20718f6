"""With flush=ack no answer counts a record before it is durable (I-27)."""

from __future__ import annotations

from collections.abc import Callable

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    FetchRequest,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
)
from replication.partition import Partition
from replication.simulator.oracle.excuses import Excuse, Excuses
from replication.simulator.oracle.oracle_log import OracleLog
from replication.simulator.world.cluster import Machine, SimCluster
from replication.simulator.world.scheduler import Process

SHORT = "no-descriptors"  # short of descriptors: appended records may have to wait for their sync


class Durability:
    """Checks a log after each growth.

    If descriptors were short, a log may have a record without its sync. Such a record does not
    count yet: a follower does not fetch past it, and a leader neither commits nor acknowledges it.

    Args:
        shadow_of: returns what is known about a replica that is up.
    """

    def __init__(
        self,
        cluster: SimCluster,
        excuses: Excuses,
        violated: Callable[[str, TopicPartition, str], None],
        shadow_of: Callable[[int, TopicPartition], OracleLog | None],
    ) -> None:
        self._cluster = cluster
        self._excuses = excuses
        self._violated = violated
        self._shadow_of = shadow_of
        self._is_promised = cluster.plan.flush == "ack"
        self._may_wait = any(fault.kind == SHORT for fault in cluster.plan.faults)
        self._waiting: dict[tuple[int, TopicPartition], int] = {}  # → first offset not durable

    def opened(self, machine: Machine, tp: TopicPartition, shadow: OracleLog) -> None:
        """Note that a start has synced what a process left."""
        self._waiting.pop((machine.broker_id, tp), None)
        first = self._first_not_durable(machine, shadow)
        if first is not None:
            self._say(machine, tp, f"opens a log in which {first} is not durable")

    def grew(self, machine: Machine, tp: TopicPartition, shadow: OracleLog) -> None:
        first = self._first_not_durable(machine, shadow)
        if first is None:
            self._waiting.pop((machine.broker_id, tp), None)
        elif not self._was_short(machine):
            self._say(machine, tp, f"has {first} in its log, which is not durable")
        else:
            if (machine.broker_id, tp) not in self._waiting:
                self._excuses.use(Excuse.NOT_SYNCED_YET)
            self._waiting[machine.broker_id, tp] = first

    def changed(
        self, machine: Machine, tp: TopicPartition, shadow: OracleLog, partition: Partition
    ) -> None:
        """A leader does not commit records that wait for their sync."""
        waiting = self._waiting.get((machine.broker_id, tp))
        if waiting is None:
            return
        first = self._first_not_durable(machine, shadow)
        if first is None:
            del self._waiting[machine.broker_id, tp]
        elif partition.is_leader and (mark := shadow.log.high_watermark) > first:
            self._say(machine, tp, f"commits up to {mark}, and {first} is not durable")

    def asked(self, sender: Process, receiver: int, request: Request) -> None:
        """A follower's fetch states that it keeps everything below its offset."""
        if not self._may_wait or type(request) is not FetchRequest or sender.node < 0:
            return
        machine = self._cluster.machines[sender.node]
        for part in request.partitions:
            shadow = self._shadow_of(sender.node, part.tp)
            first = None if shadow is None else self._first_not_durable(machine, shadow)
            if first is not None and part.fetch_offset > first:
                self._say(
                    machine,
                    part.tp,
                    f"fetches from {part.fetch_offset}, and {first} is not durable",
                )

    def answered(self, broker_id: int, request: Request, response: Response | None) -> None:
        """An acknowledgement states that the leader keeps the batch."""
        if (
            not self._may_wait
            or not isinstance(request, ProduceRequest)
            or not isinstance(response, ProduceResponse)
            or request.acks == 0
        ):
            return
        machine = self._cluster.machines[broker_id]
        for part in response.partitions:
            shadow = self._shadow_of(broker_id, part.tp)
            if shadow is None or part.error_code is not ErrorCode.NONE or part.base_offset < 0:
                continue
            first = self._first_not_durable(machine, shadow)
            if first is not None and part.base_offset >= first:
                self._say(
                    machine,
                    part.tp,
                    f"acknowledges {part.base_offset}, and {first} is not durable",
                )

    def _was_short(self, machine: Machine) -> bool:
        return self._may_wait and machine.disk.struck["open"] > 0

    def _first_not_durable(self, machine: Machine, shadow: OracleLog) -> int | None:
        if not self._is_promised or shadow.log.failed or machine.disk.stopped:
            return None
        if self._cluster.atlas.is_damaged(machine.broker_id):
            return None
        return shadow.first_not_durable()

    def _say(self, machine: Machine, tp: TopicPartition, what: str) -> None:
        self._violated("I-27", tp, f"b{machine.broker_id} {what}")
