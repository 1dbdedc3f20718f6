"""The number of copies that may be lost at once.

A protocol with min.insync.replicas = n promises to survive n − 1 replicas that forget, counted from
the time when all were in sync. A replica that stopped uncleanly counts as one that may have
forgotten (KIP-966). So if one really did, unclean stops of the others are limited too.
"""

from __future__ import annotations


class LossBudget:
    """Counts the copies that are lost, and decides whether another may be.

    Args:
        tolerated: how many replicas may forget at once.
        power_loss_is_safe: whether everything replicated is synced first (flush=ack).
    """

    def __init__(self, tolerated: int, *, power_loss_is_safe: bool) -> None:
        self._tolerated = tolerated
        self.power_loss_is_safe = power_loss_is_safe
        self._unclean: set[int] = set()
        self._lossy: set[int] = set()
        self._damaged: set[int] = set()
        self._booked: dict[int, bool] = {}  # faults that wait in a disk → whether they forget

    def may_stop(self, *brokers: int) -> bool:
        """Whether these processes may die with everything that they wrote intact."""
        return not self._lossy or len(self._unclean.union(brokers)) <= self._tolerated

    def may_lose_power(self, broker: int) -> bool:
        return self.may_stop(broker) if self.power_loss_is_safe else self.may_forget(broker)

    def may_forget(self, broker: int) -> bool:
        """Whether records that this broker acknowledged may be lost or damaged."""
        return len(self._unclean | {broker}) <= self._tolerated

    def stopped(self, broker: int, *, forgets: bool = False) -> None:
        """Note an unclean stop."""
        self._unclean.add(broker)
        if forgets:
            self._lossy.add(broker)

    def book(self, broker: int, *, forgets: bool = False) -> None:
        """Note that it may stop uncleanly at any time until ``unbook``."""
        self._booked[broker] = self._booked.get(broker, False) or forgets
        self.stopped(broker, forgets=forgets)

    def unbook(self, broker: int) -> None:
        self._booked.pop(broker, None)

    def damaged(self, broker: int) -> None:
        """Note that its disk has wrong bytes that may be found later."""
        self.stopped(broker, forgets=True)
        self._damaged.add(broker)

    def wiped(self, broker: int) -> None:
        self.stopped(broker, forgets=True)
        self._damaged.discard(broker)

    def is_damaged(self, broker: int) -> bool:
        return broker in self._damaged

    def forgotten(self, broker: int) -> bool:
        """Whether it has lost records since all were in sync."""
        return broker in self._lossy

    def all_in_sync(self) -> None:
        """Restart the count, because every replica is in every ISR.

        Faults that wait in disks still count.
        """
        self._unclean &= self._damaged | self._booked.keys()
        self._lossy &= self._damaged | {b for b, forgets in self._booked.items() if forgets}
