"""The table of rules is that of the source and of the documentation."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import logstore.verify
from logstore.cli import main
from logstore.verify.common.report import Finding, Severity, VerifyReport
from logstore.verify.common.rules import PAGE, RULES, sections_of
from logstore.verify.html import render
from tests.support.cases import for_each

SOURCES = Path(logstore.verify.__file__).parent
DOCUMENT = SOURCES.parents[1] / "docs" / "verify.md"
ID = r"[a-z]+(?:-[a-z]+)*"
TELLS = r"\b(?:error|warning|info|malformed)\("


def test_every_rule_that_is_told_has_a_row_and_every_row_is_told() -> None:
    texts = [path.read_text() for path in SOURCES.rglob("*.py")]
    named = {rule for text in texts for rule in re.findall(rf'"({ID})"', text)}
    told = {rule for text in texts for rule in re.findall(rf'{TELLS}\s*"([^"]+)"', text)}
    assert len(told) > 50
    assert told <= set(RULES) <= named


def test_every_rule_is_documented() -> None:
    documented = {}
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("| `"):
            documented |= dict(re.findall(rf"`({ID})` \[([FILSW]-\d+)\]", line.split("|")[1]))
    assert documented == {rule.id: rule.number for rule in RULES.values()}


def test_a_row_is_one_sentence() -> None:
    for rule in RULES.values():
        assert rule.sentence.endswith(".")
        assert list(rule.severities) == sorted(
            set(rule.severities), key=["error", "warning", "info"].index
        )


# -- explanations ----------------------------------------------------------------------------------


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments])


def test_nothing_is_moved_away_before_it_is_rescued_or_copied() -> None:
    for rule, texts in RULES.items():
        before, away, _ = texts.advice.partition("away")
        if away and "partition" in texts.advice:
            assert "copy the partition directory elsewhere" in before, rule


def test_every_section_is_a_rule_or_a_text_of_one() -> None:
    """Whoever adds a rule says in logstore/verify/common/rules.md what its findings mean."""
    linked = {anchor.replace("-", " ") for anchor in re.findall(r"\(#([^)]+)\)", PAGE)}
    sections = sections_of(PAGE)
    assert len(sections) == PAGE.count("\n### ")
    assert {title.lower() for title in sections if title not in RULES} == linked


def test_every_rule_is_explained() -> None:
    for rule, texts in RULES.items():
        for _, text in texts.texts:
            assert re.fullmatch(r"[A-Z`.-].*[.]", text) or text == texts.sentence, rule
            assert "](" not in text, rule
            assert "* " not in text, rule
            assert text.isprintable(), rule
        assert len(texts.meaning) > 40, rule


def test_the_advice_names_commands_that_exist() -> None:
    told = " ".join(text for rule in RULES.values() for _, text in rule.texts)
    context = click.Context(main)
    named = re.findall(r"`logstore ([a-z]+)([^`]*)`", told)
    assert len(named) > 5
    for name, rest in named:
        command = main.get_command(context, name)
        assert command is not None
        options = {option for param in command.params for option in param.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options


@for_each("rule", RULES)
def test_a_rule_by_command(rule: str) -> None:
    shown = explain(rule.upper(), RULES[rule].number.lower())  # the same rule twice
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"{rule} (")
    assert max(map(len, shown.stdout.splitlines())) <= 80
    text = " ".join(shown.stdout.split())
    for _, part in RULES[rule].texts:
        assert part in text
    (told,) = json.loads(explain(rule, "--json").stdout)
    assert told["rule"] == rule
    assert told["number"] == RULES[rule].number
    assert told["meaning"] == RULES[rule].meaning


def test_all_rules_by_command() -> None:
    lines = explain().stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(RULES)
    assert max(map(len, lines)) <= 80
    assert [each["rule"] for each in json.loads(explain("--json").stdout)] == list(RULES)


@pytest.mark.parametrize("rule", ["F-1", "nothing", "\x1b[2J", "log-checksum ", "x" * 5000])
def test_a_rule_that_does_not_exist(rule: str) -> None:
    result = explain(rule)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no rule of verify" in result.stderr
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 200
    assert result.stderr.rstrip("\n").isprintable()


def test_the_page_explains_the_rules_of_its_findings() -> None:
    found = [
        Finding(Severity.ERROR, rule, "f", "message")
        for rule in ("log-checksum", "log-offset-order")
    ]
    page = " ".join(unescape(render(VerifyReport(findings=found))).split())
    for rule, texts in RULES.items():
        assert (texts.meaning in page) == (rule in ("log-checksum", "log-offset-order"))
    for _, text in RULES["log-checksum"].texts:
        assert text in page


def test_verify_explains_what_it_found(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(b"x" * 100)
    result = CliRunner().invoke(main, ["verify", "--explain", str(tmp_path)])
    assert result.exit_code == 1
    rules = {line.split()[1] for line in result.stdout.splitlines() if " at " in line}
    text = " ".join(result.stdout.split())
    assert {rule for rule in RULES if RULES[rule].meaning in text} >= rules
    assert rules
    told = json.loads(
        CliRunner().invoke(main, ["verify", "--explain", "--json", str(tmp_path)]).stdout
    )
    assert set(told["explanations"]) == {finding["rule"] for finding in told["findings"]}
    assert CliRunner().invoke(main, ["verify", str(tmp_path)]).stdout.count("Meaning:") == 0
