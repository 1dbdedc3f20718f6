"""All suites, in the order in which a whole run takes them."""

from __future__ import annotations

from tests.clients.frameworks.suite import FrameworksSuite
from tests.clients.kafka_go.suite import KafkaGoSuite
from tests.clients.kafka_python.suite import KafkaPythonSuite
from tests.clients.kafka_tools.suite import KafkaToolsSuite
from tests.clients.kgo.suite import KgoChaosSuite, KgoReplicatedSuite, KgoScramSuite, KgoSuite
from tests.clients.librdkafka.suite import LibrdkafkaNoAutoCreateSuite, LibrdkafkaSuite
from tests.clients.sarama.suite import SaramaSuite
from tests.clients.suite import ClientSuite

SUITES: tuple[type[ClientSuite], ...] = (
    KafkaPythonSuite,
    KafkaToolsSuite,
    FrameworksSuite,
    KgoSuite,
    KgoChaosSuite,
    KgoReplicatedSuite,
    KgoScramSuite,
    KafkaGoSuite,
    SaramaSuite,
    LibrdkafkaSuite,
    LibrdkafkaNoAutoCreateSuite,
)
