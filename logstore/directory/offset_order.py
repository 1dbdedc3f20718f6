"""The order of the batches of a split, by their headers.

No checksum covers a base offset. A wrong one would end a read too early, or hide records from one,
so what is read must ascend, up to the end of the split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from checkpoints.loggers import get_logger
from logstore.common.errors import CorruptBatchError
from logstore.directory.columns import ArrowTable
from logstore.directory.splits import Split

logger = get_logger(__name__)


@dataclass(slots=True)
class AscendingOffsets:
    """Compares the batches of ``split`` with what is before and behind each.

    An entry of an older format is known by its last offset (F-103), which ascends too.
    """

    split: Split
    last: int = field(init=False)
    """The last offset of the batch before."""

    def __post_init__(self) -> None:
        self.last = self.split.above

    def check(self, table: ArrowTable, position: int) -> None:
        """Take note of the batches of ``table``, which begins at ``position``.

        Raises:
            CorruptBatchError: one does not begin above the one before, or reaches what follows the
                split.
        """
        below = self.split.below
        bases, lasts = table.column("base_offset"), table.column("last_offset")
        before = pa.concat_arrays([pa.array([self.last], pa.int64()), lasts[:-1]])
        falls = pc.less_equal(bases, before)
        row = pc.index(pc.or_(falls, pc.greater_equal(lasts, below)), True).as_py()
        if row < 0:
            self.last = lasts[-1].as_py()
            return
        if falls[row].as_py():
            found = f"{bases[row]} after {before[row]}"
        else:
            found = f"up to {lasts[row]}, and what follows begins at {below}"
        reason = f"offsets do not ascend from here on: {found}"
        at = position + table.cells("position")[row]
        raise CorruptBatchError(self.split.path, at, reason)

    def fitting(self, table: ArrowTable, following: int | None) -> pa.Array:
        """As ``check``, but say which batches fit, and warn of the others.

        Of two neighbours that do not ascend the first is left out where the second would fit
        without it. ``following`` is the base offset of the batch behind the table.
        """
        bases, lasts = table.cells("base_offset"), table.cells("last_offset")
        fits = [
            valid == 1 and self.split.above < base and last < self.split.below
            for valid, base, last in zip(table.cells("valid"), bases, lasts, strict=True)
        ]
        nexts = _next_bases(bases, fits, following)
        for row, later in enumerate(nexts):
            is_above = later is not None and self.last < later <= lasts[row]
            fits[row] = fits[row] and self.last < bases[row] and not is_above
            if fits[row]:
                self.last = lasts[row]
            elif table.cells("valid")[row] == 1:
                text = "%s: dropped a batch of %d bytes at offset %d: offsets do not ascend"
                logger.warning(text, self.split.path, table.cells("size")[row], bases[row])
        return pa.array(fits, pa.bool_())


def _next_bases(
    bases: Sequence[int], fits: Sequence[bool], following: int | None
) -> list[int | None]:
    """For each batch the base offset of the next one that may fit."""
    found: list[int | None] = []
    for base, fit in zip(reversed(bases), reversed(fits), strict=True):
        found.append(following)
        following = base if fit else following
    return found[::-1]
