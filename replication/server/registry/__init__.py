"""A schema registry with the REST API and the topic of Confluent's, beside brokers of this process.

Begin with ``registry``: what is answered. ``state`` is what the records of the topic make of it,
``topic`` reads and writes them, ``schemas`` knows what a schema is.
"""

from __future__ import annotations

__all__ = ["registry"]
