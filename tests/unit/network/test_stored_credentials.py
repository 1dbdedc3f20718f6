"""Users whose keys are in the coordinator's tree (X-61)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from replication.common.errors import SaslAuthenticationError
from replication.coordination import CoordinatorUnavailableError, Node
from replication.coordination.embedded import CoordinatorStore
from replication.security.credentials import (
    ScramCredential,
    ScramMechanism,
    UserCredentials,
    derive,
)
from replication.security.sasl import MECHANISMS, client_exchange
from replication.security.stored import StoredCredentials
from tests.support.cases import for_each

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def in_kafkas_words(kept: ScramCredential) -> str:
    salt, stored_key, server_key = (base64.b64encode(each).decode() for each in kept[:3])
    return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations=4096"


class Tree:
    """A tree whose users a test puts there, and which may be away."""

    def __init__(self) -> None:
        store = CoordinatorStore("/tree", MemoryStorage(), clock=ManualClock())
        self.session = store.connect()
        self.is_away = False

    def get(self, path: str) -> Node | None:
        if self.is_away:
            raise CoordinatorUnavailableError("away")
        return self.session.get(path)

    def put(self, name: str, **config: str) -> None:
        self.put_text(name, json.dumps({"version": 1, "config": config}))

    def put_text(self, name: str, text: str) -> None:
        self.session.create(f"/config/users/{name}", text.encode(), parents=True)


@contextmanager
def tree_of(password: str = "secret", name: str = "ann") -> Iterator[Tree]:
    tree = Tree()
    kinds = {kind.mechanism: derive(kind, password, b"salt") for kind in ScramMechanism}
    tree.put(name, **{kind: in_kafkas_words(kept) for kind, kept in kinds.items()})
    yield tree


def logs_in(credentials: StoredCredentials, mechanism: str, user: str, password: str) -> bool:
    server = MECHANISMS[mechanism](credentials)
    exchange = client_exchange(mechanism, user, password)
    message = next(exchange)
    try:
        while True:
            message = exchange.send(server.evaluate(message))
    except StopIteration:
        return server.user == user
    except SaslAuthenticationError:
        return False


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_logins(mechanism: str) -> None:
    with tree_of() as tree:
        credentials = StoredCredentials(tree.get, UserCredentials({"of a file": "word"}))
        assert logs_in(credentials, mechanism, "ann", "secret")
        assert not logs_in(credentials, mechanism, "ann", "guess")
        assert not logs_in(credentials, mechanism, "bob", "secret")
        assert logs_in(credentials, mechanism, "of a file", "word")


def test_a_tree_that_is_away_forgets_nobody() -> None:
    """Brokers connect anew while the coordinator is looked for."""
    with tree_of() as tree:
        credentials = StoredCredentials(tree.get)
        assert logs_in(credentials, "SCRAM-SHA-256", "ann", "secret")
        tree.is_away = True
        assert logs_in(credentials, "SCRAM-SHA-256", "ann", "secret")
        assert not logs_in(credentials, "SCRAM-SHA-256", "bob", "secret")
        tree.is_away = False
        tree.session.delete("/config/users/ann")
        assert not logs_in(credentials, "SCRAM-SHA-256", "ann", "secret")
        tree.is_away = True
        assert not logs_in(credentials, "SCRAM-SHA-256", "ann", "secret")


@for_each(
    "user, node", [("a/b =~*", "a%2Fb%20%3D%7E%2A"), ("üser", "%C3%BCser"), ("a.b-c_", "a.b-c_")]
)
def test_names_are_written_as_kafka_writes_them(user: str, node: str) -> None:
    with tree_of(name=node) as tree:
        assert StoredCredentials(tree.get).check_password(user, "secret")


@for_each("user", [".", "..", "", "x" * 5000, "a\0b", "../cluster/id"])
def test_names_that_no_node_can_have(user: str) -> None:
    with tree_of() as tree:
        credentials = StoredCredentials(tree.get)
        assert credentials.scram(SHA_256, user) is None
        assert not credentials.check_password(user, "secret")


@for_each(
    "text",
    [
        "",
        "[]",
        '{"version":2,"config":{}}',
        '{"version":1,"config":{"SCRAM-SHA-256":"salt=x"}}',
        '{"version":1,"config":{"SCRAM-SHA-256":"salt=%,stored_key=,server_key=,iterations=4096"}}',
        '{"version":1,"config":{"SCRAM-SHA-256":"salt=,stored_key=,server_key=,iterations=9"}}',
        '{"version":1,"config":{"SCRAM-SHA-256":"salt=,stored_key=,server_key=,iterations=1e9"}}',
        '{"version":1,"config":{"producer_byte_rate":"1000"}}',
    ],
)
def test_keys_that_are_none(text: str) -> None:
    tree = Tree()
    tree.put_text("ann", text)
    credentials = StoredCredentials(tree.get)
    assert credentials.scram(SHA_256, "ann") is None
    assert credentials.scram(SHA_512, "ann") is None
    assert not credentials.check_password("ann", "")
