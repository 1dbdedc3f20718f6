"""A coordinator whose answers get lost, before or after the call was carried out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replication.coordination import CoordinatorService, CoordinatorUnavailableError

CALLS = ("create", "get", "set", "delete", "children", "transact", "watch")


class LosingService:
    """Every session of ``service`` asks ``loses(method, path)`` what happens to each call.

    Args:
        loses: None for nothing, ``before`` or ``after`` it is carried out. Method ``connect`` has
            the path "".
    Attributes:
        made: (method, path) of every call so far.
    """

    def __init__(
        self, service: CoordinatorService, loses: Callable[[str, str], str | None]
    ) -> None:
        self.service = service
        self.loses = loses
        self.made: list[tuple[str, str]] = []

    def connect(self) -> Any:
        return self._ask("connect", "", lambda: LosingSession(self, self.service.connect()))

    def close(self) -> None:
        self.service.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)

    def _ask(self, method: str, path: str, call: Callable[[], Any]) -> Any:
        self.made.append((method, path))
        lost = self.loses(method, path)
        if lost != "before":
            result = call()
            if lost is None:
                return result
            if method == "connect":
                result.abandon()
        raise CoordinatorUnavailableError(f"{method} {path}: no answer")


class LosingSession:
    def __init__(self, service: LosingService, session: Any) -> None:
        self._service = service
        self._session = session

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._session, name)
        if name not in CALLS:
            return value

        def call(first: Any, *args: Any, **options: Any) -> Any:
            path = first if isinstance(first, str) else next((op.path for op in first), "")
            return self._service._ask(name, path, lambda: value(first, *args, **options))

        return call

    def abandon(self) -> None:
        """A session that nobody knows of ends by its timeout."""
        getattr(self._session, "abandon", lambda: None)()


def once(number: int, how: str) -> Callable[[str, str], str | None]:
    """Lose the answer to the call of this number, the first being 0."""
    left = [number]

    def loses(method: str, path: str) -> str | None:
        left[0] -= 1
        return how if left[0] == -1 else None

    return loses
