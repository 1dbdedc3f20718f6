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
from replication.common.transport import Transport

BACKOFF = Backoff(50, 1000)

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
        judge: Callable[[Response], Reaction],
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
            judge: returns the reaction to an answer; called on ``actor``.
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
                    reaction = judge(response)
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
