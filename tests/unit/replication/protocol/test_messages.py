"""The classes of messages, and what the stub says about them."""

from __future__ import annotations

import ast
import pickle
import uuid

import pytest

from replication.protocol import ApiKey, encode_request, schema, stub
from replication.protocol import messages as wire
from replication.protocol.codecs import decoder, encoder
from tests.support.cases import for_each


def test_the_stub_has_each_message_with_its_fields():
    tree = ast.parse(stub.generate())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    assert set(schema.MESSAGE_NAMES) <= set(classes)
    for name in schema.MESSAGE_NAMES:
        fields = [
            line.target.id for line in classes[f"_{name}"].body if isinstance(line, ast.AnnAssign)
        ]
        assert tuple(fields) == getattr(wire, name)._fields


def test_every_api_has_a_name_of_kafka_in_capitals():
    assert [key.name.replace("_", "").lower() for key in schema.APIS] == [
        api.name.lower() for api in schema.APIS.values()
    ]
    assert set(schema.APIS) == set(ApiKey)


def test_fields_have_the_defaults_of_the_schema():
    assert wire.JoinGroupRequest() == ("", 0, -1, "", None, "", (), None)
    assert wire.MetadataRequest().allow_auto_topic_creation is True
    assert wire.CreateTopicsRequest().timeout_ms == 60_000
    assert wire.FetchResponse.PartitionData().current_leader.leader_id == -1
    assert wire.FetchRequest.FetchTopic().topic_id == uuid.UUID(int=0)


def test_an_unknown_message_is_no_attribute():
    with pytest.raises(AttributeError, match="NoSuchRequest"):
        _ = wire.NoSuchRequest


def test_messages_survive_pickling():
    message = wire.FetchResponse(responses=(wire.FetchResponse.FetchableTopicResponse("t"),))
    copy = pickle.loads(pickle.dumps(message))
    assert copy == message
    assert type(copy.responses[0]) is wire.FetchResponse.FetchableTopicResponse


@for_each("name", schema.MESSAGE_NAMES)
def test_defaults_come_back(name: str):
    message = getattr(wire, name)()
    for version in schema.message(name).versions.each():
        body = b"".join(encoder(name, version)(message))
        assert decoder(name, version)(memoryview(body), 0) == message


def test_one_request_byte_by_byte():
    request = wire.FindCoordinatorRequest(key_type=1, coordinator_keys=("a", "bc"))
    assert encode_request(request, 4) == b"\x01\x03\x02a\x03bc\x00"
