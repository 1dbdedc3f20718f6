"""One connection as a state machine without I/O: bytes in, requests out; answers in, buffers out.

A connection is served in order: the next request is not taken before the answer to the former has
been handed to the socket (W-8). So one answer at most waits here, and pipelining is bounded by TCP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from logstore.common.types import Buffer
from logstore.storage.file_slice import FileSlice
from replication.network.config import NetworkConfig
from replication.network.framing import FrameReader, RequestRefusedError
from replication.network.limits import MemoryPool
from replication.network.listeners import Listener
from replication.network.metrics import CloseReason
from replication.network.requests import (
    CLOSE,
    Answer,
    ConnectionInfo,
    FastPath,
    PeerCertificate,
    ReceivedRequest,
    Send,
    release_files,
    size_of,
)
from replication.protocol import RequestHeader

NEVER = 1 << 62
JOINED_MAX_BYTES = 16 << 10  # joining a small answer costs less than a list of its parts
MIN_BYTES_PER_MS = 64  # of a large frame or answer: 64 KB a second


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that all connections of a server share.

    Attributes:
        parse_header: of a whole frame; raises for a malformed one (W-7).
        serves: whether an API key and version are served by a listener; asked before a large frame
            takes memory.
        fast_paths: shorter ways past the handler, by API key.
    """

    config: NetworkConfig
    memory: MemoryPool
    parse_header: Callable[[memoryview], RequestHeader]
    serves: Callable[[int, int, Listener], bool]
    fast_paths: dict[int, FastPath] = field(default_factory=dict)


class ConnectionState(Enum):
    READING = "reading"  # waits for a request, or assembles one
    STARVED = "starved"  # waits for room, in memory or in the queue of requests
    IN_PROCESS = "in process"  # the handler has a request
    DELAYED = "delayed"  # the answer waits for its time
    SENDING = "sending"  # the answer leaves
    THROTTLED = "throttled"  # answered, and not read for a while (W-234)
    CLOSED = "closed"


# Bound once: to find a member by its enum's attribute takes 0.4 µs on Python 3.11.
READING, STARVED, IN_PROCESS, DELAYED, SENDING, THROTTLED, CLOSED = ConnectionState


class Connection:
    """The machine of one connection; only its network thread calls it. Times are monotonic ms."""

    __slots__ = (
        "_answer",
        "_end_ms",
        "_peer_ended",
        "_reserved",
        "_rules",
        "_throttle_end_ms",
        "_touched_ms",
        "close_reason",
        "head_offset",
        "info",
        "number",
        "outbox",
        "reader",
        "state",
    )

    def __init__(self, info: ConnectionInfo, rules: Rules, now_ms: int) -> None:
        self.info = info
        self.reader = FrameReader(
            rules.config.socket_request_max_bytes
            if info.is_logged_in
            else rules.config.sasl_server_max_receive_size
        )
        self.state = READING
        self.close_reason = CloseReason.CLIENT
        self.number = 0  # of requests so far: the one in process has it
        self._rules = rules
        self._reserved = 0  # bytes of memory, for a large frame
        self._answer: Send | None = None  # being sent, or delayed
        # What is still to be sent, in order. The first part is sent up to ``head_offset``.
        self.outbox: list[Buffer | FileSlice] = []
        self.head_offset = 0  # bytes of the first part that are sent
        self._peer_ended = False
        self._touched_ms = now_ms  # when a byte came or went, or the state changed
        self._end_ms = NEVER  # when a frame or an answer must be done, whatever its progress
        self._throttle_end_ms = 0

    # ------------------------------------------------------------------------------ bytes in

    @property
    def may_receive(self) -> bool:
        return self.state is READING and not self._peer_ended

    def received(self, count: int, now_ms: int) -> None:
        """``count`` bytes were put into the reader's window."""
        self.reader.received(count)
        self._touched_ms = now_ms

    def begin_handshake(self, now_ms: int) -> None:
        """The next bytes are no requests. Like a frame that has begun, a handshake has a
        deadline."""
        self._end_ms = self._longest(now_ms, self._rules.config.socket_frame_timeout_ms, 0)

    def end_handshake(self, certificate: PeerCertificate) -> None:
        self._end_ms = NEVER
        self.info.certificate_uris = certificate.uris
        if certificate.subject is not None:
            self.info.principal = f"User:{certificate.subject}"

    def peer_ended(self) -> None:
        """The other side sends no more. Whole requests that it has sent are still served."""
        self._peer_ended = True

    def next_request(self, now_ns: int) -> ReceivedRequest | None:
        """The next request, if it is whole; then it is in process.

        None if more bytes are needed, or the state does not allow it. If the other side ended, the
        connection then is closed.

        Raises:
            LogstoreError: the bytes are no request that is served; close the connection (W-7).
        """
        if self.state is not READING:
            return None
        frame = self.reader.next_frame()
        if frame is None:
            self._await_more(now_ns // 1_000_000)
            return None
        self._end_ms = NEVER
        if self._reserved:
            self._rules.memory.end(self, self._reserved)
        header = self._rules.parse_header(frame)
        if not self._rules.serves(header.api_key, header.api_version, self.info.listener):
            raise _refusal(header.api_key, header.api_version)
        self.state = IN_PROCESS
        self.number += 1
        return ReceivedRequest(
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            frame[header.body_offset :],
            self.info,
            now_ns,
        )

    def _await_more(self, now_ms: int) -> None:
        """The frame is not whole: it gets a deadline, and a buffer of its own if it is large."""
        reader = self.reader
        if self._peer_ended:
            self.close(CloseReason.CLIENT)
        elif reader.is_inside_frame:
            if self._end_ms == NEVER:
                self._end_ms = self._longest(now_ms, self._rules.config.socket_frame_timeout_ms, 0)
            header = reader.large_header()
            if header is not None:
                self._begin_large(header, now_ms)

    def _begin_large(self, header: memoryview, now_ms: int) -> None:
        key = int.from_bytes(header[:2], signed=True)
        version = int.from_bytes(header[2:4], signed=True)
        if not self._rules.serves(key, version, self.info.listener):
            raise _refusal(key, version)
        self._reserved = self.reader.begin_large()
        self._rules.memory.begin(self, self._reserved)
        size = self.reader.announced_size
        self._end_ms = self._longest(now_ms, self._rules.config.socket_frame_timeout_ms, size)

    def make_room(self) -> bool:
        """Call it before each receive. False if a large frame has to wait for room in memory."""
        growth = self.reader.growth
        if growth:
            if not self._rules.memory.try_grow(self, growth):
                self.starve()
                return False
            self._reserved += growth
            self.reader.grow()
        return True

    def starve(self) -> None:
        """Do not receive until ``feed``: there is no room for more requests."""
        if self.state is READING:
            self.state = STARVED

    def feed(self) -> None:
        """There may be room again."""
        if self.state is STARVED:
            self.state = READING

    def take_reservation(self) -> int:
        """Bytes of memory that a large request in process has; the caller releases them."""
        reserved, self._reserved = self._reserved, 0
        return reserved

    # ---------------------------------------------------------------------------- answers in

    def answer(self, answer: Answer, number: int, now_ms: int) -> bool:
        """Take the answer to request ``number``.

        Returns:
            False: it is not awaited (any more); what it holds was released.
        """
        if self.state is not IN_PROCESS or number != self.number:
            if isinstance(answer, Send):
                release_files(_parts(answer))
            return False
        self._touched_ms = now_ms
        if self.info.is_logged_in:
            self.reader.max_size = self._rules.config.socket_request_max_bytes
        if answer is CLOSE:
            self.close(CloseReason.REFUSED)
        elif isinstance(answer, Send):
            self._answer = answer
            if answer.delay_ms:
                self.state = DELAYED
                self._end_ms = now_ms + answer.delay_ms
            else:
                self._begin_sending(answer, now_ms)
        else:
            self.state = READING
        return True

    def begin(self) -> int:
        """A whole request is in process. Returns its number."""
        self.state = IN_PROCESS
        self._end_ms = NEVER
        self.number += 1
        return self.number

    def served(self, now_ms: int) -> None:
        """A whole request was answered, and all of its answer handed to the socket."""
        self.state = READING
        self._end_ms = NEVER
        self._touched_ms = now_ms

    def _begin_sending(self, answer: Send, now_ms: int) -> None:
        self.state = SENDING
        parts: Any = answer.buffers  # no call of ``_parts`` and no cast: each answer comes here
        size, has_file = 0, False
        for part in parts:
            size += size_of(part)
            has_file = has_file or isinstance(part, FileSlice)
        if answer.throttle_ms > 0:
            self._throttle_end_ms = now_ms + answer.throttle_ms
        self._end_ms = self._longest(now_ms, self._rules.config.socket_send_timeout_ms, size)
        if not parts:
            self._all_sent(now_ms)
        elif size <= JOINED_MAX_BYTES and not has_file:
            self.outbox = [b"".join((size.to_bytes(4), *parts))]
        else:
            self.outbox = [size.to_bytes(4), *parts]

    # --------------------------------------------------------------------------- buffers out

    def sent(self, count: int, now_ms: int) -> None:
        """``count`` bytes from the front of the outbox have been handed to the socket."""
        if count:
            self._touched_ms = now_ms
        for done, part in enumerate(self.outbox):
            left = size_of(part) - self.head_offset
            if count < left:
                self.head_offset += count
                del self.outbox[:done]
                return
            count -= left
            self.head_offset = 0
            if isinstance(part, FileSlice):
                part.release()
        self._all_sent(now_ms)

    def _all_sent(self, now_ms: int) -> None:
        answer, self._answer = self._answer, None
        self.outbox = []
        self._end_ms = NEVER
        assert answer is not None
        if answer.close_after:
            self.close(CloseReason.LOGIN)
        elif self._throttle_end_ms > now_ms:
            self.state = THROTTLED
        else:
            self.state = READING

    # ---------------------------------------------------------------------------------- time

    def _longest(self, now_ms: int, timeout_ms: int, size: int) -> int:
        return now_ms + timeout_ms + size // MIN_BYTES_PER_MS

    def deadline_ms(self) -> int:
        """The time to call ``on_deadline``, unless something else happens before."""
        state, config = self.state, self._rules.config
        if state is READING or state is STARVED or state is IN_PROCESS:
            if self._end_ms != NEVER:
                return min(self._end_ms, self._touched_ms + config.socket_frame_timeout_ms)
            # Also with a request in process. Otherwise a client that asks for a long wait and goes
            # away would hold its descriptor for all that time.
            idle_ms = config.connections_max_idle_ms
            if state is READING and not self.info.is_logged_in:  # it may be anybody
                timeout_ms = config.socket_frame_timeout_ms
                idle_ms = timeout_ms if idle_ms < 0 else min(idle_ms, timeout_ms)
            return self._touched_ms + idle_ms if idle_ms >= 0 else NEVER
        if state is SENDING:
            return min(self._end_ms, self._touched_ms + config.socket_send_timeout_ms)
        if state is DELAYED:
            return self._end_ms
        return self._throttle_end_ms if state is THROTTLED else NEVER

    def on_deadline(self, now_ms: int) -> None:
        """Do what is due now, which may be nothing."""
        if now_ms < self.deadline_ms():
            return
        if self.state is DELAYED:
            assert self._answer is not None
            self._touched_ms = now_ms
            self._begin_sending(self._answer, now_ms)
        elif self.state is THROTTLED:
            self._touched_ms = now_ms
            self.state = READING
        else:
            self.close(CloseReason.EXPIRED)

    # ----------------------------------------------------------------------------------- end

    @property
    def is_quiet(self) -> bool:
        """Whether no request is in process and no answer on its way. A server that stops may then
        close it.
        """
        return self.state not in (
            IN_PROCESS,
            DELAYED,
            SENDING,
        )

    def close(self, reason: CloseReason) -> None:
        """Give back memory and files. Idempotent; the first reason counts."""
        if self.state is CLOSED:
            return
        self.close_reason = reason
        if self.reader.is_large and self._reserved:
            self._rules.memory.end(self, self._reserved)
        self.state = CLOSED
        if self._reserved:
            self._rules.memory.release(self.take_reservation())
        parts = self.outbox
        if not parts and self._answer is not None:
            parts = _parts(self._answer)
        self._answer, self.outbox = None, []
        release_files(parts)


def _refusal(api_key: int, api_version: int) -> RequestRefusedError:
    return RequestRefusedError(f"API {api_key} in version {api_version} is not served")


def _parts(answer: Send) -> list[Buffer | FileSlice]:
    return cast("list[Buffer | FileSlice]", answer.buffers)
