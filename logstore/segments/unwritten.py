"""What a crash may have left in the page cache alone (docs/decisions/0006)."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from logstore.common.config import MAX_INT
from logstore.kernels import SCAN_INCOMPLETE, RecoveryScan
from logstore.storage.base import File

WINDOW = 2 << 20  # bytes read and written at a time


@dataclass(slots=True)
class Unwritten:
    """The batches ``[begin, end)`` of a ``.log``, which are not written again yet.

    After a failed sync the kernel shows pages that never reached the disk, and marks them clean:
    the sync of the next process would succeed without them.
    """

    begin: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        return max(self.end - self.begin, 0)

    def cut(self, position: int) -> None:
        """Forget what lies from ``position`` on."""
        self.end = min(self.end, position)

    def write(self, file: File, base_offset: int, size: int) -> None:
        """Write at least ``size`` bytes of them to where they are.

        Raises:
            OSError: the disk refused, or a batch is not there any more (EIO).
        """
        stop = self.begin + size
        while self.begin < min(stop, self.end):
            self.begin += _write_some(file, base_offset, self.begin, self.end)


def _write_some(file: File, base_offset: int, begin: int, end: int) -> int:
    """Write a window of batches; returns their bytes.

    They are checked, because the kernel may have dropped such a page since it was read.
    """
    window = WINDOW
    while True:
        want = min(window, end - begin)
        scan = RecoveryScan(base_offset, MAX_INT)
        with file.view(begin, want) as view:
            done = scan.feed(view, begin, end_of_file=False)
            if done:
                file.write_at(begin, view[:done])
                return done
        larger = WINDOW + scan.needed_bytes
        if scan.status != SCAN_INCOMPLETE or want < window or larger <= window:
            raise OSError(errno.EIO, f"the batch at byte {begin} is gone", file.path)
        window = larger
