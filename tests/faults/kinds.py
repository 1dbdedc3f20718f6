"""All kinds of faults, registered by importing this module."""

from __future__ import annotations

from tests.faults import batches, checkpoint_files, histories, indexes, replicas  # noqa: F401
from tests.faults.planter import ALONE, KINDS

COMPARED = [name for name in KINDS if name not in ALONE]
"""Kinds that one replica by itself does not show."""

__all__ = ["ALONE", "COMPARED", "KINDS"]
