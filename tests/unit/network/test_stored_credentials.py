"""Users whose keys are in the coordinator's tree (X-61)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from replication.common.errors import SaslAuthenticationError
from replication.coordination import CoordinatorUnavailableError, CorruptNodeError, Node
from replication.coordination.embedded import CoordinatorStore
from replication.security.credentials import (
    ScramCredential,
    ScramMechanism,
    UserCredentials,
    derive,
)
from replication.security.sasl import MECHANISMS, client_exchange
from replication.security.stored import StoredCredentials, store_credential
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


def test_what_is_stored_is_found_as_kafkas() -> None:
    """X-61. A password may change, and what else is known of the user stays."""
    tree = Tree()
    assert not store_credential(tree.session, "ann", SHA_512, derive(SHA_512, "old", b"salt"))
    credentials = StoredCredentials(tree.get)
    assert logs_in(credentials, "SCRAM-SHA-512", "ann", "old")
    assert not logs_in(credentials, "SCRAM-SHA-256", "ann", "old")
    node = tree.get("/config/users/ann")
    assert node is not None
    config = json.loads(node.data)["config"]
    assert config == {"SCRAM-SHA-512": in_kafkas_words(derive(SHA_512, "old", b"salt"))}
    tree.put("bob=", producer_byte_rate="1000")
    assert not store_credential(tree.session, "bob=", SHA_256, None)
    tree.session.delete("/config/users/bob=")
    tree.put("bob%3D", producer_byte_rate="1000")
    for user in ("ann", "bob="):
        store_credential(tree.session, user, SHA_512, derive(SHA_512, "new", b"pepper"))
        assert logs_in(credentials, "SCRAM-SHA-512", user, "new")
        assert not logs_in(credentials, "SCRAM-SHA-512", user, "old")
    assert store_credential(tree.session, "bob=", SHA_512, None)
    assert not store_credential(tree.session, "bob=", SHA_512, None)
    assert not logs_in(credentials, "SCRAM-SHA-512", "bob=", "new")
    node = tree.get("/config/users/bob%3D")
    assert node is not None
    assert json.loads(node.data)["config"] == {"producer_byte_rate": "1000"}
    changes = sorted(tree.session.children("/config/changes"))
    told = [tree.session.get(f"/config/changes/{name}") for name in changes]
    assert [json.loads(each.data)["entity_path"] for each in told if each is not None] == [
        "users/ann",
        "users/ann",
        "users/bob%3D",
        "users/bob%3D",
    ]


def test_a_node_that_cannot_be_read_is_left_alone() -> None:
    tree = Tree()
    tree.put_text("ann", "[]")
    with pytest.raises(CorruptNodeError):
        store_credential(tree.session, "ann", SHA_512, derive(SHA_512, "old", b"salt"))


def test_two_who_store_at_once() -> None:
    """The second one finds what the first one wrote meanwhile, and keeps it."""
    tree = Tree()
    session = tree.session

    class Late:
        """Reads, and then another one writes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(session, name)

        def get(self, path: str) -> Node | None:
            found = session.get(path)
            for kind in others:
                store_credential(session, "ann", kind, derive(kind, "other", b"salt"))
            others.clear()
            return found

    for first in (SHA_256, SHA_512):  # the user is new, and is not
        others = [first]
        mine = next(kind for kind in ScramMechanism if kind is not first)
        store_credential(Late(), "ann", mine, derive(mine, "mine", b"salt"))  # type: ignore[arg-type]
        credentials = StoredCredentials(tree.get)
        assert logs_in(credentials, first.mechanism, "ann", "other")
        assert logs_in(credentials, mine.mechanism, "ann", "mine")
