"""Every id that is cited can be looked up, and every rule is held by code or by a test."""

from __future__ import annotations

from tests.architecture import rules
from tests.architecture.rules import BESIDE, CODE, DOCS, TESTS

LEAST = 500  # fewer rules than that, and the pages were not read
LATER = {"W-180", "W-200", "W-201"}  # KIP-848, and brokers that speak the protocol to each other


def test_what_is_cited_is_on_a_page() -> None:
    known = rules.defined()
    everywhere = rules.citations((*CODE, *TESTS, *DOCS, *BESIDE))
    assert len(everywhere) > LEAST
    assert {rule: where for rule, where in everywhere.items() if rule not in known} == {}


def test_a_rule_is_cited_by_code_or_a_test() -> None:
    held = rules.citations((*CODE, *TESTS))
    defined = rules.defined()
    assert len(defined) > LEAST
    assert {rule for rule in defined if rule not in held} <= LATER


def test_the_table_is_fresh() -> None:
    """``python -m tests.architecture.rules`` writes it."""
    assert rules.TABLE.read_text() == rules.table()


def test_the_sentence_comes_before_the_id() -> None:
    """An id tells where to look, and never stands for what it says."""
    modules = rules.files(CODE)
    assert len(modules) > 100
    assert [line for path in modules for line in rules.bare(path)] == []


def test_pages_refer_to_rules_that_are_there() -> None:
    known = rules.defined()
    texts = [(rules.RULES / f"{page}.md").read_text() for page in rules.PAGES]
    assert {rule for text in texts for rule in rules.cited(text, known)} <= {*known}


def test_citations_are_recognised() -> None:
    known = dict.fromkeys(("F-1", "F-2", "F-3", "S-12", "S-25", "R-30"), "")
    found = rules.cited
    assert found("as F-1 says (S-40a), T-D1.6", known) == {"F-1", "S-40a", "T-D1"}
    assert found("(F-1 … F-3)", known) == {"F-1", "F-2", "F-3"}
    assert found("F-1 to\n    F-4: F-2", known) == {"F-1", "F-2", "F-3", "F-4"}
    assert found("def test_s12_s25_a_message(): UTF-8, KAFKA-1, x.F-1", known) == {"S-12", "S-25"}
    assert found("def test_w31_one_batch(): W-31, W-1234", {"W-31": ""}) == {"W-31"}
    assert found("T-F1 −R-30", known) == {"T-F1", "R-30"}
