"""What a registration proves."""

from __future__ import annotations

import pytest

from replication.state import BrokerRegistration


@pytest.mark.parametrize(
    ("previous", "first", "remembered", "clean"),
    [
        (-1, -1, 7, False),  # an unclean start
        (7, -1, 7, True),  # the epoch of the clean stop
        (7, -1, 9, False),  # a copy of the directories as they were once
        (9, -1, 7, False),  # another process was there in between
        (7, 8, 7, True),  # no controller has seen the first session
        (7, 8, 8, True),
        (7, 8, 9, True),  # nor lost anything in a later one
        (-1, 8, 9, True),
        (-1, 8, 7, False),
        (5, 9, 7, False),  # such a copy, in its second session
        (-1, -1, -1, False),
        (-1, -1, -2, False),  # the node could not be read
        (0, -1, 0, True),
        (-1, 0, 0, True),
    ],
)
def test_nothing_was_lost_since_the_epochs_that_it_names(
    previous: int, first: int, remembered: int, clean: bool
) -> None:
    registration = BrokerRegistration(1, previous_broker_epoch=previous, first_broker_epoch=first)
    assert registration.is_clean_since(remembered) is clean
