"""What a registration proves."""

from __future__ import annotations

from replication.common.state import BrokerRegistration
from tests.support.cases import for_each


@for_each(
    "previous, earlier, remembered, clean",
    [
        (-1, (), 7, False),  # an unclean start
        (7, (), 7, True),  # the epoch of the clean stop
        (7, (9, 11), 7, True),  # two sessions ended before a controller looked
        (7, (9, 11), 9, True),
        (-1, (9, 11), 11, True),
        (-1, (9, 11), 7, False),  # the process before it did not stop cleanly
        (7, (9, 13), 11, False),  # another process had this id, and a disk of its own, in between
        (7, (), 9, False),  # the disk was put back to what it was at an earlier stop
        (9, (), 7, False),
        (-1, (), -1, False),
        (-1, (), -2, False),  # the node could not be read
        (0, (), 0, True),
    ],
)
def test_what_it_continues(
    previous: int, earlier: tuple[int, ...], remembered: int, clean: bool
) -> None:
    registration = BrokerRegistration(1, previous_broker_epoch=previous, earlier_epochs=earlier)
    assert registration.continues(remembered) is clean
