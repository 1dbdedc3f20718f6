"""kafka-go's own tests of its client, which look for a broker at ``localhost:9092``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from tests.clients.go_suite import GoSuite


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
    as_if = "localhost:9092"
    settings: ClassVar[Mapping[str, str | int]] = {
        "num.partitions": 1,
        # In the broker of its authors, too.
        "message.max.bytes": 200_000_000,
    }

    def environment_for(self, bootstrap: str) -> Mapping[str, str]:
        # Its authors skip their tests of connections as ``net.Conn``, which fail by luck.
        return {"KAFKA_VERSION": "4.3.1", "KAFKA_SKIP_NETTEST": "1"}
