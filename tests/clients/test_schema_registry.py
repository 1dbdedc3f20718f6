"""Confluent's own client and serializers, unchanged, against our schema registry."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from logstore.pytest_plugin import logstore_registry, make_logstore_kafka
from replication import ServedCluster, serve
from replication.server.serving import HttpListener
from tests.support.until import patience

WHY = (
    "confluent-kafka[avro,json,protobuf,schemaregistry] and the extra `registry` are not installed"
)
confluent_kafka = pytest.importorskip("confluent_kafka", reason=WHY)
for name in ("httpx2", "authlib", "fastavro", "jsonschema", "google.protobuf", "avro"):
    pytest.importorskip(name, reason=f"{WHY}: {name}")

from confluent_kafka.schema_registry import (  # noqa: E402
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer  # noqa: E402
from confluent_kafka.schema_registry.json_schema import (  # noqa: E402
    JSONDeserializer,
    JSONSerializer,
)
from confluent_kafka.schema_registry.protobuf import (  # noqa: E402
    ProtobufDeserializer,
    ProtobufSerializer,
)
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402

__all__ = ["logstore_registry", "make_logstore_kafka"]

ROOT = Path(__file__).resolve().parents[2]
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}],
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with serve(registry=HttpListener()) as found:
        yield found


def client_of(kafka: ServedCluster) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": kafka.registry_url, "max.retries": 0})


@pytest.fixture
def registry(kafka: ServedCluster) -> SchemaRegistryClient:
    """New for each test, as it keeps what it has asked for."""
    return client_of(kafka)


def test_the_fixture_is_a_kafka_with_a_registry(logstore_registry: ServedCluster) -> None:
    """A record goes through both."""
    client, context = (
        client_of(logstore_registry),
        SerializationContext("orders", MessageField.VALUE),
    )
    value = AvroSerializer(client, json.dumps(ORDER))({"id": 1, "text": "two"}, context)
    servers = {"bootstrap.servers": logstore_registry.bootstrap_servers}
    producer = confluent_kafka.Producer(servers)
    producer.produce("orders", value)
    assert producer.flush(patience()) == 0
    consumer = confluent_kafka.Consumer({**servers, "group.id": "g", "fetch.wait.max.ms": 20})
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
        message = consumer.poll(patience())
    assert AvroDeserializer(client_of(logstore_registry))(message.value(), context) == {
        "id": 1,
        "text": "two",
    }


def test_avro_with_references(registry: SchemaRegistryClient, kafka: ServedCluster) -> None:
    registry.register_schema("order", Schema(json.dumps(ORDER), "AVRO"))
    basket = {
        "type": "record",
        "name": "Basket",
        "fields": [{"name": "orders", "type": {"type": "array", "items": "shop.Order"}}],
    }
    schema = Schema(json.dumps(basket), "AVRO", [SchemaReference("shop.Order", "order", 1)])
    context = SerializationContext("baskets", MessageField.VALUE)
    value = {"orders": [{"id": 1, "text": "a"}]}
    data = AvroSerializer(registry, schema)(value, context)
    assert AvroDeserializer(client_of(kafka))(data, context) == value
    latest = registry.get_latest_version("baskets-value")
    assert latest.schema.references == schema.references


def test_json(registry: SchemaRegistryClient, kafka: ServedCluster) -> None:
    schema = '{"title": "A", "type": "object", "properties": {"a": {"type": "integer"}}}'
    context = SerializationContext("json", MessageField.VALUE)
    data = JSONSerializer(schema, registry)({"a": 1}, context)
    client = client_of(kafka)
    assert JSONDeserializer(None, schema_registry_client=client)(data, context) == {"a": 1}


def test_protobuf(registry: SchemaRegistryClient, kafka: ServedCluster) -> None:
    """A message with another file and a well-known type in it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    inner = descriptor_pb2.FileDescriptorProto(name="inner.proto", package="p", syntax="proto3")
    inner.message_type.add(name="Inner").field.add(name="a", number=1, type=3, label=1)
    outer = descriptor_pb2.FileDescriptorProto(name="outer.proto", package="p", syntax="proto3")
    outer.dependency.extend(["inner.proto", "google/protobuf/timestamp.proto"])
    message = outer.message_type.add(name="Outer")
    message.field.add(name="inner", number=1, type=11, label=1, type_name=".p.Inner")
    message.field.add(name="at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp")
    for file in (inner, outer):
        pool.Add(file)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Outer"))
    value = kind(inner={"a": 7}, at={"seconds": 8})
    context = SerializationContext("protobuf", MessageField.VALUE)
    data = ProtobufSerializer(kind, registry)(value, context)
    found = ProtobufDeserializer(kind, {}, client_of(kafka))(data, context)
    assert found == value
    assert {"inner.proto", "protobuf-value"} <= set(registry.get_subjects())


def test_the_whole_client(registry: SchemaRegistryClient) -> None:
    one = Schema(json.dumps(ORDER), "AVRO")
    wrong = Schema(json.dumps({**ORDER, "fields": [{"name": "id", "type": "string"}]}), "AVRO")
    schema_id = registry.register_schema("a/b c", one)
    assert registry.get_schema(schema_id).schema_type == "AVRO"
    assert registry.lookup_schema("a/b c", one).version == 1
    assert registry.get_version("a/b c", 1).schema_id == schema_id
    assert registry.get_versions("a/b c") == [1]
    assert "a/b c" in registry.get_subjects()
    assert set(registry.get_schema_types()) == {"AVRO", "JSON", "PROTOBUF"}
    assert "a/b c" in registry.get_subjects_by_schema_id(schema_id)
    assert any(v.subject == "a/b c" for v in registry.get_schema_versions(schema_id))
    assert registry.test_compatibility("a/b c", one)
    assert not registry.test_compatibility("a/b c", wrong)
    with pytest.raises(SchemaRegistryError) as refused:
        registry.register_schema("a/b c", wrong)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 40901)
    registry.set_compatibility("a/b c", "NONE")
    assert registry.get_compatibility("a/b c") == "NONE"
    assert registry.get_compatibility() == "BACKWARD"
    registry.register_schema("a/b c", wrong)
    assert registry.delete_version("a/b c", 2) == 2
    assert registry.delete_version("a/b c", 2, permanent=True) == 2
    assert registry.delete_subject("a/b c") == [1]
    assert registry.delete_subject("a/b c", permanent=True) == [1]
    with pytest.raises(SchemaRegistryError) as missing:
        registry.get_latest_version("a/b c")
    assert missing.value.error_code == 40401


@pytest.mark.slow
def test_kill_9(tmp_path: Path) -> None:
    """Whatever was answered is there in the next life, with the same ids; what comes then has
    others."""
    ids: dict[str, int] = {}
    for life in range(4):
        with _Process(tmp_path) as url:
            client = SchemaRegistryClient({"url": url, "max.retries": 0})
            for subject, schema_id in ids.items():
                assert client.get_latest_version(subject).schema_id == schema_id
            for n in range(20):
                schema = Schema(json.dumps({**ORDER, "name": f"L{life}N{n}"}), "AVRO")
                ids[f"{life}-{n}"] = client.register_schema(f"{life}-{n}", schema)
    assert len(set(ids.values())) == len(ids)


class _Process:
    """``logstore serve --registry``; killed at the end."""

    def __init__(self, path: Path) -> None:
        command = ["-m", "logstore", "serve", "--dir", str(path), "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen(
            [sys.executable, *command, "--registry", "127.0.0.1:0", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def __enter__(self) -> str:
        assert self._process.stdout is not None
        url: str = json.loads(self._process.stdout.readline())["registry"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        return url

    def __exit__(self, *exc: object) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(patience())
        assert self._process.stdout is not None
        self._process.stdout.close()
