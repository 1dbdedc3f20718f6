"""Real threads on a real directory, a few rounds in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interleavings.threads import run_rounds
from tests.interleavings.witness import NEVER, Answer, Broken, Life, Removal, Witness


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_real_threads(tmp_path: Path) -> None:
    run_rounds(tmp_path, 1, 2, each=0.4)


def _witness() -> Witness:
    """Records at 0 and 1, both acknowledged at 2; from 4 to 6 the second is truncated."""
    witness = Witness()
    witness.lives[b"a"] = Life(0, 0, 1, 2, False)
    witness.lives[b"b"] = Life(1, 1, 1, 2, False)
    witness.removals.append(Removal(4, 6, 1))
    return witness


def _answer(called: int, returned: int, *records: tuple[int, bytes], **other: object) -> Answer:
    fields: dict[str, object] = {
        "what": "read",
        "position": 0,
        "limit": NEVER,
        "start": 0,
        "start_after": 0,
        **other,
    }
    return Answer(called=called, returned=returned, records=records, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        _answer(3, 5, (0, b"a"), (1, b"b")),
        _answer(3, 5, (0, b"a")),
        _answer(7, 8, (0, b"a")),
        _answer(7, 8, position=1, ended=True),
    ],
)
def test_the_witness_accepts_what_some_order_explains(answer: Answer) -> None:
    witness = _witness()
    witness.answers.append(answer)
    witness.check()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (_answer(7, 8, (0, b"a"), (1, b"b")), "after it was truncated"),
        (_answer(0, 0, (0, b"a")), "before it was appended"),
        (_answer(3, 5, (1, b"b")), "0 left out"),
        (_answer(3, 5, (1, b"a")), "never appended there"),
        (_answer(3, 5, (0, b"a"), limit=0), "not below 0"),
        (_answer(3, 5, (0, b"a"), start=1), "below the log start"),
        (_answer(3, 3, ended=True), "nothing, although 0"),
    ],
)
def test_the_witness_refuses(answer: Answer, says: str) -> None:
    witness = _witness()
    witness.answers.append(answer)
    with pytest.raises(Broken, match=says):
        witness.check()
