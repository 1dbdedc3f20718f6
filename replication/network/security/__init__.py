"""Who is on the other side, and who may listen in: TLS and logins.

Begin with ``authentication``, the handler in front of all others. ``sasl`` has the mechanisms,
``credentials`` the users, ``tls`` the encrypted socket.
"""

__all__ = ["authentication", "credentials", "sasl", "tls"]
