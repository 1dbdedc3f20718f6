"""What brokers say to each other, with Kafka's own classes: they read from our bytes the values
that we wrote, and write the same bytes. So our tagged fields are skipped at each place."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import kafka_jars
import pytest

from replication.protocol import FOR_BROKERS, schema
from replication.protocol.codecs import decoder, encoder
from replication.protocol.compiler import joined
from tests.support.protocol_values import draw
from tests.support.until import patience

pytestmark = [pytest.mark.slow, pytest.mark.essential]

DRAWN = 60
OF_3_9 = ("LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown")
NAMES = [
    *(
        schema.APIS[key].name + kind
        for key in sorted(FOR_BROKERS)
        for kind in ("Request", "Response")
    ),
    "DefaultPrincipalData",
]


@pytest.mark.parametrize("pom", [kafka_jars.BROKER_3_9, kafka_jars.POM], ids=["3.9", "4.3"])
def test_kafkas_classes_read_and_write_the_same(kafka: str, pom: Path) -> None:
    names = [name for name in NAMES if pom is not kafka_jars.POM or not name.startswith(OF_3_9)]
    cases = [
        (name, version, draw(name, version, random.Random(f"{name} {version} {seed}")))
        for name in names
        for version in schema.message(name).versions.each()
        for seed in range(DRAWN)
    ]
    sent = [joined(encoder(name, version)(message)) for name, version, message in cases]
    found = recoded(
        [(name, version, data) for (name, version, _), data in zip(cases, sent, strict=True)], pom
    )
    for (name, version, message), data, theirs in zip(cases, sent, found, strict=True):
        body = schema.message(name).body
        assert theirs["left"] == 0, (name, message)
        assert _flat(theirs["message"]) == _value(body, version, message), (name, message)
        written = bytes.fromhex(theirs["bytes"])
        assert written == data, (name, message)
        assert decoder(name, version)(memoryview(written), 0) == message


def recoded(messages: list[tuple[str, int, bytes]], pom: Path) -> list[Any]:
    lines = "".join(
        f"{name}{'' if name.endswith('Data') else 'Data'} {version} {data.hex()}\n"
        for name, version, data in messages
    )
    command = kafka_jars.java_command(
        "logstore.interop.Recode",
        classes=kafka_jars.helper_classes(),
        jvm_options=kafka_jars.SHORT_JVM,
        pom=pom,
    )
    result = subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=patience(), check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


def _flat(found: Any) -> Any:
    """Kafka's JSON with names that do not depend on how words are joined."""
    if isinstance(found, dict):
        return {name.lower(): _flat(value) for name, value in found.items()}
    return [_flat(each) for each in found] if isinstance(found, list) else found


def _value(layout: schema.Struct, version: int, message: Any) -> dict[str, Any]:
    """What that JSON says of a message of ours: without our own fields, and without tagged ones at
    their default."""
    found = {}
    for field in layout.fields:
        value = getattr(message, field.name)
        if version not in field.versions or (field.tag or 0) >= schema.FIRST_OWN_TAG:
            continue
        if field.tag is not None and value == field.default:
            continue
        name = field.name.replace("_", "")
        if field.is_array:
            found[name] = [_one(field.type, version, each) for each in value]
        else:
            found[name] = None if value is None else _one(field.type, version, value)
    return found


def _one(element: schema.Element, version: int, value: Any) -> Any:
    if isinstance(element, schema.Struct):
        return _value(element, version, value)
    if element == "uuid":
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    if element == "bytes":
        return base64.b64encode(value).decode()
    return value
