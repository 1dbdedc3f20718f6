"""One class for each message over all its versions, made on first use.

``from replication.protocol import messages as wire``, then ``wire.FetchRequest(...)``. Classes are
NamedTuples with a default for every field; structures are attributes, as
``wire.FetchResponse.PartitionData``. Their fields and types are in ``messages.pyi``, which a
build and ``make types`` write from the schema table.
"""

from __future__ import annotations

import functools
from typing import Any

from replication.protocol import schema
from replication.protocol.structures import Structures, make_structures


@functools.cache
def structures(name: str) -> Structures:
    """The classes of the message ``name``; KeyError if there is none."""
    return make_structures(schema.message(name), __name__)


def __getattr__(name: str) -> Any:
    if name not in schema.MESSAGE_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = structures(name).message
    return made


def __dir__() -> list[str]:
    return sorted({*globals(), *schema.MESSAGE_NAMES})
