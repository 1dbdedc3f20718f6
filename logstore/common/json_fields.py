"""JSON keys are camelCase everywhere, as in Kafka's tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def camel_case(name: str) -> str:
    """``log_end_offset`` → ``logEndOffset``."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def snake_case(key: str) -> str:
    """The inverse of ``camel_case``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


def json_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass or named tuple as JSON values with JSON keys."""
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
    else:
        names = list(value._fields)
    return {camel_case(name): _json(getattr(value, name)) for name in names}


def _json(value: Any) -> Any:
    if is_dataclass(value) or hasattr(value, "_fields"):
        return json_fields(value)
    if isinstance(value, Mapping):  # its keys are values, such as names of topics
        return {key: _json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    return str(value) if isinstance(value, Enum) else value


__all__ = ["camel_case", "json_fields", "snake_case"]
