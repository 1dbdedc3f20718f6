"""The controller's requests on their way in: their order, and the one thread that carries them out.

The controller never waits for the disks of a broker: its request is taken at once and carried out
on an actor of the receiver. A controller sends its next request when the one before was answered,
or when it gave up on that answer; then it sends the content again. So of the requests that wait
only the newest counts (R-183). However slow the disks are, one runs and at most one waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    ControlRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    Response,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from replication.common.runtime import Actor
from replication.common.state import UNKNOWN_EPOCH
from replication.common.transport import OnReply

CarryOut: TypeAlias = Callable[[Any], Response]


class ControlRequests:
    """Takes the requests of controllers from any thread.

    Args:
        actor: for nothing else, because its tasks wait for disks.
        broker_epoch: returns this broker's present epoch.
        carry_out: for each kind of request, called on the actor.
    """

    def __init__(
        self,
        actor: Actor,
        broker_epoch: Callable[[], int],
        carry_out: Mapping[type[ControlRequest], CarryOut],
    ) -> None:
        self._actor = actor
        self._broker_epoch = broker_epoch
        self._carry_out = carry_out
        self._latest = (0, 0, 0)  # controller epoch, broker epoch and sequence of the last request
        self._reported_epoch = 0
        self._controller_epoch = 0
        self._waiting: tuple[ControlRequest, OnReply] | None = None
        self._closed = False
        self._lock = threading.Lock()  # guards these; nothing waits under it

    @property
    def controller_epoch(self) -> int:
        """The epoch of the latest known controller. Requests of older ones are refused."""
        return self._controller_epoch

    @property
    def reported_broker_epoch(self) -> int:
        """The latest of this broker's epochs with which a controller addressed it."""
        return self._reported_epoch

    def accept(self, request: ControlRequest, reply: OnReply) -> None:
        """Carry a request out soon, and reply; at once if it is late (R-52).

        The reply is None if a newer request took its place, or this broker ends.
        """
        with self._lock:
            code = self._refusal_locked(request)
            is_taken = code is ErrorCode.NONE and not self._closed
            dropped = None
            if is_taken:
                dropped, self._waiting = self._waiting, (request, reply)
        if dropped is not None:
            dropped[1](None)
        elif is_taken:
            self._actor.post(self._run)
        elif code is ErrorCode.NONE:
            reply(None)
        else:
            reply(_refused(request, code))

    def _refusal_locked(self, request: ControlRequest) -> ErrorCode:
        """Return the error by which a late request is refused."""
        if request.controller_epoch < self._controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._is_to_an_earlier_life(request):
            return ErrorCode.STALE_BROKER_EPOCH
        order = request.controller_epoch, request.broker_epoch, request.sequence
        if request.sequence:
            if order < self._latest:
                return ErrorCode.STALE_CONTROLLER_EPOCH  # a copy that was overtaken
            self._latest = order
        # A real Kafka does not number its requests: they come in the order of a connection.
        self._reported_epoch = max(self._reported_epoch, request.broker_epoch)
        self._controller_epoch = request.controller_epoch
        return ErrorCode.NONE

    def _is_to_an_earlier_life(self, request: ControlRequest) -> bool:
        """A higher broker epoch than ours is valid, because the controller knew it before us."""
        own = self._broker_epoch()
        # A broker that has not registered yet is addressed as its previous incarnation.
        return request.broker_epoch != UNKNOWN_EPOCH and (
            own == UNKNOWN_EPOCH or request.broker_epoch < own
        )

    def _run(self) -> None:
        with self._lock:
            taken, self._waiting = self._waiting, None
        if taken is None:  # closed since
            return
        request, reply = taken
        response: Response | None = None
        try:
            if self._is_to_an_earlier_life(request):  # registered again while it waited
                response = _refused(request, ErrorCode.STALE_BROKER_EPOCH)
            else:
                response = self._carry_out[type(request)](request)
        finally:
            reply(response)

    def post(self, task: Callable[[], None]) -> None:
        """Run a task between requests."""
        self._actor.post(task)

    def close(self, *, wait: bool) -> None:
        """Carry nothing out any more. With ``wait``, nothing is being carried out on return."""
        with self._lock:
            self._closed = True
            dropped, self._waiting = self._waiting, None
        self._actor.close(wait=wait)
        if dropped is not None:
            dropped[1](None)


def _refused(request: ControlRequest, code: ErrorCode) -> Response:
    if isinstance(request, UpdateMetadataRequest):
        return UpdateMetadataResponse(code)
    codes = tuple((part.tp, code) for part in request.partitions)
    if isinstance(request, LeaderAndIsrRequest):
        return LeaderAndIsrResponse(code, codes)
    return StopReplicaResponse(code, codes)
