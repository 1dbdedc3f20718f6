"""The log manager: which logs there are, and who cares for them."""

from logstore.manager.manager import LoadProgress, LogManager

__all__ = ["LoadProgress", "LogManager"]
