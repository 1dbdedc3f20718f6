"""Nodes that are damaged, missing or foreign.

A controller takes over within a bound, leaves out what it cannot read with an error that names it,
and serves everything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from uuid import UUID

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.limited_log import MOST
from replication.common.messages import CreateTopicRequest, Response, TopicResponse
from replication.common.state import TopicAssignment, TopicPartition
from replication.controller.store import NOTES
from replication.coordination import (
    Check,
    CoordinationError,
    Node,
    NotPermittedError,
    Op,
    nodes,
)
from replication.coordination.base import MAX_DATA_BYTES, WatchListener
from tests.support.cases import for_each
from tests.support.controllers import PAUSE_MS, T0, Brokers

OTHER = TopicPartition("other", 0)
T1 = TopicPartition("t", 1)
STATE, TOPIC, CONFIG = (
    nodes.partition_state_path(T0),
    nodes.topic_path("t"),
    nodes.topic_config_path("t"),
)
MARK = nodes.delete_topic_path("gone")
EVENT = f"{nodes.log_dir_event_path()}0000000000"
NOBODY_READS = (MARK, nodes.PRODUCER_IDS, nodes.RESERVED_PRODUCER_IDS)  # of the controllers
PATHS = (
    TOPIC,
    f"{TOPIC}/partitions",
    nodes.partition_path(T0),
    STATE,
    CONFIG,
    MARK,
    EVENT,
    nodes.CONTROLLER,
    nodes.CONTROLLER_EPOCH,
    nodes.broker_path(3),
    nodes.broker_epoch_path(3),
    nodes.PRODUCER_IDS,
    nodes.RESERVED_PRODUCER_IDS,
)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "garbage": lambda data: b"\xff{",
    "wrong type": lambda data: b"[1]",
    "wrong fields": lambda data: _with(data, None, {key: {"a": 1} for key in _fields(data)}),
    "older version": lambda data: _with(data, "version", 0),
    "newer version": lambda data: _with(data, "version", 99),
    "huge": lambda data: b'{"version":1,"pad":"' + b"x" * (MAX_DATA_BYTES - 30) + b'"}',
    "deep": lambda data: b"[" * 100_000,
}
NO_JSON = (f"{TOPIC}/partitions", nodes.partition_path(T0), MARK)  # whose bytes nobody reads


def _fields(data: bytes) -> dict[str, object]:
    try:
        fields = json.loads(data)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _with(data: bytes, key: str | None, value: object) -> bytes:
    fields = {**_fields(data), **({key: value} if key else value)}  # type: ignore[dict-item]
    return json.dumps(fields).encode()


def brokers() -> Brokers:
    """``t`` begins on the controller, so the next one has to elect another leader."""
    b = Brokers()
    b.create("t", ((1, 2, 3), (1, 3, 2)))
    b.create("other", ((1, 2, 3),))
    return b


def remove(b: Brokers, path: str) -> None:
    for name in b.admin.children(path):
        remove(b, f"{path}/{name}")
    b.admin.delete(path)


def put(b: Brokers, path: str, data: bytes) -> None:
    if b.admin.get(path) is None:
        b.admin.create(path, data, parents=True)
    else:
        b.admin.set(path, data)


def next_controller(b: Brokers) -> None:
    """The controller dies, and within a bound another one serves what is sound."""
    b.settle()
    b.kill(1)
    b.settle(10 * PAUSE_MS)
    assert b.controllers[2].active or b.controllers[3].active
    assert b.partition(OTHER).leader in (2, 3)
    b.create("third", ((2,),))
    assert b.partition(TopicPartition("third", 0)).leader == 2


def leader(b: Brokers, tp: TopicPartition) -> int:
    found = b.admin.get(nodes.partition_state_path(tp))
    assert found is not None
    number = json.loads(found.data)["leader"]
    assert isinstance(number, int)
    return number


CASES = [(path, damage) for path in PATHS for damage in DAMAGES if path not in NO_JSON]


@for_each("path, damage", CASES, name=lambda case: f"{case[0]}: {case[1]}", at_once=12)
def test_damaged(path: str, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """One error names it; the node stays as it is unless it is the controller's own."""
    caplog.clear()
    b = brokers()
    node = b.admin.get(path)
    damaged = DAMAGES[damage](b"{}" if node is None else node.data)
    put(b, path, damaged)
    next_controller(b)
    if path in NOBODY_READS:
        return
    errors = [each.getMessage() for each in caplog.records if path in each.getMessage()]
    assert errors
    assert len(errors) <= 3
    left = b.admin.get(path)
    if path in (TOPIC, CONFIG, STATE):
        assert left is not None
        assert left.data == damaged
        assert leader(b, T1) == (3 if path == STATE else 1)
    put(b, path, b"" if node is None else node.data)  # as it was
    if path in (TOPIC, CONFIG, STATE):
        b.settle()
        assert leader(b, T0) in (2, 3)
        b.start(1)
        b.check()


@for_each("path", [path for path in PATHS if path not in (MARK, EVENT, *NOBODY_READS)])
def test_missing(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    b = brokers()
    remove(b, path)
    next_controller(b)
    states_are_gone = path in (f"{TOPIC}/partitions", nodes.partition_path(T0), STATE)
    if states_are_gone:
        assert f"{STATE}: was removed" in caplog.text
        assert b.admin.get(STATE) is None
        b.start(1)
        assert T0 not in b.brokers[1].told


@for_each("path", PATHS)
def test_foreign_nodes_below(path: str) -> None:
    """They are no reason to stop, and go with what they are below of."""
    b = brokers()
    try:
        put(b, f"{path}/foreign/node", b"\xff{")
    except CoordinationError:
        assert path in (nodes.CONTROLLER, nodes.broker_path(3))  # which are ephemeral
        return
    next_controller(b)
    b.start(1)
    for name in ("t", "other"):
        assert b.delete(name) is ErrorCode.NONE
    b.settle(10 * PAUSE_MS)
    assert b.admin.children(nodes.TOPICS) == ["third"]
    assert b.admin.children(nodes.DELETE_TOPICS) == []
    assert b.admin.children(nodes.LOG_DIR_EVENTS) == []


WRONG: dict[str, tuple[str, dict[str, object], str]] = {
    "a leader that is no replica": (STATE, {"leader": 77}, "leader has [77]"),
    "an ISR of strangers": (STATE, {"isr": [1, 77]}, "isr has [77]"),
    "an ELR of strangers": (STATE, {"elr": [2**31 - 1]}, "elr has"),
    "an epoch that has no next": (STATE, {"leader_epoch": 2**31 - 1}, "leader_epoch is"),
    "a term that has no next": (STATE, {"controller_epoch": 2**31 - 1}, "controller_epoch is"),
    "a partition without replicas": (TOPIC, {"partitions": {"0": [], "1": [1, 3]}}, STATE),
    "no partitions": (TOPIC, {"partitions": {}}, "partitions are none"),
    "partitions with a gap": (TOPIC, {"partitions": {"0": [1], "7": [1]}}, "numbered from 0"),
    "a topic without an id": (TOPIC, {"topic_id": None}, "topic_id is missing"),
}


@for_each("what", WRONG)
def test_of_the_right_form_and_wrong(what: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    b = brokers()
    path, fields, said = WRONG[what]
    node = b.admin.get(path)
    assert node is not None
    b.admin.set(path, _with(node.data, None, fields))
    next_controller(b)
    assert said in caplog.text
    if path == STATE:
        b.admin.set(path, node.data)
        b.settle()
        assert leader(b, T0) == 2


def test_a_state_that_was_removed_is_not_made_up() -> None:
    """Of two replicas one lags, and nothing says which: 3 alone has everything."""
    b = Brokers()
    b.create("t", ((2, 3),))
    b.kill(2)
    state = b.admin.get(STATE)
    assert state is not None
    remove(b, f"{TOPIC}/partitions")
    b.start(2)
    b.kill(1)
    assert b.admin.get(STATE) is None
    b.admin.create(STATE, state.data, parents=True)  # the one that it was
    b.settle()
    assert (leader(b, T0), b.brokers[3].told[T0].isr) == (3, (3,))


def test_a_topic_that_somebody_made_anew_under_its_id_gets_no_state() -> None:
    b = brokers()
    topic = b.admin.get(TOPIC)
    assert topic is not None
    remove(b, TOPIC)
    b.admin.create(TOPIC, topic.data)
    b.kill(3)
    b.settle(10 * PAUSE_MS)
    assert b.admin.get(STATE) is None
    assert b.partition(OTHER).isr == (1, 2)


def test_an_interrupted_deletion_is_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    b = brokers()
    b.admin.create(nodes.delete_topic_path("t"))
    remove(b, nodes.partition_path(T0))
    next_controller(b)
    b.start(1)
    b.settle(PAUSE_MS)
    assert sorted(b.admin.children(nodes.TOPICS)) == ["other", "third"]
    assert "left out" not in caplog.text


def test_the_deletion_of_what_was_left_out_goes_on() -> None:
    """Under the same controller, as soon as it can be read."""
    b = brokers()
    topic = b.admin.get(TOPIC)
    assert topic is not None
    b.admin.set(TOPIC, b"{")
    b.admin.create(nodes.delete_topic_path("t"))
    next_controller(b)
    b.start(1)
    b.admin.set(TOPIC, topic.data)
    b.settle(PAUSE_MS)
    assert sorted(b.admin.children(nodes.TOPICS)) == ["other", "third"]


def test_what_is_mended_before_anybody_watches_is_seen() -> None:
    b = brokers()
    topic, watch = b.admin.get(TOPIC), b.sessions[2].watch
    assert topic is not None

    def late(path: str, listener: WatchListener) -> None:
        if path == TOPIC:
            b.admin.set(TOPIC, topic.data)
        watch(path, listener)

    b.sessions[2].watch = late  # type: ignore[method-assign]
    b.admin.set(TOPIC, b"{")
    next_controller(b)
    assert leader(b, T0) == 2


def test_a_term_above_the_epochs_that_states_name() -> None:
    """As after the removal of the epoch's node: brokers refuse what they take for an old term."""
    b = brokers()
    b.kill(1)
    b.start(1)
    b.kill(2)
    b.admin.delete(nodes.CONTROLLER_EPOCH)
    b.kill(3)
    assert b.controller.epoch > 3
    b.start(2)
    b.start(3)
    b.check()


@pytest.mark.parametrize("twin", ["a", "z"])
def test_of_two_topics_with_one_id_the_younger_is_left_out(
    twin: str, caplog: pytest.LogCaptureFixture
) -> None:
    b = brokers()
    topic = b.admin.get(TOPIC)
    assert topic is not None
    b.admin.create(nodes.topic_path(twin), topic.data)
    next_controller(b)
    assert f"{nodes.topic_path(twin)}: topic_id is that of t" in caplog.text
    assert leader(b, T0) == 2
    assert all(tp.topic != twin for tp in b.brokers[2].told)
    remove(b, nodes.topic_path(twin))
    b.settle()
    assert b.controller.stats.global_topic_count == 3


@for_each(
    "path",
    [
        nodes.topic_path("no topic"),
        nodes.topic_path("x" * 300),
        f"{nodes.BROKER_IDS}/007",
        f"{nodes.BROKER_IDS}/99999999999",
        f"{nodes.BROKER_IDS}/broker",
        f"{nodes.BROKER_EPOCHS}/-1",
        f"{nodes.LOG_DIR_EVENTS}/anything",
        f"{nodes.TOPICS}/t/partitions/99/state",
        f"{nodes.TOPICS}/t/partitions/none",
        "/admin/reassign_partitions",
        "/admin/preferred_replica_election",
    ],
)
def test_foreign_names(path: str) -> None:
    b = brokers()
    put(b, path, nodes.encode_topic(TopicAssignment(UUID(int=7), {0: (2, 3)}, {})))
    next_controller(b)
    assert leader(b, T0) == 2
    assert {tp.topic for tp in b.brokers[2].told} == {"t", "other", "third"}


def test_an_office_without_an_owner_is_nobodys() -> None:
    """Who holds it, an ephemeral node, goes with its session; this one would stay for ever."""
    b = Brokers(start=False)
    put(b, f"{nodes.CONTROLLER}/below", b"")
    put(b, nodes.CONTROLLER, nodes.encode_controller(9, 0))
    b.start(1)
    assert b.controller.epoch == 1


def test_who_is_controller_is_written_again() -> None:
    """The others could not find the controller."""
    b = brokers()
    b.admin.set(nodes.CONTROLLER, b"\xff{")
    b.settle()
    node = b.admin.get(nodes.CONTROLLER)
    assert node is not None
    assert nodes.decode_controller(node.data) == 1
    assert b.controller.epoch == 1


@pytest.mark.parametrize("path", [STATE, TOPIC])
@pytest.mark.parametrize("dies", [False, True])
def test_who_came_back_uncleanly_meanwhile_does_not_lead(path: str, dies: bool) -> None:
    """R-70: the state was written before, and names it. A later controller knows it too."""
    b = Brokers(4)
    b.create("t", ((2, 3), (2, 3)))
    node = b.admin.get(path)
    assert node is not None
    b.admin.set(path, b"\xff{")
    b.kill(1)
    b.kill(3)
    b.start(3, clean=False)
    b.kill(2)  # which was the controller
    if dies:
        b.start(1)
        b.kill(*(broker for broker, each in b.controllers.items() if each.active and broker != 3))
    b.start(2, clean=True)
    b.admin.set(path, node.data)
    b.settle()
    now = b.partition()
    assert (now.leader, now.isr) == (2, (2,))
    assert b.admin.children(nodes.LEFT_OUT) == []
    b.check()


# -- conflicts that last --------------------------------------------------------------------------


def refuse(b: Brokers, broker: int, refused: str) -> None:
    """Have each write of one node refused, whoever else could write it."""
    session = b.sessions[broker]
    transact = session.transact

    def refusing(ops: Sequence[Op]) -> object:
        if any(op.path == refused and not isinstance(op, Check) for op in ops):
            raise NotPermittedError(refused)
        return transact(ops)

    session.transact = refusing  # type: ignore[method-assign, assignment]


@for_each("path", [STATE, TOPIC])
def test_a_conflict_that_lasts_concerns_one_thing(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After ten equal ones it is left out by name, and looked at again when it changes."""
    caplog.clear()
    b = brokers()
    target = {T0: (3, 2)} if path == TOPIC else {}
    refuse(b, 2, path)
    b.settle()
    b.kill(1)
    b.settle(10 * PAUSE_MS)
    for tp, replicas in target.items():
        assert b.reassign(replicas, tp) is not ErrorCode.NONE
    assert b.controllers[2].active
    assert leader(b, T1) == 3
    assert b.partition(OTHER).leader == 2
    assert "is left out, and offline" in caplog.text
    assert caplog.text.count("again: ") <= 3
    del b.sessions[2].transact
    node = b.admin.get(path)
    assert node is not None
    b.admin.set(path, node.data)
    b.settle()
    assert b.partition().leader == 2
    b.start(1)
    b.check()


def test_a_state_that_nobody_may_write_concerns_one_partition() -> None:
    b = brokers()
    for broker in b.ids:
        refuse(b, broker, STATE)
    next_controller(b)
    assert (leader(b, T0), leader(b, T1)) == (1, 3)


def test_a_node_that_may_not_be_read_concerns_one_topic() -> None:
    b = brokers()
    get = b.sessions[2].get

    def refusing(path: str) -> Node | None:
        if path == CONFIG:
            raise NotPermittedError(path)
        return get(path)

    b.sessions[2].get = refusing  # type: ignore[method-assign]
    next_controller(b)
    assert leader(b, T0) == 1
    del b.sessions[2].get  # no node changes, so nothing tells of it
    b.settle(b.config.unclean_election_interval_ms)
    assert leader(b, T0) == 2


def test_a_notification_that_may_not_be_removed_holds_up_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    b = brokers()
    b.admin.create(EVENT, b"{", parents=True)
    for broker in b.ids:
        refuse(b, broker, EVENT)
    next_controller(b)
    assert f"{EVENT} stays" in caplog.text
    assert "again, later" not in caplog.text


# -- many -----------------------------------------------------------------------------------------


def test_foreign_notifications_by_the_thousand_are_some_work_a_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What else is due comes between, and they are removed in few transactions."""
    parent = nodes.LOG_DIR_EVENTS
    count = 3 * NOTES
    b = brokers()
    session = b.sessions[1]
    transact, children = session.transact, session.children
    made: list[str] = []
    replies: list[Response | None] = []

    def noted(ops: Sequence[Op]) -> object:
        made.append(type(ops[-1]).__name__)
        return transact(ops)

    def listed(path: str) -> list[str]:
        if path == parent and not replies:  # a request comes while the first ones are read
            replies.append(None)
            b.controllers[1].handle(CreateTopicRequest("new", 1, 1), replies.append)
        return children(path)

    for number in range(count):
        session.create(f"{parent}/note_{number:010d}", b"\xff{")
    session.transact, session.children = noted, listed  # type: ignore[method-assign, assignment]
    b.settle()
    assert replies[1:] == [TopicResponse(ErrorCode.NONE)]
    assert b.admin.children(parent) == []
    deletions = [place for place, name in enumerate(made) if name == "Delete"]
    assert len(deletions) == count // NOTES
    assert made.index("Create") < deletions[-1], made
    assert caplog.text.count("a notification is dropped") == 1


def test_all_nodes_of_a_kind_are_bad(caplog: pytest.LogCaptureFixture) -> None:
    """A hundred topics: a handful of lines, and the rest is served."""
    b = brokers()
    for number in range(100):
        b.admin.create(nodes.topic_path(f"bad{number}"), b"\xff{")
    next_controller(b)
    assert caplog.text.count("is left out, and offline") == MOST
    assert b.controller.stats.global_topic_count == 3
