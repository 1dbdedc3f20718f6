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


class Happened(Enum):
    SESSION_BEGAN = "session began"
    SESSION_ENDED = "session ended"
    WATCHES_SET = "watches set"
    OTHER_ELECTED = "other elected"
    OFFICE_CHANGED = "office changed"
    """The controller's node is gone or was replaced."""
    ELECTED = "elected"
    TOOK_OVER = "took over"
    DEPOSED = "deposed"
    """Another epoch has begun, or the node was removed."""
    FAILED = "failed"
    """An unexpected failure: the known state may be wrong, and is read again."""


_S, _H = ControllerState, Happened


def next_state(state: ControllerState, happened: Happened) -> ControllerState | None:
    """The next state; None if the event is not expected and changes nothing."""
    match happened, state:
        case _H.SESSION_BEGAN, _:
            return _S.WATCHING
        case _H.SESSION_ENDED, _:
            return _S.OUT
        case _H.WATCHES_SET, _S.WATCHING:
            return _S.STANDING
        case _H.OTHER_ELECTED, _S.STANDING:
            return _S.FOLLOWING
        case _H.OFFICE_CHANGED, _S.FOLLOWING:
            return _S.STANDING
        case _H.ELECTED, _S.STANDING:
            return _S.TAKING_OVER
        case _H.TOOK_OVER, _S.TAKING_OVER:
            return _S.ACTIVE
        case _H.DEPOSED, _S.TAKING_OVER | _S.ACTIVE:
            return _S.STANDING
        case _H.FAILED, _S.TAKING_OVER | _S.ACTIVE:
            return _S.TAKING_OVER
        case _:
            return None
