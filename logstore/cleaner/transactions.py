"""Aborted transactions, and whether a pass has met their data.

Kafka's ``CleanedTransactionMetadata``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from logstore.format.index_entry import AbortedTxn


@dataclass(slots=True)
class _Aborted:
    txn: AbortedTxn
    has_data: bool = False


class PassTransactions:
    """Follows the transactions of a pass. Call it with every batch, in the order of the log."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, AbortedTxn]] = []  # a heap by first offset
        self._aborted: dict[int, _Aborted] = {}  # by producer id: transactions that are open here
        self._committed: set[int] = set()  # producers whose open transaction has data
        self.kept: list[AbortedTxn] = []
        """Aborted transactions that still have data before their marker: their index entries stay.

        The writer of the index removes them from here (F-306).
        """

    def add_aborted(self, txns: Iterable[AbortedTxn]) -> None:
        """Add what the indexes say about the next offsets. Adding an entry twice is harmless."""
        for txn in txns:
            heapq.heappush(self._coming, (txn.first_offset, txn))

    def on_data(self, producer_id: int, transactional: bool, last_offset: int) -> bool:
        """Whether the batch is part of an aborted transaction, so its records go (F-302)."""
        self._advance(last_offset)
        if not transactional:
            return False
        aborted = self._aborted.get(producer_id)
        if aborted is None:
            self._committed.add(producer_id)
            return False
        aborted.has_data = True
        return True

    def on_marker(self, producer_id: int, is_commit: bool | None, last_offset: int) -> bool:
        """Whether no data of the marker's transaction is left, so the marker may be removed too.

        ``is_commit`` is None for a control batch that does not end a transaction, which stays.
        """
        self._advance(last_offset)
        if is_commit is None:
            return False
        if is_commit:
            had_data = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_data
        aborted = self._aborted.pop(producer_id, None)
        if aborted is None or not aborted.has_data:
            return True
        self.kept.append(aborted.txn)
        return False

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            txn = heapq.heappop(self._coming)[1]
            self._aborted.setdefault(txn.producer_id, _Aborted(txn))
