"""How many bytes large frames may take together (Kafka's ``SimpleMemoryPool``)."""

from __future__ import annotations

import threading
from collections.abc import Callable


class MemoryPool:
    """Counts bytes, and holds none. From any thread.

    A frame takes memory as it grows, never what it announces, so an announcement alone takes none.
    If frames that still grow have taken all the room, the one that began first may grow past the
    bound. So one of them always comes to its end, and the bound is exceeded by one frame at most.
    If requests in process have taken all the room, every frame waits for them.

    Args:
        size: bytes; not positive for no bound.
        on_room: called, from any thread, when a frame that was refused may try again. It does not
            block.
    """

    def __init__(self, size: int, on_room: Callable[[], None]) -> None:
        self._size = size
        self._on_room = on_room
        self._lock = threading.Lock()
        self._used = 0
        self._growing: dict[object, None] = {}  # frames, in the order of their beginnings
        self._whole = 0  # bytes of frames that grow no more, which will be released
        self._refused = False

    @property
    def used(self) -> int:
        return self._used

    def begin(self, frame: object, size: int) -> None:
        """Note that a frame begins. ``size`` of its bytes are there already."""
        with self._lock:
            self._growing[frame] = None
            self._used += size

    def try_grow(self, frame: object, size: int) -> bool:
        """Take memory for a frame. False: there is no room now, and ``on_room`` will be called."""
        with self._lock:
            is_full = 0 < self._size < self._used + size
            if is_full and (self._whole or next(iter(self._growing)) is not frame):
                self._refused = True
                return False
            self._used += size
            return True

    def end(self, frame: object, size: int) -> None:
        """Note that a frame grows no more. Its ``size`` bytes are in use until ``release``."""
        with self._lock:
            del self._growing[frame]
            self._whole += size
            notify, self._refused = self._refused, False
        if notify:
            self._on_room()

    def release(self, size: int) -> None:
        """Give back the memory of a frame that ended."""
        with self._lock:
            self._used -= size
            self._whole -= size
            notify, self._refused = self._refused, False
        if notify:
            self._on_room()
