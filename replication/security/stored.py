"""Users whose keys are in the coordinator's tree, where Kafka's tools put them (X-61).

So brokers can log in at each other before any of them serves clients.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress

from checkpoints.loggers import get_logger
from replication.common.limited_log import LimitedLogger
from replication.coordination import (
    BadVersionError,
    CoordinationError,
    Coordinator,
    CorruptNodeError,
    Create,
    Node,
    NodeExistsError,
    NoNodeError,
    Set,
    nodes,
)
from replication.security.credentials import (
    MIN_ITERATIONS,
    Credentials,
    ScramCredential,
    ScramMechanism,
    derive,
)

logger = get_logger(__name__)

MAX_ITERATIONS = 1 << 17


class StoredCredentials:
    """`Credentials` from the tree. What was read of a user is known on while the tree cannot be.

    Args:
        get: the node at a path, as ``Coordinator.get``.
        others: users who are known without the tree, and go before those in it.
    """

    def __init__(
        self, get: Callable[[str], Node | None], others: Credentials | None = None
    ) -> None:
        self._get, self._others = get, others
        self._log = LimitedLogger(logger)
        self._read: dict[str, Mapping[ScramMechanism, ScramCredential]] = {}
        self._absent = derive(ScramMechanism.SHA_256, secrets.token_hex(), b"nobody")

    def scram(self, hash_function: ScramMechanism, user: str) -> ScramCredential | None:
        known = None if self._others is None else self._others.scram(hash_function, user)
        return known or self._stored(user).get(hash_function)

    def check_password(self, user: str, password: str) -> bool:
        if self._others is not None and self._others.check_password(user, password):
            return True
        stored = self._stored(user)
        kind = next(iter(stored), ScramMechanism.SHA_256)
        against = stored.get(kind, self._absent)
        given = derive(kind, password, against.salt, against.iterations)
        is_right = hmac.compare_digest(given.stored_key, against.stored_key)
        return is_right and against is not self._absent

    def _stored(self, user: str) -> Mapping[ScramMechanism, ScramCredential]:
        try:
            node = self._get(nodes.user_config_path(user))
        except ValueError:  # a name that no node can have
            return {}
        except CoordinationError as error:
            self._log.warning("users are those that are known: %s", error)
            return self._read.get(user, {})
        if node is None:
            self._read.pop(user, None)
            return {}
        try:
            found = parse_credentials(nodes.decode_user_config(user, node.data))
        except (CorruptNodeError, ValueError) as error:
            self._log.warning("the keys of a user cannot be read: %s", error, about=user)
            return {}
        self._read[user] = found
        return found


def parse_credentials(config: Mapping[str, str]) -> dict[ScramMechanism, ScramCredential]:
    """The SCRAM keys among the configuration of a user.

    Raises:
        ValueError: they are malformed.
    """
    found = {}
    for kind in ScramMechanism:
        text = config.get(kind.mechanism)
        if text is None:
            continue
        fields = {name: value for name, _, value in (p.partition("=") for p in text.split(","))}
        try:
            salt, stored_key, server_key = (
                base64.b64decode(fields[name], validate=True)
                for name in ("salt", "stored_key", "server_key")
            )
            iterations = int(fields["iterations"])
        except (KeyError, ValueError, binascii.Error):
            raise ValueError(f"{kind.mechanism} is malformed") from None
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ValueError(f"{kind.mechanism} has {iterations} iterations")
        found[kind] = ScramCredential(salt, stored_key, server_key, iterations)
    return found


def store_credential(
    session: Coordinator, user: str, kind: ScramMechanism, kept: ScramCredential | None
) -> bool:
    """Keep what is kept of a user's password, or nothing any more; as Kafka's tool does, which
    brokers of Kafka are told of. What else the node has, such as quotas, stays.

    Returns:
        Whether the user had one before.
    Raises:
        CorruptNodeError: the user's node cannot be read, and is left as it is.
        CoordinationError, ValueError: as ``Coordinator.get``.
    """
    path = nodes.user_config_path(user)
    while True:
        node = session.get(path)
        config = {} if node is None else nodes.decode_user_config(user, node.data)
        had_one = config.pop(kind.mechanism, None) is not None
        if kept is not None:
            config[kind.mechanism] = _text_of(kept)
        elif not had_one:
            return False
        data = nodes.encode_user_config(config)
        told = nodes.config_change_path(), nodes.encode_user_change(user)
        for parent in (nodes.USER_CONFIGS, nodes.CONFIG_CHANGES):
            with suppress(NodeExistsError):
                session.create(parent, parents=True)
        change = Create(path, data) if node is None else Set(path, data, node.version)
        with suppress(NodeExistsError, BadVersionError, NoNodeError):  # somebody else was faster
            session.transact([change, Create(*told, sequential=True)])
            return had_one


def _text_of(kept: ScramCredential) -> str:
    salt, stored_key, server_key = (base64.b64encode(each).decode() for each in kept[:3])
    return (
        f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={kept.iterations}"
    )
