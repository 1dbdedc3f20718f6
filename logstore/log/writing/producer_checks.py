"""Check the producers of an append, and decide what it changes in their state. No disk."""

from __future__ import annotations

from typing import NamedTuple

from logstore.common.types import Buffer
from logstore.format.index_entry import AbortedTxn
from logstore.kernels import AppendInfo
from logstore.log.writing.validation import producer_batches
from logstore.segments.producer_state import (
    AppendOrigin,
    CompletedTxn,
    ProducerAppend,
    ProducerStateManager,
    TransactionCheck,
)


class ProducerUpdates(NamedTuple):
    """What an append changes in the state of its producers, in the order of its batches."""

    appends: list[ProducerAppend]
    completed: list[CompletedTxn]
    aborted: list[AbortedTxn]

    @property
    def idempotent(self) -> bool:
        """Whether they may be applied twice, which no transaction may."""
        return not self.completed and not any(append.started for append in self.appends)


def check_producers(
    producers: ProducerStateManager,
    data: Buffer,
    size: int,
    first_offset: int,
    origin: AppendOrigin,
    log_start_offset: int,
    check: TransactionCheck,
) -> AppendInfo | ProducerUpdates:
    """Check sequences and transactions (F-183 … F-195). A duplicate returns its old offsets."""
    appends: dict[int, ProducerAppend] = {}
    updates = ProducerUpdates([], [], [])
    open_transactions: dict[int, int] | None = None  # producer → first offset, at this batch
    for batch in producer_batches(data, size, first_offset):
        append = appends.get(batch.producer_id)
        if append is None:
            append = producers.prepare(batch.producer_id, origin, check)
            appends[batch.producer_id] = append
            if origin is AppendOrigin.CLIENT:
                known = append.entry.find_duplicate(batch)
                if known is not None:
                    return AppendInfo(
                        known.first_offset,
                        known.last_offset,
                        known.timestamp,
                        known.timestamp,  # as Kafka answers, whatever the topic's timestamps are
                        log_start_offset,
                        0,
                        0,
                        True,
                    )
        if open_transactions is None:
            open_transactions = producers.open_transactions()
        completed = append.append(batch)
        if append.entry.current_txn_first_offset >= 0:
            open_transactions[batch.producer_id] = append.entry.current_txn_first_offset
        else:
            open_transactions.pop(batch.producer_id, None)
        if completed is not None:
            updates.completed.append(completed)
            if completed.is_aborted:
                stable = min(open_transactions.values(), default=completed.last_offset + 1)
                aborted = AbortedTxn(
                    completed.producer_id, completed.first_offset, completed.last_offset, stable
                )
                updates.aborted.append(aborted)
    updates.appends.extend(appends.values())
    return updates
