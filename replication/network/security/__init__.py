"""Who is on the other side, and who may listen in: TLS and logins of a server.

Begin with ``authentication``, the handler in front of all others; ``tls`` is the encrypted socket.
What a client shares of it is in ``replication.security``.
"""

__all__ = ["authentication", "tls"]
