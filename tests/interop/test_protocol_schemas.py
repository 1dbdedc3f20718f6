"""The schema table, field by field and version by version, against the files in Kafka's jars."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

import kafka_jars
import kafka_schemas
import pytest
from kafka_schemas import Field, Schemas

from replication.protocol import ApiKey, schema

pytestmark = [pytest.mark.slow, pytest.mark.essential]

OF_3_9 = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
)
"""Requests of a controller that Kafka 4 no longer has; only their newest versions are spoken."""

OF_APIS = [name for name in schema.MESSAGE_NAMES if name not in schema.RECORD_NAMES]
TYPES = {
    "bool": "bool",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float64": "f64",
    "string": "str",
    "uuid": "uuid",
    "bytes": "bytes",
    "records": "records",
}


def _is_of_3_9(name: str) -> bool:
    return name.removesuffix("Request").removesuffix("Response") in {
        schema.APIS[key].name for key in OF_3_9
    }


def _source(name: str) -> Schemas:
    return kafka_schemas.schemas(kafka_jars.POM_3_9 if _is_of_3_9(name) else kafka_jars.POM)


def _ours(layout: schema.Struct, version: int) -> tuple[Field, ...]:
    present = [field for field in layout.fields if version in field.versions]
    plain = [_field(field, version) for field in present if field.tag is None]
    tagged = [
        _field(field, version)
        for field in present
        if field.tag is not None and field.tag < schema.FIRST_OWN_TAG
    ]
    return (*plain, *sorted(tagged, key=lambda field: field.tag or 0))


_NAMES = {ours: theirs for theirs, ours in TYPES.items()}


def _field(field: schema.Field, version: int) -> Field:
    inner = field.type if isinstance(field.type, schema.Struct) else None
    kind = "struct" if inner else _NAMES[str(field.type)]
    default = field.default
    if not field.is_array and default is not None:
        default = {"struct": "struct", "uuid": "zero"}.get(kind, default)
    return Field(
        field.name,
        ("[]" if field.is_array else "") + kind,
        version in field.nullable,
        field.tag,
        default,
        _ours(inner, version) if inner else (),
    )


def test_every_message_is_that_of_kafka(kafka: str) -> None:
    """All that differs is listed, a line each."""
    assert len(schema.MESSAGE_NAMES) > 100
    found = [f"{name}: {line}" for name in schema.MESSAGE_NAMES for line in _differences(name)]
    assert not found, "\n".join(found)


def _differences(name: str) -> Iterator[str]:
    theirs, ours = _source(name), schema.message(name)
    first, last = theirs.valid_versions(name)
    if _is_of_3_9(name):
        first = last
    if ours.versions != (first, last):
        yield f"versions {ours.versions}, Kafka {first} to {last}"
        return
    for version in ours.versions.each():
        if (version in ours.flexible) != theirs.is_flexible(name, version):
            yield f"version {version} is flexible on one side only"
        fields, expected = _ours(ours.body, version), theirs.fields(name, version)
        for one, other in zip_longest(fields, expected):
            if one != other:
                yield f"version {version}: {one}, Kafka {other}"
    if not _is_of_3_9(name):  # of one version nothing can be missing
        needed, not_lost = set(_needed(ours.body, "")), theirs.may_not_be_lost(name)
        if needed != not_lost:
            yield f"may not be lost: {needed - not_lost}, Kafka {not_lost - needed}"
    if name in OF_APIS:
        found, is_request = theirs.by_name[name], name.endswith("Request")
        api = name.removesuffix("Request").removesuffix("Response")
        if schema.APIS[ApiKey(found["apiKey"])].name != api:
            yield f"is not API {found['apiKey']}"
        if found["type"] != ("request" if is_request else "response"):
            yield f"is a {found['type']}"
        for inner in _structures(ours.body):
            if inner != name and not re.search(rf"'(\[\])?{inner}'", str(found)):
                yield f"Kafka has no class {inner}"


def _structures(layout: schema.Struct) -> Iterator[str]:
    """The names of the structures in Kafka's fields."""
    for field in layout.fields:
        if isinstance(field.type, schema.Struct) and (field.tag or 0) < schema.FIRST_OWN_TAG:
            yield field.type.name
            yield from _structures(field.type)


def _needed(layout: schema.Struct, path: str) -> Iterator[str]:
    for field in layout.fields:
        if field.is_needed:
            yield path + field.name
        if isinstance(field.type, schema.Struct):
            yield from _needed(field.type, path + field.name + ".")


def test_apis_that_the_table_lacks_are_known(kafka: str) -> None:
    """A new release of Kafka shows here."""
    theirs = {
        each["name"].removesuffix("Request")
        for each in kafka_schemas.schemas(kafka_jars.POM).by_name.values()
        if each["type"] == "request" and "broker" in each.get("listeners", ())
    }
    assert theirs - {api.name for api in schema.APIS.values()} == {
        # quotas, credentials and delegation tokens
        *("AlterClientQuotas", "AlterUserScramCredentials"),
        *("CreateDelegationToken", "RenewDelegationToken"),
        *("ExpireDelegationToken", "DescribeDelegationToken"),
        # the quorum of controllers
        "DescribeQuorum",
        *("UnregisterBroker", "AddRaftVoter", "RemoveRaftVoter"),
        # telemetry of clients
        *("GetTelemetrySubscriptions", "PushTelemetry"),
        # groups that share partitions, and of Kafka Streams
        *("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge"),
        *("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState"),
        *("DeleteShareGroupState", "ReadShareGroupStateSummary"),
        *("DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"),
        *("StreamsGroupHeartbeat", "StreamsGroupDescribe"),
    }
