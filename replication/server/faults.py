"""Faults of a server, for tests of its clients: answers come late, not at all, or as errors.

    faults.fail(ApiKey.PRODUCE, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2)
    faults.lose_answer(ApiKey.JOIN_GROUP)
    faults.delay(ApiKey.FETCH, ms=300, times=None)

Each request meets the first fault that is meant for it and not used up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Self, cast

from logstore.common.types import Buffer
from logstore.storage.file_slice import FileSlice
from replication.apis.common.refusals import refusal
from replication.common.error_codes import ErrorCode
from replication.network import (
    CLOSE,
    Answer,
    ReceivedRequest,
    RequestHandler,
    Respond,
    Send,
    requests,
)
from replication.protocol import (
    SERVED_TO_BROKERS,
    ApiKey,
    ProtocolError,
    decode_request,
)


class FaultKind(Enum):
    DELAY = "delay"  # carried out; the answer leaves late
    DROP = "drop"  # not carried out; the connection is closed
    LOSE_ANSWER = "lose answer"  # carried out; the connection is closed
    FAIL = "fail"  # not carried out; answered with an error


FaultReaction = Callable[[RequestHandler, ReceivedRequest, Respond], None]
"""Reacts to a request in place of its handler."""


class RequestFault:
    """A fault that some requests meet; made by ``RequestFaults``.

    Attributes:
        met: how many requests have met it.
    """

    def __init__(
        self,
        kind: FaultKind,
        react: FaultReaction,
        apis: tuple[ApiKey, ...],
        times: int | None,
        broker: int | None,
    ) -> None:
        if times is not None and times < 1:
            raise ValueError(f"times={times}: a fault happens once at least, or None for always")
        self.kind, self.apis, self.times, self.broker = kind, frozenset(apis), times, broker
        self.react = react
        self.met = 0

    def __repr__(self) -> str:
        apis = ", ".join(sorted(api.name for api in self.apis)) or "all"
        return f"RequestFault({self.kind.value} {apis}, met {self.met})"

    def is_for(self, api_key: int, broker: int) -> bool:
        return (
            (self.times is None or self.met < self.times)
            and (not self.apis or api_key in self.apis)
            and self.broker in (None, broker)
        )


class RequestFaults:
    """The faults of some brokers, changed while they serve. Safe from any thread.

    In each method ``apis`` says which requests the fault is for. By default it is for all but
    ApiVersions, with which every connection begins. ``times`` is how many requests meet it, None
    for all that come. ``broker`` limits it to one broker.

    Attributes:
        pending: those that requests may still meet; read by anybody.
    """

    def __init__(self) -> None:
        self.pending: list[RequestFault] = []
        self._lock = threading.Lock()

    def delay(
        self, *apis: ApiKey, ms: int, times: int | None = 1, broker: int | None = None
    ) -> RequestFault:
        """The request is carried out at once, and its answer leaves ``ms`` late."""

        def delay(handler: RequestHandler, received: ReceivedRequest, respond: Respond) -> None:
            def late(answer: Answer) -> None:
                if isinstance(answer, Send):
                    answer = answer._replace(delay_ms=answer.delay_ms + ms)
                respond(answer)

            handler(received, late)

        return self._add(RequestFault(FaultKind.DELAY, delay, apis, times, broker))

    def drop(self, *apis: ApiKey, times: int | None = 1, broker: int | None = None) -> RequestFault:
        """The connection is closed, as if the request had been lost."""

        def drop(handler: RequestHandler, received: ReceivedRequest, respond: Respond) -> None:
            respond(CLOSE)

        return self._add(RequestFault(FaultKind.DROP, drop, apis, times, broker))

    def lose_answer(
        self, *apis: ApiKey, times: int | None = 1, broker: int | None = None
    ) -> RequestFault:
        """The request is carried out, then the connection is closed: the client cannot know."""

        def lose(handler: RequestHandler, received: ReceivedRequest, respond: Respond) -> None:
            def lost(answer: Answer) -> None:
                if isinstance(answer, Send):
                    requests.release_files(cast("list[Buffer | FileSlice]", answer.buffers))
                respond(CLOSE)

            handler(received, lost)

        return self._add(RequestFault(FaultKind.LOSE_ANSWER, lose, apis, times, broker))

    def fail(
        self,
        *apis: ApiKey,
        error: ErrorCode,
        times: int | None = 1,
        broker: int | None = None,
    ) -> RequestFault:
        """The request is answered with ``error`` in every place that has one, and not carried
        out. A request whose answer has no place for an error is dropped."""

        def fail(handler: RequestHandler, received: ReceivedRequest, respond: Respond) -> None:
            key, version = received.api_key, received.api_version
            served = SERVED_TO_BROKERS.get(key)
            if served is None or version not in served:
                handler(received, respond)  # which refuses it
                return
            try:
                request = decode_request(key, version, received.body)
            except ProtocolError:
                handler(received, respond)
                return
            message = refusal(key, version, request, error)
            if not isinstance(message, tuple):
                respond(CLOSE)
                return
            respond(received.answered(message))

        return self._add(RequestFault(FaultKind.FAIL, fail, apis, times, broker))

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self.pending.clear()

    def _add(self, fault: RequestFault) -> RequestFault:
        with self._lock:
            self.pending.append(fault)
        return fault

    def _match(self, api_key: int, broker: int) -> RequestFault | None:
        if api_key == ApiKey.API_VERSIONS:
            return None
        with self._lock:
            for fault in self.pending:
                if fault.is_for(api_key, broker):
                    fault.met += 1
                    if fault.met == fault.times:
                        self.pending.remove(fault)
                    return fault
        return None

    def around(self, broker: int, handler: RequestHandler) -> RequestHandler:
        """A handler that applies the faults, and otherwise calls ``handler``."""

        def handle(received: ReceivedRequest, respond: Respond) -> None:
            # Nearly always there is none.
            fault = self._match(received.api_key, broker) if self.pending else None
            if fault is None:
                handler(received, respond)
            else:
                fault.react(handler, received, respond)

        return handle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()
