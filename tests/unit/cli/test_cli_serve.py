"""``logstore serve`` serves, stops cleanly, and goes on with its files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoints.types import TopicPartition
from replication import Cluster
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.support.served import batch, codes_of, fetch, produce
from tests.support.until import patience, until
from tests.support.wire_client import WireClient

ROOT = Path(__file__).resolve().parents[3]
TP = TopicPartition("orders", 0)


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The process, and the addresses that it prints when it is ready."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from replication.cli.serve import serve; serve()",
            "--dir",
            str(directory),
            "--listen",
            "127.0.0.1:0",
            "--json",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["bootstrapServers"]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def connect(address: str) -> WireClient:
    host, _, port = address.rpartition(":")
    return WireClient(host, int(port))


@pytest.mark.slow
def test_a_backup_is_served_as_it_is(tmp_path: Path) -> None:
    """The report comes before the line that says where, and what is gone at the end."""
    with Cluster(1, tmp_path / "old") as cluster:
        cluster.create_topic(TP.topic, 1)
        cluster.produce(TP.topic, b"value")
    (tmp_path / "old" / "coordinator" / "coordinator.journal").unlink()
    adopt = ["--adopt", str(tmp_path / "old" / "broker-0")]
    command = [sys.executable, "-c", "from replication.cli.serve import serve; serve()", *adopt]
    options = ["--read-only", "--listen", "127.0.0.1:0"]
    for more in ([], ["--json"]):
        process = subprocess.Popen(
            [*command, *options, *more], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            if more:
                told = json.loads(lines[0])
                assert (told["readOnly"], told["adoption"]["led"]) == (True, 1)
                (address,) = told["bootstrapServers"]
                with connect(address) as client:
                    assert fetch(client, TP).records
            else:
                lines += [process.stdout.readline() for _ in range(2)]
                assert lines[0].startswith("adopted: cluster ")
                assert lines[0].endswith(
                    "broker 0: 1 topics, 1 of 1 partitions led, "
                    "0 groups with 0 offsets, 0 transactional ids\n"
                )
                assert lines[1].startswith("no metadata: ")
                assert lines[2].startswith("ready: 127.0.0.1:")
                assert lines[2].endswith(" (read-only: what groups commit is gone at the end)\n")
            process.send_signal(signal.SIGTERM)
            assert process.wait(patience()) == 0
        finally:
            process.kill()
            process.communicate()
    assert not (tmp_path / "old" / "coordinator" / "coordinator.journal").exists()


def made_by_asking(client: WireClient) -> wire.MetadataResponse:
    """The answer once the topic is there, which the first question makes."""
    kind = wire.MetadataRequest
    request = kind((kind.MetadataRequestTopic(name=TP.topic),), True)

    def answered() -> wire.MetadataResponse | None:
        response: wire.MetadataResponse = client.ask(ApiKey.METADATA, 12, request)
        (topic,) = response.topics
        return None if any(codes_of((topic, *topic.partitions))) else response

    return until(answered, "the topic is there")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_what_was_written_is_there_after_a_clean_stop(tmp_path: Path, number: int) -> None:
    records = batch(b"one", b"two")
    with serving(tmp_path) as (process, (address,)):
        with connect(address) as client:
            made_by_asking(client)
            assert produce(client, TP, records).base_offset == 0
            process.send_signal(number)
            output, errors = process.communicate(timeout=patience())
        assert (process.returncode, output, errors) == (0, "", "")
    assert (tmp_path / "broker-0" / ".kafka_cleanshutdown").exists()
    with serving(tmp_path) as (_, (address,)), connect(address) as client:
        part = fetch(client, TP)
        assert (part.error_code, part.high_watermark, len(part.records)) == (0, 2, len(records))


@pytest.mark.slow
def test_several_brokers_with_their_configuration(tmp_path: Path) -> None:
    arguments = ("--brokers", "2", "--config", "num.partitions=3")
    with serving(tmp_path, *arguments) as (_, addresses):
        assert len(addresses) == 2
        with connect(addresses[1]) as client:
            response = made_by_asking(client)
    assert [f"{each.host}:{each.port}" for each in response.brokers] == addresses
    assert len(response.topics[0].partitions) == 3
