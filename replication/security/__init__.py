"""TLS and logins: what both sides of a connection share, and the client's side whole.

``config`` reads Kafka's keys, also those of a ``client.properties``; ``tls`` makes contexts of
them. ``sasl`` has the mechanisms of both sides without I/O, and what a client says in which order;
``credentials`` what a server keeps of its users; ``stored`` finds that in the coordinator's tree.
"""

__all__ = ["config", "credentials", "sasl", "stored", "tls"]
