"""A DataFrame becomes a log directory: ``options``, ``rows`` (on executors), ``directory`` and
``target`` (on the driver); ``writer`` ties them together.
"""

__all__ = ["writer"]
