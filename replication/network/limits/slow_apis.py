"""Which APIs are slow at present, though their requests are quick as a rule."""

from __future__ import annotations

QUICK_NS = 5_000_000  # others wait so long at most, once in a while
_SLOW_FOR_NS = 1_000_000_000
_STRIKE = 4
_STRIKES_MAX = 8


class SlowApis:
    """What one network thread has seen of the APIs that it serves itself.

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
