"""The controller: one broker at a time, which decides on leaders and informs the others.

Begin with ``controller``, which stands for election, and ``term``, where each event of a term is
a method. ``partitions`` and ``topics`` decide, ``store`` and ``writer`` write, ``channels``
informs. Only ``store`` asks the coordinator, and nothing is announced that is not written.
"""

from __future__ import annotations

from replication.controller.controller import Controller

__all__ = ["Controller", "context"]
