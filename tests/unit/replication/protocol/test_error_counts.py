"""The errors of an answer, wherever it has them."""

from __future__ import annotations

from typing import Any

from replication.protocol import error_codes, schema
from replication.protocol import messages as wire
from replication.protocol.schema import Struct
from replication.protocol.structures import Structures
from tests.support.cases import for_each


def test_every_place_counts_and_0_does_not() -> None:
    kind = wire.ProduceResponse
    parts = tuple(kind.PartitionProduceResponse(at, code, -1) for at, code in enumerate((0, 6, 3)))
    topic = kind.TopicProduceResponse("orders", partition_responses=parts)
    other = topic._replace(partition_responses=parts[1:2])
    assert error_codes(kind((topic, other))) == [6, 3, 6]
    assert error_codes(kind(())) == []


def test_an_array_that_is_null() -> None:
    assert error_codes(wire.FetchResponse(error_code=9, responses=())) == [9]
    assert error_codes(wire.DeleteTopicsResponse(responses=())) == []
    assert error_codes(wire.ListPartitionReassignmentsResponse(error_code=41)) == [41]


def filled(struct: Struct, structures: Structures, codes: list[int]) -> Any:
    """A structure with two elements in each array, and another code in each place for one."""
    values = {}
    for field in struct.fields:
        if field.type == "i16" and field.name in ("error_code", "partition_error_code"):
            codes.append(len(codes) + 1)
            values[field.name] = codes[-1]
        elif isinstance(field.type, Struct):
            made = [filled(field.type, structures, codes) for _ in range(1 + field.is_array)]
            values[field.name] = tuple(made) if field.is_array else made[0]
    return structures.by_name[struct.name](**values)


@for_each("api", schema.APIS.values(), name=lambda api: api.name)
def test_every_response(api: schema.Api) -> None:
    name = f"{api.name}Response"
    codes: list[int] = []
    message = filled(schema.message(name).body, wire.structures(name), codes)
    assert sorted(error_codes(message)) == codes
