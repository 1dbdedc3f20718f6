"""Messages that a script keeps back, lets go, repeats or loses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replication.simulator.world.network import SimMessage

CLIENT = -10  # the node of the clients


class Hold:
    """Messages that are kept back, in the order in which they were sent.

    ``settle`` lets what follows from a delivery happen. ``to_pass`` more messages are not kept.
    """

    def __init__(
        self,
        settle: Callable[[], None],
        source: int | None,
        target: int | None,
        kinds: tuple[type, ...],
    ) -> None:
        self.messages: list[SimMessage] = []
        self.on = True
        self.to_pass = 0
        self.let_clients = False  # what clients send, and what they get
        self._settle = settle
        self._wanted = source, target, kinds

    def takes(self, message: SimMessage) -> bool:
        source, target, kinds = self._wanted
        meant = (
            self.on
            and not (self.let_clients and CLIENT in (message.source, message.target))
            and source in (None, message.source)
            and target in (None, message.target)
            and (not kinds or isinstance(message.content, kinds))
        )
        if meant and self.to_pass:
            self.to_pass -= 1
            return False
        return meant

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

    def let_pass(self, count: int) -> None:
        """Let ``count`` messages go: first what waits here, then what comes."""
        self.to_pass = count
        while self.to_pass and self.messages:
            self.to_pass -= 1
            self.deliver()

    def drop(self) -> Any:
        """Lose the oldest: who sent the request hears that the connection broke."""
        message = self.messages.pop(0)
        message.lose()
        self._settle()
        return message.content

    def lose(self, broker: int) -> None:
        """Break the connections of a broker that went down."""
        lost = [message for message in self.messages if broker in message[:2]]
        self.messages = [message for message in self.messages if broker not in message[:2]]
        for message in lost:
            message.lose()

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
