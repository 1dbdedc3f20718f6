"""What real threads did and saw, and whether some order of it keeps every promise.

Nobody knows when exactly a call took effect, only that it did between its beginning and its end.
So these checks ask less than the model of the scheduler: a record counts as there, or as gone, only
where no order of the calls says otherwise. They run when all threads are done.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

NEVER = 1 << 62


class Broken(AssertionError):
    """A promise was broken."""


class Life(NamedTuple):
    """One record: where its append put it, the batch's last offset, and when the append ran."""

    offset: int
    last: int
    called: int
    acknowledged: int
    aborted: bool


UNKNOWN = Life(-1, NEVER, 0, NEVER, False)
"""A record whose append has not returned."""


class Removal(NamedTuple):
    """A truncation to ``target``; −1 takes everything."""

    called: int
    returned: int
    target: int


class Answer(NamedTuple):
    """Records that a reader got for ``[position, …)``, and when.

    ``whole``: nothing between ``position`` and the first record may be left out; ``start`` is the
    log start that was published before the call, ``limit`` what the reader asked to stay below.
    """

    what: str
    called: int
    returned: int
    position: int
    limit: int
    start: int
    start_after: int
    records: tuple[tuple[int, bytes], ...]
    committed: bool = False
    ended: bool = False


@dataclass
class Witness:
    """Thread-safe: every list only grows, and a tick is taken by one C call."""

    lives: dict[bytes, Life] = field(default_factory=dict)
    controls: set[int] = field(default_factory=set)
    transactional: set[int] = field(default_factory=set)
    removals: list[Removal] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    gaps_known: bool = True  # the place of every marker is
    stop: threading.Event = field(default_factory=threading.Event)
    _ticks: itertools.count[int] = field(default_factory=itertools.count)

    def tick(self) -> int:
        return next(self._ticks)

    def removed_between(self, called: int, returned: int) -> bool:
        """Whether a truncation overlapped these moments."""
        return any(r.called < returned and r.returned > called for r in self.removals)

    def check(self) -> None:
        if self.failures:
            raise self.failures[0]
        for answer in self.answers:
            self._check(answer)

    def _check(self, answer: Answer) -> None:
        expected = answer.position
        for offset, value in answer.records:
            life = self.lives.get(value)
            if life is None or life.offset not in (offset, UNKNOWN.offset):
                raise Broken(f"{answer.what}: {value[:20]!r} at {offset} was never appended there")
            if life.called > answer.returned:
                raise Broken(f"{answer.what}: {offset} before it was appended")
            if self._gone_before(life, answer.called):
                raise Broken(f"{answer.what}: {offset} after it was truncated")
            if offset < answer.start:
                raise Broken(f"{answer.what}: {offset} is below the log start {answer.start}")
            if offset >= answer.limit:
                raise Broken(f"{answer.what}: {offset} is not below {answer.limit}")
            if answer.committed and life.aborted:
                raise Broken(f"{answer.what}: {offset} was aborted")
            self._check_gap(answer, expected, offset)
            expected = offset + 1
        if answer.ended and not answer.records:
            self._check_nothing(answer)

    def _check_gap(self, answer: Answer, expected: int, offset: int) -> None:
        for missing in range(expected, offset if self.gaps_known else expected):
            known = missing in self.controls or (answer.committed and missing in self.transactional)
            if not known:
                raise Broken(f"{answer.what}: {missing} left out before {offset}")

    def _check_nothing(self, answer: Answer) -> None:
        """Nothing was given; then no record can have been there all the time."""
        if answer.committed:
            return
        for life in self.lives.values():
            if (
                max(answer.position, answer.start_after) <= life.offset < answer.limit
                and life.acknowledged < answer.called
                and not self._may_go_before(life, answer.returned)
            ):
                raise Broken(f"{answer.what}: nothing, although {life.offset} is there")

    def _gone_before(self, life: Life, moment: int) -> bool:
        return any(
            r.called > life.acknowledged and r.returned < moment and r.target <= life.last
            for r in self.removals
        )

    def _may_go_before(self, life: Life, moment: int) -> bool:
        return any(
            r.called < moment and r.returned > life.called and r.target <= life.last
            for r in self.removals
        )

    def check_content(self, start: int, content: list[tuple[int, bytes]]) -> None:
        """All that must be in the log at the end, and nothing that cannot be."""
        end = self.tick()
        answer = Answer("content", end, end, start, NEVER, start, start, tuple(content))
        self._check(answer)
        held = {offset for offset, _ in content}
        for life in self.lives.values():
            missing = life.offset >= start and life.offset not in held
            if missing and not self._may_go_before(life, end):
                raise Broken(f"content: {life.offset} is lost")
