"""What a compacted log must hold, whatever its cleaner did and whenever it was cut short.

Told without segments or batches, by records alone: the newest record of each key is there, an older
one never comes back after it, nothing is invented or moved, and nothing is touched that could not
be cleaned yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Put(NamedTuple):
    """One record that was appended; ``value`` None deletes the key."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int


@dataclass(slots=True)
class Model:
    """
    Attributes:
        puts: committed records by offset, markers and aborted records left out.
        aborted: offsets of records that were aborted.
        cleaned_to: no pass went beyond it.
        decided: markers below it were believed by a pass: nobody may cut them off.
        seen_ms: the earliest time of a pass over each offset, from which its delete horizon may
            count. Clocks jump: it need not be the first pass.
        last_pass_ms: the latest time of a pass.
    """

    retention_ms: int
    puts: dict[int, Put] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    start: int = 0
    cleaned_to: int = 0
    decided: int = 0
    seen_ms: dict[int, int] = field(default_factory=dict)
    last_pass_ms: int = 0

    def cut(self, end: int) -> None:
        self.puts = {o: put for o, put in self.puts.items() if o < end}
        self.aborted = {o for o in self.aborted if o < end}
        self.seen_ms = {o: ms for o, ms in self.seen_ms.items() if o < end}

    def note_pass(self, now_ms: int, end: int, log_end: int) -> None:
        """A pass over all below ``end`` begins; it may stop anywhere."""
        self.decided = max(self.decided, log_end)
        self.cleaned_to = max(self.cleaned_to, end)
        self.last_pass_ms = max(self.last_pass_ms, now_ms)
        for offset in self.puts:
            if offset < end:
                self.seen_ms[offset] = min(now_ms, self.seen_ms.get(offset, now_ms))

    def check(self, found: Sequence[Put], end: int) -> None:
        """``found``: what a reader of committed records sees from the log start on, in order."""
        offsets = [put.offset for put in found]
        assert offsets == sorted(set(offsets)), f"offsets do not ascend: {offsets}"
        for put in found:
            assert put.offset not in self.aborted, f"{put} was aborted"
            assert put == self.puts.get(put.offset), f"{put}, {self.puts.get(put.offset)} went in"
        there = set(offsets)
        newest = {put.key: put for _, put in sorted(self.puts.items()) if put.offset < end}
        last_read = {put.key: put for put in found}
        for key, put in newest.items():
            if put.offset < self.start:
                continue
            if put.value is not None:
                assert put.offset in there, f"the newest record of a key is lost: {put}"
            elif put.offset not in there:
                assert key not in last_read, f"{last_read[key]} is back, deleted by {put}"
                age = self.last_pass_ms - self.seen_ms.get(put.offset, self.last_pass_ms)
                assert put.offset in self.seen_ms, f"{put} is gone, and no pass was there"
                assert age >= self.retention_ms, f"{put} is gone after {age} ms"
        for offset, put in self.puts.items():
            if max(self.cleaned_to, self.start) <= offset < end:
                assert offset in there, f"{put} is gone, where no pass was"
