"""Explanations of rules as lines for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from logstore.verify.common.explanations import explain
from logstore.verify.common.rules import RULES

_WIDTH = 79
_INDENT = 12


def explanation_lines(rules: Iterable[str]) -> Iterator[str]:
    """At most 79 columns wide; a blank line between two rules."""
    for number, rule in enumerate(rules):
        if number:
            yield ""
        severities = ", ".join(map(str, RULES[rule].severities))
        yield f"{rule} ({severities}; rule {RULES[rule].number})"
        for title, text in explain(rule):
            yield from textwrap.wrap(
                text,
                _WIDTH,
                initial_indent=f"{title}:".ljust(_INDENT),
                subsequent_indent=" " * _INDENT,
                break_on_hyphens=False,
            )
