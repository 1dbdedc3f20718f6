"""Brokers that are served to Kafka clients over TCP, and to people over HTTP.

Begin with ``serving``, which has ``serve`` (brokers of one process), and ``process`` (one broker in
a process of its own). ``kafka_server`` has the sockets of one broker, ``faults`` what a test can
make go wrong, ``http`` the page and the metrics. Requests are answered in ``replication.apis``;
here they only arrive.
"""

__all__ = ["config", "faults", "http", "kafka_server", "process", "serving"]
