"""The check of who may log in: the seam, and a set of users in memory.

A password is kept only as the keys that SCRAM derives from it (RFC 5802). They can check a
password, and nobody can compute it from them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from logstore.common.errors import ConfigError

MIN_ITERATIONS = 4096
_SALT_BYTES = 16


class ScramMechanism(Enum):
    """SCRAM by its hash function; the value is hashlib's name."""

    SHA_256 = "sha256"
    SHA_512 = "sha512"

    @property
    def mechanism(self) -> str:
        return f"SCRAM-{self.name.replace('_', '-')}"


class ScramCredential(NamedTuple):
    """The part of a password that a server keeps."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class ScramKeys(NamedTuple):
    """The keys that both sides compute of a password; with the client's key one can log in."""

    client_key: bytes
    stored_key: bytes
    server_key: bytes


class Credentials(Protocol):
    """A source of users. Called on handler threads, so it may take its time."""

    def scram(self, hash_function: ScramMechanism, user: str) -> ScramCredential | None:
        """The part that is kept of a user's password; None for an unknown user."""
        ...

    def check_password(self, user: str, password: str) -> bool:
        """Whether the password is the user's. An unknown user takes as long."""
        ...


def salted_password(kind: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(kind.value, password.encode(), salt, iterations)


def keys_of(kind: ScramMechanism, salted: bytes) -> ScramKeys:
    client_key = hmac.digest(salted, b"Client Key", kind.value)
    stored_key = hashlib.new(kind.value, client_key).digest()
    return ScramKeys(client_key, stored_key, hmac.digest(salted, b"Server Key", kind.value))


def derive(
    kind: ScramMechanism, password: str, salt: bytes, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """The keys of a password.

    Raises:
        ConfigError: fewer than ``MIN_ITERATIONS``.
    """
    if iterations < MIN_ITERATIONS:
        raise ConfigError(f"{iterations} iterations; SCRAM takes {MIN_ITERATIONS} at least")
    keys = keys_of(kind, salted_password(kind, password, salt, iterations))
    return ScramCredential(salt, keys.stored_key, keys.server_key, iterations)


class UserCredentials:
    """Users and their passwords, given once.

    Args:
        passwords: by the user's name.
    """

    def __init__(self, passwords: Mapping[str, str], iterations: int = MIN_ITERATIONS) -> None:
        self._users = {
            user: {
                kind: derive(kind, password, secrets.token_bytes(_SALT_BYTES), iterations)
                for kind in ScramMechanism
            }
            for user, password in passwords.items()
        }
        self._absent = derive(ScramMechanism.SHA_256, secrets.token_hex(), b"nobody", iterations)

    def scram(self, hash_function: ScramMechanism, user: str) -> ScramCredential | None:
        kinds = self._users.get(user)
        return kinds[hash_function] if kinds is not None else None

    def check_password(self, user: str, password: str) -> bool:
        kept = self.scram(ScramMechanism.SHA_256, user)
        against = kept or self._absent
        given = derive(ScramMechanism.SHA_256, password, against.salt, against.iterations)
        is_right = hmac.compare_digest(given.stored_key, against.stored_key)
        return is_right and kept is not None
