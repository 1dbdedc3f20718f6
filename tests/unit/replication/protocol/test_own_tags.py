"""Tagged fields of our own (X-73): a codec that has never heard of them skips each of them."""

from __future__ import annotations

import random
from typing import Any

from replication.apis.controller_requests import OF_CONTROLLER
from replication.protocol import schema
from replication.protocol.codecs import decoder, encoder
from replication.protocol.compiler import compile_decoder, compile_encoder, joined
from replication.protocol.schema import FIRST_OWN_TAG, Message, Struct
from replication.protocol.structures import make_structures
from tests.support.cases import for_each
from tests.support.protocol_values import draw


def _kafkas(layout: Struct) -> Struct:
    """A structure as Kafka has it."""
    return Struct(
        layout.name,
        tuple(
            field._replace(type=_kafkas(field.type)) if isinstance(field.type, Struct) else field
            for field in layout.fields
            if field.tag is None or field.tag < FIRST_OWN_TAG
        ),
    )


def kafkas(name: str) -> Message:
    message = schema.message(name)
    return message._replace(body=_kafkas(message.body))


WITH_TAGS = [name for name in schema.MESSAGE_NAMES if kafkas(name) != schema.message(name)]


def _without(layout: Struct, value: Any, theirs: Struct) -> Any:
    """A value with our own fields at their defaults."""
    known = {field.name for field in theirs.fields}
    inner = {field.name: field for field in theirs.fields}
    changed = {}
    for field in layout.fields:
        found = getattr(value, field.name)
        if field.name not in known:
            changed[field.name] = type(value)._field_defaults[field.name]
        elif isinstance(field.type, Struct):
            each = inner[field.name].type
            assert isinstance(each, Struct)
            if found is not None:
                changed[field.name] = tuple(_without(field.type, one, each) for one in found)
    return value._replace(**changed)


def test_they_are_where_they_are_thought_to_be() -> None:
    forwarded = {f"{schema.APIS[key].name}Request" for key in OF_CONTROLLER}
    assert {*WITH_TAGS} == forwarded | {
        "LeaderAndIsrRequest",
        "LeaderAndIsrResponse",
        "StopReplicaRequest",
        "UpdateMetadataRequest",
        "AlterPartitionResponse",
    }


@for_each("name", WITH_TAGS)
def test_a_real_broker_reads_the_rest(name: str) -> None:
    ours, theirs = schema.message(name), kafkas(name)
    classes = make_structures(theirs, __name__)
    for version in filter(ours.flexible.__contains__, ours.versions.each()):
        decode = compile_decoder(theirs, version, classes)
        encode = compile_encoder(theirs, version, classes)
        skipped = 0
        for seed in range(20):
            message = draw(name, version, random.Random(seed))
            sent = joined(encoder(name, version)(message))
            known = joined(encode(decode(memoryview(sent), 0)))
            skipped += len(known) < len(sent)
            got = decoder(name, version)(memoryview(known), 0)
            assert got == _without(ours.body, message, theirs.body)
        assert skipped > 2
