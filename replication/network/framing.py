"""Bytes in, frames out: an ``i32`` length, then that many bytes (W-1).

A frame that fits into the buffer shared by all connections of a thread is cut out of what was
received. A larger one gets a buffer of its own, which grows with what has arrived, never by the
announced size (W-230). While large ones follow each other, one whose frame nobody holds any more
is used again, if the reader keeps buffers. Each error here closes its connection.
"""

from __future__ import annotations

from checkpoints.printable import printable
from logstore.common.errors import LogstoreError

SHARED_BYTES = 64 << 10
_GROWTH_BYTES = 1 << 20  # how far the buffer may be ahead of what has arrived
_PREFIX = 4
_HEADER_BYTES = 8  # key, version and correlation id: enough to refuse a large frame early
_ZEROS = bytes(_GROWTH_BYTES)
_NOTHING = memoryview(b"")


class NetworkError(LogstoreError):
    """Base; ``reason`` says what the other side did."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def _text(self) -> str:
        return printable(self.reason)


class FrameError(NetworkError):
    """The bytes are not a frame of the protocol, or one that is too large."""


class RequestRefusedError(NetworkError):
    """A request that this listener does not serve now."""


class TlsHandshakeError(NetworkError):
    """The other side speaks no TLS, or none that is allowed here."""


class FrameReader:
    """Assembles frames. ``window`` says where to receive, and ``received`` takes how much came.

    Args:
        max_size: of a frame, in bytes (``socket.request.max.bytes``).
        keeps_buffer: of the last large frame, until a small one comes.
    """

    __slots__ = (
        "_filled",
        "_frame",
        "_keeps_buffer",
        "_kept",
        "_size",
        "_spare",
        "_window",
        "is_large",
        "max_size",
    )

    def __init__(self, max_size: int, *, keeps_buffer: bool = False) -> None:
        self.max_size = max_size
        self._keeps_buffer = keeps_buffer
        self._spare: bytearray | None = None
        self._kept = _NOTHING  # received and not taken; it may hold several frames
        self._frame: bytearray | None = None  # a large frame, without its length
        self.is_large = False  # such a frame is being assembled
        self._filled = 0
        self._size = 0  # of the large frame
        self._window = _NOTHING

    @property
    def is_inside_frame(self) -> bool:
        """Whether bytes are there that ``next_frame`` has not taken."""
        return self._frame is not None or bool(self._kept)

    @property
    def has_next(self) -> bool:
        """Whether ``next_frame`` would give a frame, or raise."""
        if self._frame is not None:
            return self._filled == self._size
        kept = len(self._kept)
        if kept < _PREFIX:
            return False
        size = self.announced_size
        return not 0 < size <= self.max_size or kept >= _PREFIX + size

    @property
    def announced_size(self) -> int:
        """The size that the frame being assembled announces; 0 if it is not known."""
        if self._frame is not None:
            return self._size
        return int.from_bytes(self._kept[:_PREFIX], signed=True) if len(self._kept) >= 4 else 0

    @property
    def growth(self) -> int:
        """The bytes that the buffer of a large frame lacks before anything can be received."""
        frame = self._frame
        if frame is None or self._filled < len(frame):
            return 0
        return min(len(frame), _GROWTH_BYTES, self._size - self._filled)

    def grow(self) -> None:
        """Grow by ``growth``."""
        assert self._frame is not None
        self._frame += memoryview(_ZEROS)[: self.growth]

    def window(self, shared: memoryview) -> memoryview:
        """The place to receive into; never empty once ``growth`` is 0. It ends where a large frame
        ends, so that the bytes behind it stay in the socket.

        Args:
            shared: ``SHARED_BYTES`` that nobody else uses until ``received``.
        """
        if self._frame is None:
            self._window = shared
            kept = len(self._kept)
            if not kept:
                return shared
            shared[:kept] = self._kept
            return shared[kept:]
        self._window = memoryview(self._frame)[self._filled : self._size]
        return self._window

    def received(self, count: int) -> None:
        """``count`` bytes were put into the window, from its start; 0 gives the window back."""
        if self._frame is None:
            if count:
                self._kept = memoryview(bytes(self._window[: len(self._kept) + count]))
        else:
            self._window.release()
            self._filled += count
        self._window = _NOTHING

    def next_frame(self) -> memoryview | None:
        """The next whole frame, without its length. It owns its bytes.

        Raises:
            FrameError: its length is not positive, or too large (W-7).
        """
        if self._frame is not None:
            if self._filled < self._size:
                return None
            buffer, self._frame, self.is_large = self._frame, None, False
            if self._keeps_buffer:
                self._spare = buffer
            return memoryview(buffer)[: self._size]
        kept = self._kept
        if len(kept) < _PREFIX:
            return None
        size = int.from_bytes(kept[:_PREFIX], signed=True)
        if not 0 < size <= self.max_size:
            raise FrameError(f"a frame of {size} bytes; at most {self.max_size} are allowed")
        end = _PREFIX + size
        if len(kept) < end:
            return None
        self._kept = kept[end:] if len(kept) > end else _NOTHING
        self._spare = None
        return kept[_PREFIX:end]

    @property
    def whole_frame(self) -> memoryview | None:
        """What ``next_frame`` would give, with its length; None also for a large one."""
        kept = self._kept
        end = _PREFIX + int.from_bytes(kept[:_PREFIX], signed=True)
        return kept[:end] if _PREFIX < end <= len(kept) else None

    def drop_frame(self) -> None:
        """Take ``whole_frame``, if there is one, as it has been dealt with."""
        kept = self._kept
        if kept:
            self._kept = kept[_PREFIX + self.announced_size :] or _NOTHING
            self._spare = None

    def large_header(self) -> memoryview | None:
        """The first bytes of a frame that needs a buffer of its own; call ``begin_large`` next.

        None if there is no such frame, or too few of its bytes are there.
        """
        kept = self._kept
        if self._frame is not None or len(kept) < _PREFIX + _HEADER_BYTES:
            return None
        size = int.from_bytes(kept[:_PREFIX], signed=True)
        return kept[_PREFIX:] if _PREFIX + size > SHARED_BYTES else None

    def begin_large(self) -> int:
        """Give the frame of ``large_header`` a buffer of its own. Returns how many bytes it has."""
        self._size = self.announced_size
        start, spare, self._spare = self._kept[_PREFIX:], self._spare, None
        self._filled = len(start)
        if spare is not None and _is_free(spare):
            spare[: len(start)] = start
            self._frame = spare
        else:
            self._frame = bytearray(start)
        self._kept = _NOTHING
        self.is_large = True
        return self._filled


def _is_free(buffer: bytearray) -> bool:
    """Whether nobody has a view of it: it cannot change its size otherwise."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
