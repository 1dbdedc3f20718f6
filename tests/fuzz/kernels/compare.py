"""What a call came to, of a native function and of its plain twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from logstore.common.errors import CorruptBatchError, InvalidRecordError

REFUSALS = (
    ValueError,
    OverflowError,
    TypeError,
    BufferError,
    OSError,
    CorruptBatchError,
    InvalidRecordError,
)
"""What a kernel may raise for hostile bytes (``CorruptBatchError``), for arguments out of their
range (``ValueError``, ``InvalidRecordError``), for those of another kind, and for a medium that
refuses (``OSError``)."""


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """What it returned, or the class of its refusal and where; anything else comes out."""
    try:
        return "returned", call()
    except REFUSALS as error:
        return type(error).__name__, getattr(error, "position", None)


def same(native: Callable[[], Any], plain: Callable[[], Any]) -> tuple[str, Any]:
    """The outcome of both, which must be the same one."""
    found, wanted = outcome(native), outcome(plain)
    assert found == wanted, f"native: {found}\nplain:  {wanted}"
    return found


def attributes(thing: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}
