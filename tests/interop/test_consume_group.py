"""``logstore consume --group`` on a real Kafka, beside members of another client."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import kafka_jars
import pytest
from broker import KafkaBroker

from tests.support import consuming
from tests.support.consuming import ConsumingProcess, new_topic
from tests.support.served import new_name
from tests.support.until import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bootstrap(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KafkaBroker(tmp_path_factory.mktemp("consume-group"), heap="256m") as running:
        yield running.bootstrap


def test_members_share_and_take_over(bootstrap: str, tmp_path: Path) -> None:
    consuming.members_share_and_take_over(bootstrap, tmp_path)


def test_a_clean_stop_is_exact(bootstrap: str, tmp_path: Path) -> None:
    consuming.a_clean_stop_is_exact(bootstrap, tmp_path, signal.SIGINT)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("ours_leads", [True, False])
def test_members_of_another_client(
    bootstrap: str, tmp_path: Path, ours_leads: bool, protocol: str
) -> None:
    consuming.members_of_another_client(bootstrap, tmp_path, ours_leads, protocol)


def test_the_console_consumer_goes_on_where_we_stopped(bootstrap: str, tmp_path: Path) -> None:
    """And we where it stopped."""
    topic, group = new_topic(bootstrap), new_name("group")
    consuming.write(bootstrap, tmp_path, topic, range(100))
    with ConsumingProcess(tmp_path, bootstrap, topic, "-G", group, "-c", "40") as ours:
        until(lambda: ours.process.poll() == 0)
        found = ours.lines()
    theirs = kafka_jars.run_java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--max-messages", "30", "--from-beginning"),  # where nothing is committed
    )
    found += theirs.stdout.split()
    with ConsumingProcess(tmp_path, bootstrap, topic, "-G", group, "-e") as ours:
        until(lambda: ours.process.poll() == 0)
        found += ours.lines()
    assert sorted(found, key=int) == [str(n) for n in range(100)]
