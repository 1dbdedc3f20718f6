"""Our messages, with drawn values, as Kafka's own classes read them and write them again: the bytes
that come back are ours. Where each field lies, test_protocol_schemas.py says."""

from __future__ import annotations

import random
from pathlib import Path

import kafka_jars
import pytest

from replication.protocol import schema
from replication.protocol.codecs import decoder, encoder
from tests.support.protocol_values import EVERY_VERSION, draw

pytestmark = [pytest.mark.slow, pytest.mark.essential]

ROUNDS = 20
WITH_RECORDS = ("ProduceRequest", "FetchResponse")
"""Kafka's class for records wants a logger, which the jars of 3.9 here do not have."""
OF_APIS = [each for each in EVERY_VERSION if each[0] not in schema.RECORD_NAMES]


@pytest.mark.parametrize("pom", [kafka_jars.POM_3_9, kafka_jars.POM], ids=["3.9", "4.3"])
def test_kafka_writes_what_it_read(kafka: str, pom: Path) -> None:
    rng = random.Random(1)
    drawn = []
    for name, version in OF_APIS:
        if name in WITH_RECORDS and pom == kafka_jars.POM_3_9:
            continue
        for _ in range(ROUNDS):
            ours = encoder(name, version)(draw(name, version, rng))
            drawn.append((name, version, b"".join(bytes(part) for part in ours)))
    lines = "".join(f"{name} {version} {data.hex()}\n" for name, version, data in drawn)
    told = kafka_jars.run_java(
        "logstore.interop.RewriteMessages",
        classes=kafka_jars.helper_classes(),
        stdin=lines,
        pom=pom,
    ).stdout.split("\n")[:-1]
    assert len(told) == len(drawn)
    found = set()
    for (name, version, data), answer in zip(drawn, told, strict=True):
        if answer != "none":
            found.add((name, version))
            assert answer == data.hex(), (name, version, decoder(name, version)(data))
    assert len(found) > 250
