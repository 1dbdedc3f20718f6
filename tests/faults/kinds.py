"""All kinds of faults, registered by importing this module."""

from __future__ import annotations

from tests.faults import (  # noqa: F401
    batches,
    checkpoint_files,
    coordinators,
    headers,
    histories,
    indexes,
    leftovers,
    replicas,
    small_files,
    snapshots,
)
from tests.faults.planter import ALONE, KINDS

COMPARED = [name for name in KINDS if name not in ALONE]
"""Kinds that one replica by itself does not show."""

__all__ = ["ALONE", "COMPARED", "KINDS"]
