"""How much memory a request may take once it is decoded: elements of arrays are counted, in any of
them and in all together."""

from __future__ import annotations

import tracemalloc
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from replication.protocol import SERVED_TO_BROKERS, ApiKey, decode_request, encode_request, schema
from replication.protocol import compiler as module
from replication.protocol import messages as wire
from replication.protocol.errors import MalformedMessageError
from replication.protocol.schema import Element, Field, Struct
from replication.protocol.structures import Structures

COUNT = 500
BYTES_MAX = 112 << 20  # of the objects of one request

# What costs most: numbers that are no shared objects, and texts of two bytes a character.
_VALUES: dict[str, Any] = {
    "bool": True,
    "i8": 100,
    "i16": 1000,
    "i32": 1 << 29,
    "i64": 1 << 60,
    "uuid": uuid.UUID(int=(1 << 127) + 1),
    "str": "\u0436",
    "bytes": b"xy",
    "records": b"xy",
}

Path = tuple[str, ...]


def arrays(struct: Struct, version: int, at: Path = ()) -> Iterator[Path]:
    """The names of the fields that lead to each array."""
    for field in struct.fields:
        if version in field.versions:
            if field.is_array:
                yield (*at, field.name)
            if isinstance(field.type, Struct):
                yield from arrays(field.type, version, (*at, field.name))


class Filler:
    """Messages of one version: ``counts`` elements in the arrays on ``path``, none in others."""

    def __init__(self, version: int, structures: Structures, path: Path, counts: list[int]) -> None:
        self._version, self._structures = version, structures
        self._path, self._counts = path, counts

    def struct(self, struct: Struct, depth: int) -> Any:
        values = {
            field.name: self._field(field, depth)
            for field in struct.fields
            if self._version in field.versions
        }
        return self._structures.by_name[struct.name](**values)

    def _field(self, field: Field, depth: int) -> Any:
        is_on_path = depth < len(self._path) and field.name == self._path[depth]
        if field.is_array:
            if not is_on_path:
                return ()
            return (self._element(field.type, depth + 1),) * self._counts[depth]
        if not is_on_path and isinstance(field.type, Struct):
            return self.struct(field.type, len(self._path))
        return self._element(field.type, depth + is_on_path)

    def _element(self, element: Element, depth: int) -> Any:
        return self.struct(element, depth) if isinstance(element, Struct) else _VALUES[element]


def body_of(key: ApiKey, version: int, path: Path, counts: list[int]) -> memoryview:
    name = f"{schema.APIS[key].name}Request"
    filler = Filler(version, wire.structures(name), path, counts)
    return memoryview(encode_request(filler.struct(schema.message(name).body, 0), version))


def cases() -> Iterator[tuple[ApiKey, int, Path]]:
    for key, versions in SERVED_TO_BROKERS.items():
        body = schema.message(f"{schema.APIS[key].name}Request").body
        for version in sorted({versions.first, versions.last}):
            for path in arrays(body, version):
                yield key, version, path


@pytest.mark.slow
def test_no_array_makes_more_of_a_request_than_is_bounded() -> None:
    """The same for each array of each request, extrapolated from fewer elements."""
    found = {}
    for key, version, path in cases():
        body = body_of(key, version, path, [1] * (len(path) - 1) + [COUNT])
        decode_request(key, version, body)  # compiled now
        tracemalloc.start()
        request = decode_request(key, version, body)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert request
        found[key.name, version, path] = peak / COUNT * module.MAX_ELEMENTS
    assert len(found) > 100
    assert {case: size for case, size in found.items() if size > BYTES_MAX} == {}


def test_elements_of_all_arrays_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each array alone, and in one inside another."""
    for key, version, path in cases():
        outer = [7] * (len(path) - 1) + [9]
        total, product = 0, 1
        for count in outer:
            product *= count
            total += product
        body = body_of(key, version, path, outer)
        name = f"{schema.APIS[key].name}Request"
        for bound, is_taken in ((total, True), (total - 1, False)):
            monkeypatch.setattr(module, "MAX_ELEMENTS", bound)
            decode = module.compile_decoder(schema.message(name), version, wire.structures(name))
            if is_taken:
                assert decode(body, 0)
            else:
                with pytest.raises(MalformedMessageError, match="more elements than may be"):
                    decode(body, 0)


def test_a_request_of_the_most_elements() -> None:
    """The real bound, once."""
    path = ("topics", "partition_indexes")
    most = module.MAX_ELEMENTS - 1
    assert decode_request(ApiKey.OFFSET_FETCH, 5, body_of(ApiKey.OFFSET_FETCH, 5, path, [1, most]))
    with pytest.raises(MalformedMessageError, match="more elements than may be"):
        decode_request(ApiKey.OFFSET_FETCH, 5, body_of(ApiKey.OFFSET_FETCH, 5, path, [1, most + 1]))
