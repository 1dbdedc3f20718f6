"""A mirror of a running Kafka cluster: a log directory that follows it, batch for batch."""

__all__ = ["checking"]
