"""The controller: one broker at a time, which decides who leads and tells the others."""

from __future__ import annotations

from replication.controller.controller import Controller

__all__ = ["Controller"]
