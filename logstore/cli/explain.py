"""``logstore explain``: what the findings of a rule mean."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import fail, json_option
from logstore.cli.common.verify_output import explanation_lines
from logstore.common.suggestions import or_meant
from logstore.verify.common.rules import NUMBERS, RULES


@click.command(short_help="Say what a finding of verify means, and what to do.")
@click.argument("rules", nargs=-1, metavar="[RULE]…", shell_complete=completion.rules)
@json_option
def explain(rules: tuple[str, ...], as_json: bool) -> None:
    """Say what a finding of RULE means, what may have caused it, and what to do.

    RULE is an id such as log-checksum, or the number of the rule behind it, such as F-53. Without
    RULE all rules are listed. `logstore verify --explain` adds these texts to its findings.

    \b
    Example:
      logstore explain log-checksum
    """
    chosen = list(dict.fromkeys(map(_known, rules)))
    if as_json:
        terminal.print_json([_json(rule) for rule in chosen or RULES], indent=2)
    elif chosen:
        terminal.lines(explanation_lines(chosen))
    else:
        terminal.lines(_listed())


def _listed() -> Iterator[str]:
    width = max(map(len, RULES)) + 2
    for rule in RULES.values():
        yield from textwrap.wrap(
            rule.sentence,
            79,
            initial_indent=rule.id.ljust(width),
            subsequent_indent=" " * width,
            break_on_hyphens=False,
        )


def _known(text: str) -> str:
    rule = NUMBERS.get(text.upper(), text.lower())
    if rule not in RULES:
        rules = "logstore explain lists them, docs/rules has all others"
        fail(or_meant(f"{printable(text, 40)}: no rule of verify; {rules}", text, RULES))
    return rule


def _json(rule: str) -> dict[str, object]:
    found = RULES[rule]
    return {
        "rule": rule,
        "number": found.number,
        "severities": [str(severity) for severity in found.severities],
        "sentence": found.sentence,
        "meaning": found.meaning,
        "cause": found.cause,
        "advice": found.advice,
    }
