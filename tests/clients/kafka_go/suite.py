"""kafka-go's own tests of its client, which look for a broker at ``localhost:9092``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.clients import servers
from tests.clients.go_suite import GoSuite
from tests.clients.suite import CaseResult
from tests.clients.toolchain import SuiteUnavailable

HOST, PORT = "localhost", 9092
SETTINGS: Mapping[str, str | int] = {
    "num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    # In the broker of its authors, too.
    "message.max.bytes": 200_000_000,
}


class KafkaGoSuite(GoSuite):
    """Its readers and writers, its members of groups, and its client of single requests."""

    name = "kafka-go"
    module = "github.com/segmentio/kafka-go"
    version = "0.4.51"
    pinned = f"kafka-go {version}"
    broker = re.compile(
        r"localhost:9092|newLocalClient|createTopic|clientCreateTopic|newTestWriter"
    )
    quick = ()
    most_left_out = 13
    has_brokers = True

    def environment_for(self, bootstrap: str) -> Mapping[str, str]:
        # Its authors skip their tests of connections as ``net.Conn``, which fail by luck.
        return {"KAFKA_VERSION": "4.3.1", "KAFKA_SKIP_NETTEST": "1"}

    def run(self, cases: Sequence[str], bootstrap: str, directory: Path) -> Iterator[CaseResult]:
        if bootstrap not in ("", f"{HOST}:{PORT}"):
            raise SuiteUnavailable(f"its tests look for a broker at {HOST}:{PORT} alone")
        if bootstrap:
            yield from super().run(cases, bootstrap, directory)
            return
        with servers.counted_from_one(
            directory / "brokers", SETTINGS, 1, listen=HOST, first_port=PORT, advertise=HOST
        ):
            yield from super().run(cases, bootstrap, directory)
