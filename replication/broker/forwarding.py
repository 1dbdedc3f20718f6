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

    def ask(self, request: Request, reply: OnReply) -> None:
        """Forward a request.

        It is answered once, by the controller or with None after ``timeout_ms``.
        """
        self._actor.post(lambda: self._ask(request, reply))

    def _ask(self, request: Request, reply: OnReply) -> None:
        deadline_ms = self._runtime.now_ms() + self._timeout_ms
        found: list[Response] = []

        def next_try() -> Request | None:
            return request if self._runtime.now_ms() < deadline_ms else None

        def judge(response: Response) -> Reaction:
            reaction = REACTIONS[_code_of(response)]
            if reaction is Reaction.FIND_CONTROLLER:
                return reaction
            found.append(response)  # also a refusal, which the client handles
            return Reaction.DONE

        def end(reaction: Reaction) -> None:
            reply(found[0] if found else None)

        self._channel.call(self._actor, next_try, judge, end, backoff=BACKOFF).start()


def _code_of(response: Response) -> ErrorCode:
    code = getattr(response, "error_code", ErrorCode.NONE)
    assert isinstance(code, ErrorCode)
    return code
