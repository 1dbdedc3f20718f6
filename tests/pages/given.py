"""What a page takes for granted: log directories with something in them."""

from __future__ import annotations

from typing import Any

from logstore import LogManager


def broker(path: str, *topics: str, partitions: int = 1, records: int = 100) -> None:
    """Make a log directory, unless the last run has."""
    with LogManager([path], background=False) as manager:
        for topic in topics:
            for partition in range(partitions):
                log = manager.get_or_create(topic, partition)
                if not log.log_end_offset:
                    log.append([(f"N{n % 7}".encode(), b"two of these") for n in range(records)])


def registry(path: str) -> str:
    """Make a directory of brokers with what Confluent's serializers write, and serve its registry
    until the process ends; returns the address.
    """
    import atexit
    import json
    import os

    from confluent_kafka import Producer
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    from replication import serve
    from replication.server.serving import HttpListener

    again = os.path.exists(path)
    kafka = serve(path, registry=HttpListener())
    atexit.register(kafka.close)
    if again:
        return kafka.registry_url
    client = SchemaRegistryClient({"url": kafka.registry_url})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def produce(topic: str, serializer: Any, value: Any) -> None:
        data = serializer(value, SerializationContext(topic, MessageField.VALUE))
        producer.produce(topic, data)

    for topic in ("orders", "clicks", "parcels"):
        kafka.create_topic(topic, 1, 1)
    fields = [{"name": "id", "type": "long"}, {"name": "text", "type": "string", "default": "-"}]
    for count in (1, 2, 1):
        order = {"type": "record", "name": "Order", "fields": fields[:count]}
        value = {"id": count, "text": "two"}
        produce("orders", AvroSerializer(client, json.dumps(order)), value)
    producer.produce("orders", None, key=b"gone")
    click = json.dumps({"title": "Click", "type": "object"})
    produce("clicks", JSONSerializer(click, client), {"page": "/", "n": 3})
    for message in messages():
        settings = {"use.deprecated.format": False}
        produce("parcels", ProtobufSerializer(type(message), client, settings), message)
    producer.flush()
    return kafka.registry_url


def messages() -> list[Any]:
    """A message of each type of one file, also of a type within another."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="parcel.proto", syntax="proto3")
    types = [file.message_type.add(name="Sender"), file.message_type.add(name="Parcel")]
    types.append(types[1].nested_type.add(name="Line"))
    for each in types:
        each.field.add(name="id", number=1, type=3, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(name) for name in ("Sender", "Parcel", "Parcel.Line")]
    return [message_factory.GetMessageClass(each)(id=at + 1) for at, each in enumerate(found)]


def fails(frame: Any, text: str) -> None:
    """Compute the rows of a frame, which raises an error that says ``text``."""
    try:
        frame.collect()
    except Exception as error:
        if text in str(error):
            return
        raise
    raise AssertionError(f"nothing said {text!r}")
