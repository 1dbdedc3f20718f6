"""Messages that a script keeps back, lets go, repeats or loses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replication.simulator.world.network import SimMessage

CLIENT = -10  # the node of the clients


class Hold:
    """Messages that are kept back, in the order in which they were sent.

    ``settle`` lets what follows from a delivery happen.
    """

    def __init__(
        self,
        settle: Callable[[], None],
        source: int | None,
        target: int | None,
        kind: type | None,
    ) -> None:
        self.messages: list[SimMessage] = []
        self.on = True
        self.let_clients = False  # what clients send, and what they get
        self._settle = settle
        self._wanted = source, target, kind

    def takes(self, message: SimMessage) -> bool:
        source, target, kind = self._wanted
        return (
            self.on
            and not (self.let_clients and CLIENT in (message.source, message.target))
            and source in (None, message.source)
            and target in (None, message.target)
            and (kind is None or isinstance(message.content, kind))
        )

    @property
    def contents(self) -> list[Any]:
        return [message.content for message in self.messages]

    def deliver(self) -> Any:
        """Let the oldest go."""
        message = self.messages.pop(0)
        message.go(message.content)
        self._settle()
        return message.content

    def repeat(self) -> Any:
        """Let the oldest go, and keep it to let it go again."""
        self.messages.insert(0, self.messages[0])
        return self.deliver()

    def drop(self) -> Any:
        """Lose the oldest: who sent the request hears that the connection broke."""
        message = self.messages.pop(0)
        message.lose()
        self._settle()
        return message.content

    def lose_all(self) -> None:
        """Lose everything that is held, and keep nothing back any more."""
        self.on = False
        while self.messages:
            self.drop()

    def end(self) -> None:
        """Keep nothing back any more."""
        self.on = False
        while self.messages:
            self.deliver()
