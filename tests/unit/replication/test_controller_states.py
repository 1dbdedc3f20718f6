"""What a candidate for controller can become, and who is listened to meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    CreateTopicRequest,
    DeleteTopicRequest,
    Response,
    TopicResponse,
)
from replication.common.state import NO_LEADER
from replication.controller.channels import Numbers
from replication.controller.states import ControllerState, Happened
from replication.controller.store import ControllerStore
from replication.coordination import BadVersionError, Check, CoordinatorUnavailableError, Op, nodes
from replication.coordination.base import Node
from tests.support.cases import for_each
from tests.support.controllers import PAUSE_MS, T0, Brokers

S, H = ControllerState, Happened
WAYS = {
    (S.WATCHING, H.WATCHES_SET): S.STANDING,
    (S.STANDING, H.OTHER_ELECTED): S.FOLLOWING,
    (S.FOLLOWING, H.OFFICE_CHANGED): S.STANDING,
    (S.STANDING, H.ELECTED): S.TAKING_OVER,
    (S.TAKING_OVER, H.TOOK_OVER): S.ACTIVE,
    (S.TAKING_OVER, H.DEPOSED): S.STANDING,
    (S.ACTIVE, H.DEPOSED): S.STANDING,
    (S.TAKING_OVER, H.FAILED): S.TAKING_OVER,
    (S.ACTIVE, H.FAILED): S.TAKING_OVER,
    **{(state, H.SESSION_BEGAN): S.WATCHING for state in S},
    **{(state, H.SESSION_ENDED): S.OUT for state in S},
}


@for_each("state, happened", [*itertools.product(S, H)])
def test_every_transition(state: ControllerState, happened: Happened) -> None:
    assert happened.leads_from(state) is WAYS.get((state, happened))


def test_nobody_is_served_before_the_take_over_is_complete() -> None:
    """And nothing is decided: what is known may be half of it."""
    b = Brokers()
    b.create()
    b.kill(1, 3, settle=False)
    session = b.sessions[2]
    transact = session.transact

    def silent(ops: object) -> object:
        raise CoordinatorUnavailableError("nothing comes")

    children = session.children
    session.children = silent  # type: ignore[method-assign, assignment]
    b.settle(5 * PAUSE_MS)
    controller = b.controllers[2]
    assert controller.state is ControllerState.TAKING_OVER
    replies: list[Response | None] = []
    controller.handle(DeleteTopicRequest("t"), replies.append)
    b.start(3, settle=False)  # it hears of this, and does not look
    session.children, session.transact = children, silent  # type: ignore[method-assign, assignment]
    b.settle(5 * PAUSE_MS)
    assert replies == [TopicResponse(ErrorCode.NOT_CONTROLLER)]
    assert not controller.active
    assert controller.epoch == 2
    assert b.partition().leader == 1
    session.transact = transact  # type: ignore[method-assign]
    b.settle(5 * PAUSE_MS)
    assert controller.active
    b.check()


def test_what_was_read_is_not_read_again() -> None:
    """A tree of any size is taken over, however few answers come in a row."""
    b = Brokers()
    for number in range(20):
        b.create(f"t{number}", ((2, 3),))
    b.kill(1, settle=False)
    session = b.sessions[2]
    get, count = session.get, 0

    def every_fifth_is_lost(path: str) -> Node | None:
        nonlocal count
        count += 1
        if count % 5 == 0 and path.startswith(nodes.TOPICS):
            raise CoordinatorUnavailableError("lost")
        return get(path)

    session.get = every_fifth_is_lost  # type: ignore[method-assign]
    b.settle(60 * PAUSE_MS)
    assert b.controllers[2].active
    b.check()


def test_an_event_that_fails_unexpectedly_makes_it_read_everything_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker that died meanwhile is not forgotten."""
    b = Brokers()
    b.create(assignment=((2, 3),))
    session = b.sessions[1]
    children, failures = session.children, [KeyError("a defect")] * 2

    def failing(path: str) -> list[str]:
        if failures:
            raise failures.pop()
        return children(path)

    session.children = failing  # type: ignore[method-assign]
    b.kill(2)
    assert b.controllers[1].state is ControllerState.TAKING_OVER
    b.settle(5 * PAUSE_MS)
    assert b.controllers[1].active
    assert b.controllers[1].epoch == 1
    assert (failures, caplog.text.count("an event failed")) == ([], 1)
    assert b.partition().leader == 3
    b.check()


def test_a_term_that_began_between_two_reads_is_not_taken_for_one_s_own() -> None:
    """Whose node it was, and which epoch there is now, are two answers."""
    b = Brokers(0)
    first, second = b.tree.connect(), b.tree.connect()
    assert ControllerStore(first).try_become_controller(1, 0)  # and the answer is lost
    again, other, get = ControllerStore(first), ControllerStore(second), first.get

    def slow(path: str) -> Node | None:
        node = get(path)
        if path == nodes.CONTROLLER and node is not None and not other.term.epoch > 0:
            b.admin.delete(nodes.CONTROLLER)
            assert other.try_become_controller(2, 0)
        return node

    first.get = slow  # type: ignore[method-assign]
    again.try_become_controller(1, 0)
    assert again.term.epoch < other.term.epoch == 2
    with pytest.raises(BadVersionError):
        first.transact([Check(nodes.CONTROLLER_EPOCH, again.term.version)])
    second.transact([Check(nodes.CONTROLLER_EPOCH, other.term.version)])


def test_numbers_go_on_for_a_controller_epoch_and_an_incarnation() -> None:
    numbers = Numbers()
    assert [numbers.next(5, 70), numbers.next(5, 70), numbers.next(5, 71)] == [1, 2, 1]
    assert [numbers.next(5, 70), numbers.next(6, 70), numbers.next(6, 71)] == [3, 1, 1]


def test_a_second_take_over_under_one_epoch_is_heard() -> None:
    """The office is not given up, but everything is read and told anew."""
    b = Brokers()
    b.create()
    session = b.sessions[1]
    children, failures = session.children, [KeyError("a defect")]

    def failing(path: str) -> list[str]:
        if failures:
            raise failures.pop()
        return children(path)

    session.children = failing  # type: ignore[method-assign]
    b.kill(3)
    b.settle(5 * PAUSE_MS)
    assert (b.controllers[1].active, b.controllers[1].epoch, failures) == (True, 1, [])
    b.check()


@for_each("written", [0, 1, 7])
def test_an_epoch_that_somebody_wrote_does_not_come_twice(written: int) -> None:
    """Brokers refuse a lower one. One that counted before may have been another controller's."""
    b = Brokers()
    b.create()
    b.admin.set(nodes.CONTROLLER_EPOCH, nodes.encode_number(written))
    b.settle()
    b.kill(3)  # the write is refused, the node of the controller is still its own
    assert (b.controllers[1].active, b.controllers[1].epoch) == (True, max(written, 2))
    b.check()


@pytest.mark.parametrize("change", ["create", "delete"])
def test_what_nobody_waits_for_any_more_is_carried_out_or_not(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the tree, and the answer came never: the controller goes by the tree, and does not
    leave it to the next one."""
    b = Brokers(config={"request.timeout.ms": "5000"})
    if change == "delete":
        b.create()
    session = b.sessions[1]
    transact = session.transact

    def loses(ops: Sequence[Op]) -> object:
        transact(ops)
        session.suspend()
        raise CoordinatorUnavailableError("no answer")

    request = DeleteTopicRequest("t") if change == "delete" else CreateTopicRequest("t", 1, 3)
    replies: list[Response | None] = []
    with monkeypatch.context() as patcher:
        patcher.setattr(session, "transact", loses)
        b.controller.handle(request, replies.append)
        b.settle(10_000)
    assert replies == [TopicResponse(ErrorCode.REQUEST_TIMED_OUT)]
    session.resume()
    b.kill(2)  # an event
    b.start(2)
    b.settle(PAUSE_MS)
    if change == "delete":
        assert b.admin.children(nodes.TOPICS) == b.admin.children(nodes.DELETE_TOPICS) == []
    else:
        assert b.partition(T0).leader != NO_LEADER
    b.check()


def test_a_request_that_waits_too_long_is_told_so() -> None:
    b = Brokers(config={"request.timeout.ms": "5000"})
    b.create()
    b.sessions[1].suspend()
    replies: list[Response | None] = []
    b.controller.handle(DeleteTopicRequest("t"), replies.append)
    b.settle(4000)
    assert replies == []
    b.settle(3000)
    assert replies == [TopicResponse(ErrorCode.REQUEST_TIMED_OUT)]
    b.sessions[1].resume()
    b.settle(PAUSE_MS)
    assert b.admin.children(nodes.DELETE_TOPICS) == []
    assert T0 in b.brokers[2].told
