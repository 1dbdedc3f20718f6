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
from pathlib import Path

from replication.apis import KafkaApis
from replication.network import Answer, Listener, ReceivedRequest, Respond
from replication.protocol import ApiKey
from replication.server.serving import serve


def note_times(times: list[int]) -> None:
    handle = KafkaApis.handle

    def measured(self: KafkaApis, received: ReceivedRequest, respond: Respond) -> None:
        def answered(answer: Answer) -> None:
            if received.api_key == ApiKey.PRODUCE:
                times.append(time.monotonic_ns() - received.received_ns)
            respond(answer)

        handle(self, received, answered)

    KafkaApis.handle = measured  # type: ignore[method-assign]


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
