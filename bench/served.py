"""A broker process that notes how long it takes for each Produce.

    python bench/served.py DIRECTORY PORT TIMES

At its end the file TIMES holds nanoseconds from the last byte received to the answer handed back to
the network, as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from replication.apis import KafkaApis
from replication.apis.produce_fast_path import ProduceFastPath
from replication.network import Answer, ConnectionInfo, Listener, ReceivedRequest, Respond
from replication.network.processor import Channel, Processor
from replication.protocol import ApiKey
from replication.server.serving import serve


def note_times(times: list[int]) -> None:
    handle, answer, take = KafkaApis.handle, ProduceFastPath.answer, Processor._took_fast_path
    received_ns = 0  # of the one client

    def measured(self: KafkaApis, received: ReceivedRequest, respond: Respond) -> None:
        def answered(answer: Answer) -> None:
            if received.api_key == ApiKey.PRODUCE:
                times.append(time.monotonic_ns() - received.received_ns)
            respond(answer)

        handle(self, received, answered)

    def taken(
        self: Processor, channel: Channel, frame: memoryview, now_ns: int, *, is_kept: bool = False
    ) -> bool:
        nonlocal received_ns
        received_ns = now_ns
        return take(self, channel, frame, now_ns, is_kept=is_kept)

    def fast(
        self: ProduceFastPath,
        frame: memoryview,
        version: int,
        correlation_id: int,
        connection: ConnectionInfo,
    ) -> bytes | Callable[[Respond], None] | None:
        found = answer(self, frame, version, correlation_id, connection)
        if found is not None:
            times.append(time.monotonic_ns() - received_ns)
        return found

    KafkaApis.handle = measured  # type: ignore[method-assign]
    Processor._took_fast_path = taken  # type: ignore[method-assign]
    ProduceFastPath.answer = fast  # type: ignore[method-assign]


def main() -> None:
    directory, port, path = sys.argv[1:]
    times: list[int] = []
    note_times(times)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # in all threads
    listener = Listener("PLAINTEXT", "127.0.0.1", int(port))
    with serve(directory, listeners=(listener,)):
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
    Path(path).write_text(json.dumps(times))


if __name__ == "__main__":
    main()
