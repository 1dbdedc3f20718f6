"""The states of a candidate for controller, and one table of transitions."""

from __future__ import annotations

from enum import Enum


class ControllerState(Enum):
    OUT = "out"
    """No session with the coordinator, so it does not stand."""
    WATCHING = "watching"
    """A session whose watches for controllers are not complete yet."""
    STANDING = "standing"
    """Stands for election."""
    FOLLOWING = "following"
    """Another broker is the controller, and this one waits for its end."""
    TAKING_OVER = "taking over"
    """Elected: reads the tree, and finishes the work of the last controller. Serves no requests."""
    ACTIVE = "active"
    """The take-over is complete: events are run, requests are served."""


_S = ControllerState


class Happened(Enum):
    """An event: its words, the states in which it counts, and the state that follows."""

    SESSION_BEGAN = "session began", (*_S,), _S.WATCHING
    SESSION_ENDED = "session ended", (*_S,), _S.OUT
    WATCHES_SET = "watches set", (_S.WATCHING,), _S.STANDING
    OTHER_ELECTED = "other elected", (_S.STANDING,), _S.FOLLOWING
    OFFICE_CHANGED = "office changed", (_S.FOLLOWING,), _S.STANDING
    """The controller's node is gone or was replaced."""
    ELECTED = "elected", (_S.STANDING,), _S.TAKING_OVER
    TOOK_OVER = "took over", (_S.TAKING_OVER,), _S.ACTIVE
    DEPOSED = "deposed", (_S.TAKING_OVER, _S.ACTIVE), _S.STANDING
    """Another epoch has begun, or the node was removed."""
    FAILED = "failed", (_S.TAKING_OVER, _S.ACTIVE), _S.TAKING_OVER
    """An unexpected failure: the known state may be wrong, and is read again."""

    def __init__(
        self, text: str, before: tuple[ControllerState, ...], after: ControllerState
    ) -> None:
        self.text, self.before, self.after = text, before, after

    def leads_from(self, state: ControllerState) -> ControllerState | None:
        """The next state; None if the event is not expected and changes nothing."""
        return self.after if state in self.before else None
