"""Limits that keep clients from taking too much: connections, memory, bytes a second, threads.

Each limit counts by itself and closes nothing: ``acceptor``, ``processor`` and ``server`` ask it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum

from logstore.common.config import MAX_INT, MAX_LONG
from logstore.common.errors import ConfigError
from replication.network.config import NetworkConfig


class RecentTimes:
    """Times by name; old ones are forgotten, because a client can make up names without end. Not
    safe for threads.

    Each new name makes it check two others, those that it checked longest ago. So no call checks
    all names, and there are never many more names than have a recent time.
    """

    def __init__(self) -> None:
        self._times: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def get(self, name: str) -> float:
        """The time of a name; 0 where it is not known."""
        return self._times.get(name, 0.0)

    def put(self, name: str, time: float, old: float) -> None:
        """Set the time of ``name``. Times up to ``old`` need not be known any more."""
        times = self._times
        if name not in times:
            for _ in range(min(2, len(times))):
                oldest = next(iter(times))
                if times[oldest] <= old:
                    del times[oldest]
                else:
                    times.move_to_end(oldest)
        times[name] = time


class MemoryPool:
    """Counts the bytes of large frames, and holds none (Kafka's ``SimpleMemoryPool``). From any
    thread.

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


QUICK_NS = 5_000_000  # others wait so long at most, once in a while
_SLOW_FOR_NS = 1_000_000_000
_STRIKE = 4
_STRIKES_MAX = 8


class SlowApis:
    """Which of the APIs that one network thread serves itself are slow at present.

    On a busy machine a quick request is slow now and then, because its thread had no processor. A
    topic that syncs each append, or a cold disk, is slow again and again. So a slow request adds
    four, a very slow one adds eight, and a quick one takes one off. At eight the API counts as slow
    for a second.
    """

    __slots__ = ("_until_ns", "strikes")

    def __init__(self) -> None:
        self.strikes: dict[int, int] = {}  # by API; those that have any
        self._until_ns: dict[int, int] = {}

    def has(self, api_key: int, now_ns: int) -> bool:
        """Whether the API is slow."""
        return now_ns < self._until_ns.get(api_key, 0)

    def note(self, api_key: int, took_ns: int, now_ns: int) -> None:
        """Note that a request of the API was handled in ``took_ns``. A quick one need not be noted
        while the API has no strikes."""
        strikes = self.strikes.pop(api_key, 0)
        if took_ns > QUICK_NS:
            strikes += _STRIKE if took_ns <= 4 * QUICK_NS else 2 * _STRIKE
            if strikes >= _STRIKES_MAX:
                strikes = 0
                self._until_ns[api_key] = now_ns + _SLOW_FOR_NS
        elif strikes:
            strikes -= 1
        if strikes:
            self.strikes[api_key] = strikes


class Refusal(Enum):
    """The reason to close a connection as soon as it came."""

    TOO_MANY = "too many of the address"
    TOO_FAST = "too fast from the address"


class ConnectionQuotas:
    """Counts connections, in all and for each address (Kafka's ``ConnectionQuotas``). From any
    thread.

    A connection above the bound for all waits in the backlog of the listener until another is
    closed, as in Kafka; one above the bound for its address is closed at once. Connections of
    brokers count, and no bound for all keeps them waiting.

    Attributes:
        refused: how many were closed at once; read by anybody.
    """

    def __init__(self, config: NetworkConfig, now_ms: Callable[[], int]) -> None:
        self._max = config.max_connections
        self._max_per_ip = config.max_connections_per_ip
        self._overrides = _parse_overrides(config.max_connections_per_ip_overrides)
        self._rate = config.max_connection_creation_rate
        self._rate_per_ip = config.max_connection_creation_rate_per_ip
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._total = 0
        self.refused = dict.fromkeys(Refusal, 0)
        # When the next one is due if all come evenly; at most one second in the past, so that a
        # second's worth may come at once after a quiet one.
        self._due_ms = 0.0
        self._due_ms_by_ip = RecentTimes()

    @property
    def total(self) -> int:
        return self._total

    def wait_ms(self) -> int | None:
        """The ms in which to accept nothing; None: until a connection is closed."""
        with self._lock:
            if self._total >= self._max:
                return None
            return max(0, round(self._due_ms - self._now_ms()))

    def try_add(self, host: str, *, is_bounded: bool = True) -> bool:
        """Count a connection that was accepted; False if its address has too many already, or they
        come too fast.

        Args:
            is_bounded: it had to wait for its turn among all.
        """
        with self._lock:
            now_ms = self._now_ms()
            if is_bounded:
                self._due_ms = max(self._due_ms, now_ms - 1000.0) + 1000.0 / self._rate
            count = self._counts.get(host, 0)
            if count >= self._overrides.get(host, self._max_per_ip):
                self.refused[Refusal.TOO_MANY] += 1
                return False
            if self._rate_per_ip < MAX_INT and not self._is_due(host, now_ms):
                self.refused[Refusal.TOO_FAST] += 1
                return False
            self._counts[host] = count + 1
            self._total += 1
            return True

    def _is_due(self, host: str, now_ms: int) -> bool:
        due_ms = self._due_ms_by_ip.get(host)
        if due_ms > now_ms:
            return False
        quiet_ms = now_ms - 1000.0
        next_ms = max(due_ms, quiet_ms) + 1000.0 / self._rate_per_ip
        self._due_ms_by_ip.put(host, next_ms, quiet_ms)
        return True

    def remove(self, host: str) -> None:
        with self._lock:
            self._total -= 1
            count = self._counts[host] - 1
            if count:
                self._counts[host] = count
            else:
                del self._counts[host]


def _parse_overrides(pairs: tuple[str, ...]) -> Mapping[str, int]:
    overrides = {}
    for pair in pairs:
        host, _, count = pair.rpartition(":")
        if not host or not count.isascii() or not count.isdigit():
            raise ConfigError(f"max.connections.per.ip.overrides: {pair!r} is not host:count")
        overrides[host.strip("[]")] = int(count)
    return overrides


class Direction(Enum):
    PRODUCE = "produce"
    FETCH = "fetch"


class ClientQuota:
    """The bytes a second that each client id may write or read (Kafka's ``ClientQuotaManager``).
    Any thread may call it.

    A client that was quiet for the whole window may send a window's worth at once. What goes beyond
    is owed, and the client is held back until the debt is gone at the rate of its quota.

    Args:
        rate: bytes a second.
        window_ms: what is averaged over.
        now_ms: monotonic.
    """

    def __init__(self, rate: int, window_ms: int, now_ms: Callable[[], int]) -> None:
        self._per_ms = rate / 1000
        self._window_ms = window_ms
        self._now_ms = now_ms
        self._lock = threading.Lock()
        # When each client has paid for everything that it sent so far.
        self._paid_ms = RecentTimes()

    def record(self, client_id: str, size: int) -> int:
        """Count ``size`` bytes. Returns for how many ms the client is to be held back."""
        now_ms = self._now_ms()
        with self._lock:
            quiet_ms = now_ms - self._window_ms
            paid_ms = max(self._paid_ms.get(client_id), quiet_ms) + size / self._per_ms
            self._paid_ms.put(client_id, paid_ms, quiet_ms)
        # A single request holds nobody back for longer than a window.
        return min(max(0, round(paid_ms - now_ms)), self._window_ms)


class ClientQuotas:
    """The quotas of a broker, by direction."""

    def __init__(self, config: NetworkConfig, now_ms: Callable[[], int]) -> None:
        window_ms = (config.quota_window_num - 1) * config.quota_window_size_seconds * 1000
        rates = {
            Direction.PRODUCE: config.quota_producer_default,
            Direction.FETCH: config.quota_consumer_default,
        }
        self._quotas = {
            direction: ClientQuota(rate, window_ms, now_ms)
            for direction, rate in rates.items()
            if rate < MAX_LONG
        }

    def of(self, direction: Direction) -> ClientQuota | None:
        """The quota of a direction; None if it has no bound."""
        return self._quotas.get(direction)
