"""A broker's channel to the controller: retries, and the meaning of each answer.

All requests of a broker to the controller go through it: changes of ISRs, its controlled shutdown
(Kafka's ``NodeToControllerChannelManager``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from replication.common.error_codes import ErrorCode
from replication.common.messages import Request, Response
from replication.common.retrying import Backoff, Reaction, RetryingCall, Settle, reactions
from replication.common.runtime import Actor, Runtime
from replication.common.transport import OnReply, Transport

BACKOFF = Backoff(50, 1000)
FORWARDING_BACKOFF = Backoff(20, 200)  # a client waits

REACTIONS: Final[Mapping[ErrorCode, Reaction]] = reactions(
    {
        Reaction.DONE: (
            ErrorCode.NONE,
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ),
        # The receiver is not the controller, or no longer.
        Reaction.FIND_CONTROLLER: (
            ErrorCode.NOT_CONTROLLER,
            ErrorCode.STALE_CONTROLLER_EPOCH,
            ErrorCode.BROKER_NOT_AVAILABLE,
            ErrorCode.NETWORK_EXCEPTION,
        ),
        # The next answer may differ.
        Reaction.AGAIN: (
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.STALE_BROKER_EPOCH,  # one side does not know a registration yet
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.REPLICA_NOT_AVAILABLE,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            ErrorCode.OFFSET_NOT_AVAILABLE,
        ),
    },
    # It has judged, or the code is not one of its answers. The same request would be refused again.
    otherwise=Reaction.GIVE_UP,
)


class ControllerChannel:
    """Finds the controller and calls it.

    Args:
        controller_id: returns the known controller.
        find_controller: looks for it again. Called on any thread.
        timeout_ms: how long each try waits for its answer.
    """

    def __init__(
        self,
        runtime: Runtime,
        transport: Transport,
        controller_id: Callable[[], int | None],
        find_controller: Callable[[], None],
        timeout_ms: int,
    ) -> None:
        self._runtime = runtime
        self._transport = transport
        self._controller_id = controller_id
        self._find_controller = find_controller
        self._timeout_ms = timeout_ms

    def call(
        self,
        actor: Actor,
        request: Callable[[], Request | None],
        react: Callable[[Response], Reaction],
        on_end: Callable[[Reaction], None] = lambda reaction: None,
        *,
        backoff: Backoff = BACKOFF,
        tries: int | None = None,
        deadline_ms: float = math.inf,
    ) -> RetryingCall:
        """Make a call, which is not started yet.

        Args:
            request: returns the request for each try; None ends the call with DONE.
            deadline_ms: when the last try stops waiting for its answer, and DONE ends the call.
            react: returns the reaction to an answer; called on ``actor``.
            on_end, tries: as of ``RetryingCall``.
        """

        def attempt(settle: Settle) -> None:
            left_ms = deadline_ms - self._runtime.now_ms()
            wanted = request() if left_ms > 0 else None
            if wanted is None:
                settle(Reaction.DONE)
                return
            controller = self._controller_id()
            if controller is None:
                settle(Reaction.FIND_CONTROLLER)
                return

            def answered(response: Response | None) -> None:
                if response is None:
                    settle(Reaction.FIND_CONTROLLER)
                    return
                reaction = Reaction.AGAIN
                try:
                    reaction = react(response)
                finally:
                    settle(reaction)

            self._transport.send(
                controller,
                wanted,
                lambda r: actor.post(lambda: answered(r)),
                int(min(left_ms, self._timeout_ms)),
            )

        return RetryingCall(
            self._runtime,
            actor,
            backoff,
            attempt,
            on_end,
            find_controller=self._find_controller,
            tries=tries,
        )


class Forwarding:
    """Forwards requests of clients to the controller (Kafka's ``ForwardingManager``).

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

    def forward(self, request: Request, reply: OnReply, timeout_ms: int | None = None) -> None:
        """Forward a request.

        It is answered once: by the controller, or after ``timeout_ms``, which is at most that of
        this object, with the last refusal of a broker that is not the controller, or with None.
        """
        wait_ms = self._timeout_ms if timeout_ms is None else min(timeout_ms, self._timeout_ms)
        self._actor.post(lambda: self._forward(request, reply, self._runtime.now_ms() + wait_ms))

    def _forward(self, request: Request, reply: OnReply, deadline_ms: int) -> None:
        found: list[Response] = []
        refused: list[Response] = []  # by the latest try

        def next_try() -> Request:
            refused.clear()
            return request

        def react(response: Response) -> Reaction:
            reaction = REACTIONS[_code_of(response)]
            if reaction is Reaction.FIND_CONTROLLER:
                refused.append(response)
                return reaction
            found.append(response)  # also a refusal, which the client handles
            return Reaction.DONE

        def end(reaction: Reaction) -> None:
            reply(next(iter([*found, *refused]), None))

        self._channel.call(
            self._actor, next_try, react, end, backoff=FORWARDING_BACKOFF, deadline_ms=deadline_ms
        ).start()


def _code_of(response: Response) -> ErrorCode:
    code = getattr(response, "error_code", ErrorCode.NONE)
    assert isinstance(code, ErrorCode)
    return code
