"""Requests for the controller that came to another broker (Kafka's ``ForwardingManager``)."""

from __future__ import annotations

from replication.broker.controller_channel import REACTIONS, ControllerChannel
from replication.common.error_codes import ErrorCode
from replication.common.messages import Request, Response
from replication.common.retrying import Backoff, Reaction
from replication.common.runtime import Actor, Runtime
from replication.common.transport import OnReply

BACKOFF = Backoff(20, 200)  # a client waits


class Forwarding:
    """Forwards requests of clients to the controller, and finds it again if it moved.

    A request whose answer is lost is sent again, as in Kafka's brokers. The second answer may say
    that the topic exists already.
    """

    def __init__(
        self,
        runtime: Runtime,
        actor: Actor,
        channel: ControllerChannel,
        timeout_ms: int,
    ) -> None:
        self._runtime = runtime
        self._actor = actor
        self._channel = channel
        self._timeout_ms = timeout_ms

    def ask(self, request: Request, reply: OnReply, timeout_ms: int | None = None) -> None:
        """Forward a request.

        It is answered once: by the controller, or after ``timeout_ms``, which is at most that of
        this object, with the last refusal of a broker that is not the controller, or with None.
        """
        wait_ms = self._timeout_ms if timeout_ms is None else min(timeout_ms, self._timeout_ms)
        self._actor.post(lambda: self._ask(request, reply, self._runtime.now_ms() + wait_ms))

    def _ask(self, request: Request, reply: OnReply, deadline_ms: int) -> None:
        found: list[Response] = []
        refused: list[Response] = []  # by the latest try

        def next_try() -> Request:
            refused.clear()
            return request

        def judge(response: Response) -> Reaction:
            reaction = REACTIONS[_code_of(response)]
            if reaction is Reaction.FIND_CONTROLLER:
                refused.append(response)
                return reaction
            found.append(response)  # also a refusal, which the client handles
            return Reaction.DONE

        def end(reaction: Reaction) -> None:
            reply(next(iter([*found, *refused]), None))

        self._channel.call(
            self._actor, next_try, judge, end, backoff=BACKOFF, deadline_ms=deadline_ms
        ).start()


def _code_of(response: Response) -> ErrorCode:
    code = getattr(response, "error_code", ErrorCode.NONE)
    assert isinstance(code, ErrorCode)
    return code
