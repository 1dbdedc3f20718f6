"""The rules by which a verification names what it finds, as the page ``rules.md`` has them.

The ids are those of docs/verify.md, and never change their meaning. A new rule is a section of the
page. The message of a finding says how the rule is broken.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

from logstore.verify.common.report import Severity

_SECTION = re.compile(r"^### (.+)\n(?s:(.+?))(?=\n#|\Z)", re.MULTILINE)
_LINK = re.compile(r"\[[^]]+\]\(#([a-z-]+)\)")
_RULE = re.compile(
    r"(.+\.) Rule \[([FILSW]-\d+)\]\(\S+\): ([a-z, ]+)"
    r" \* Meaning: (.+) \* Cause: (.+) \* What to do: (.+)"
)


class Rule(NamedTuple):
    """``number`` is the rule of docs/rules behind it.

    ``severities`` lists what a finding may have, the worst first. Each text is one or more whole
    sentences.
    """

    id: str
    number: str
    severities: tuple[Severity, ...]
    sentence: str
    meaning: str
    cause: str
    advice: str

    @property
    def texts(self) -> list[tuple[str, str]]:
        """The titles and texts about the rule, in reading order."""
        return [
            ("Rule", self.sentence),
            ("Meaning", self.meaning),
            ("Cause", self.cause),
            ("What to do", self.advice),
        ]


def sections_of(page: str) -> dict[str, str]:
    """The title and text of each section of a page."""
    return {title: " ".join(body.split()) for title, body in _SECTION.findall(page)}


def _rules(page: str) -> dict[str, Rule]:
    """The rules of a page by their ids, with shared texts in place of the links to them."""
    sections = sections_of(page)
    anchors = {title.lower().replace(" ", "-"): body for title, body in sections.items()}

    def whole(text: str) -> str:
        return _LINK.sub(lambda link: whole(anchors[link[1]]), text)

    rules = {}
    for title, body in sections.items():
        found = _RULE.fullmatch(whole(body))
        if found is not None:
            sentence, number, severities, *texts = found.groups()
            worst_first = tuple(map(Severity, severities.split(", ")))
            rules[title] = Rule(title, number, worst_first, sentence, *texts)
    return rules


PAGE = files(__package__).joinpath("rules.md").read_text("utf-8")
RULES = _rules(PAGE)
"""All rules by their ids."""

NUMBERS = {rule.number: rule.id for rule in RULES.values()}
"""The id of each number of docs/rules."""

__all__ = ["NUMBERS", "PAGE", "RULES", "Rule", "sections_of"]
