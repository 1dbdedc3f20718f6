"""What a registration proves."""

from __future__ import annotations

import pytest

from replication.state import BrokerRegistration


@pytest.mark.parametrize(
    ("previous", "remembered", "clean"),
    [
        (-1, 7, False),  # an unclean start
        (7, 7, True),  # the epoch of the clean stop
        (7, 9, True),  # a later session of the process that started with it
        (9, 7, False),  # another process was there in between
        (-1, -1, False),
        (-1, -2, False),  # the node could not be read
        (0, 0, True),
    ],
)
def test_nothing_was_lost_since_the_epoch_that_it_names(
    previous: int, remembered: int, clean: bool
) -> None:
    registration = BrokerRegistration(1, previous_broker_epoch=previous)
    assert registration.is_clean_since(remembered) is clean
