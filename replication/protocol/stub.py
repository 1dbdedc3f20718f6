"""Write ``messages.pyi``: what type checkers see of the classes made on first use.

A build writes it into the wheel, and ``python -m replication.protocol.stub`` beside the module.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from replication.protocol import schema
from replication.protocol.schema import Field, Struct

PATH = Path(__file__).with_name("messages.pyi")

_HEAD = '''"""Generated from the schema table by ``replication.protocol.stub``."""

import uuid
from typing import NamedTuple, TypeAlias

from replication.protocol.buffers import Records
from replication.protocol.structures import Structures

def structures(name: str) -> Structures: ...
'''
_TYPES = {
    "bool": "bool",
    "str": "str",
    "f64": "float",
    "bytes": "bytes",
    "records": "Records",
    "uuid": "uuid.UUID",
}
_OF_TUPLE = ("count", "index")  # methods of tuple that a field of that name hides


def generate() -> str:
    """The text of the stub."""
    return _HEAD + "".join("\n" + "\n".join(_message(name)) + "\n" for name in schema.MESSAGE_NAMES)


def _message(name: str) -> Iterator[str]:
    body = schema.message(name).body
    inner = {struct.name: struct for struct in _inner(body)}
    for struct in inner.values():
        yield from _class(f"_{name}_{struct.name}", struct, name)
    yield from _class(f"_{name}", body, name)
    yield f"class {name}(_{name}):"
    for struct_name in inner:
        yield f"    {struct_name}: TypeAlias = _{name}_{struct_name}"
    if not inner:
        yield "    pass"


def _inner(struct: Struct) -> Iterator[Struct]:
    for field in struct.fields:
        if isinstance(field.type, Struct):
            yield from _inner(field.type)
            yield field.type


def _class(python_name: str, struct: Struct, message: str) -> Iterator[str]:
    yield f"class {python_name}(NamedTuple):"
    for field in struct.fields:
        line = f"    {field.name}: {_type(field, message)} = ..."
        yield line + ("  # type: ignore[assignment]" if field.name in _OF_TUPLE else "")
    if not struct.fields:
        yield "    pass"
    yield ""


def _type(field: Field, message: str) -> str:
    if isinstance(field.type, Struct):
        text = f"_{message}_{field.type.name}"
    else:
        text = _TYPES.get(field.type, "int")
    if field.is_array:
        text = f"tuple[{text}, ...]"
    null = field.default is None or field.nullable.first <= field.nullable.last
    return f"{text} | None" if null else text


if __name__ == "__main__":
    PATH.write_text(generate())
