"""The table of rules is that of the source and of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import logstore.verify
from logstore.verify.rules import RULES

SOURCES = Path(logstore.verify.__file__).parent
DOCUMENT = SOURCES.parents[1] / "docs" / "verify.md"
ID = r"(?:F|I|L|S)-\d+"


def test_every_rule_that_is_told_has_a_row_and_every_row_is_told() -> None:
    told = {
        rule
        for path in SOURCES.rglob("*.py")
        if path.name != "rules.py"
        for rule in re.findall(rf'"({ID})"', path.read_text())
    }
    assert told == set(RULES)


def test_every_rule_is_documented() -> None:
    table = [line for line in DOCUMENT.read_text().splitlines() if re.match(rf"\| {ID}", line)]
    documented = set()
    for line in table:
        cell = line.split("|")[1]
        documented |= set(re.findall(ID, cell))
        for kind, first, last in re.findall(r"([FILS])-(\d+) … \1-(\d+)", cell):
            documented |= {f"{kind}-{number}" for number in range(int(first), int(last) + 1)}
    assert set(RULES) <= documented


def test_a_row_is_one_sentence_on_one_line_of_a_terminal() -> None:
    for rule in RULES.values():
        assert rule.sentence.endswith(".")
        assert len(f"{rule.id:6}{rule.sentence}") <= 80
        assert list(rule.severities) == sorted(
            set(rule.severities), key=["error", "warning", "info"].index
        )
