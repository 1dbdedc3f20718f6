"""The client of a script.

It sends each request once, to a given broker, and records the answers.
"""

from __future__ import annotations

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.reader import read_records
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Response,
)
from replication.simulator.oracle.history import ClientHistory, Write, WriteOutcome
from replication.simulator.world.network import Network, SimTransport
from replication.simulator.world.scheduler import START_WALL_MS, Process

TP = TopicPartition("t", 0)
TIMEOUT_MS = 60_000  # the timeout of a request
NODE = -10  # its node in the network


class ScriptClient:
    """
    Attributes:
        history: requests and answers.
        out_of_range: how often an answer said that a position does not exist.
    """

    def __init__(self, network: Network) -> None:
        self.history = ClientHistory()
        self.out_of_range = 0
        self._transport = SimTransport(network, Process("client", NODE))

    def produce(self, broker_id: int, acks: int) -> Write:
        """Send a batch of one record, whose value is unique in the run."""
        history = self.history
        number = len(history.writes)
        write = Write(number, TP, acks, (f"m{number}".encode(),))
        history.writes.append(write)
        batch = encode_batch([(None, write.values[0])], default_timestamp=START_WALL_MS + number)
        request = ProduceRequest(acks, TIMEOUT_MS, (ProducePartition(TP, bytes(batch)),))

        def on_reply(response: Response | None) -> None:
            outcome, offset = WriteOutcome.UNKNOWN, -1
            if isinstance(response, ProduceResponse):
                (part,) = response.partitions
                if part.error_code is ErrorCode.NONE:
                    outcome, offset = WriteOutcome.OK, part.base_offset
            history.settle(write, outcome, offset)

        self._transport.send(broker_id, request, on_reply)
        return write

    def consume(self, broker_id: int, offset: int) -> None:
        """Read on from a position as a consumer does, and remember the records (I-6)."""
        request = FetchRequest((FetchPartition(TP, offset),), max_wait_ms=0)
        self._transport.send(broker_id, request, lambda answer: self._take(offset, answer))

    def _take(self, offset: int, response: Response | None) -> None:
        if not isinstance(response, FetchResponse):
            return
        (part,) = response.partitions
        if part.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.out_of_range += 1
        if part.error_code is not ErrorCode.NONE or not part.records:
            return
        for record in read_records(
            part.batches, from_offset=offset, end_offset=part.high_watermark
        ):
            self.history.read(TP, record.offset, bytes(record.value or b""), "consumer")
