"""The suites of others: what is left out of them, and how their runners read what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import servers, toolchain
from tests.clients.kafka_python.suite import KafkaPythonSuite
from tests.clients.suite import ClientSuite, Outcome
from tests.clients.suites import SUITES


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOGSTORE_CLIENTS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_each_suite_has_a_name_of_its_own() -> None:
    assert len({kind.name for kind in SUITES}) == len(SUITES)


def test_what_is_left_out_only_grows_shorter() -> None:
    """Who takes a case off the list lowers the number, and nobody raises it."""
    for kind in SUITES:
        assert len(kind.left_out()) == kind.most_left_out, kind.name


@pytest.mark.slow
def test_a_case_that_is_left_out_exists() -> None:
    """Of the suites that are built."""
    for kind in SUITES:
        suite = kind()
        if suite.ready():
            suite.prepare()
            cases = suite.cases()
            assert len(cases) == len(set(cases)) > 0, kind.name
            assert set(kind.left_out()) <= set(cases), kind.name
            assert set(kind.quick) <= set(cases) - set(kind.left_out()), kind.name


def _marks(kind: type[ClientSuite]) -> tuple[pytest.MarkDecorator, ...]:
    """One suite is for every build; those that take long to build are for the long run."""
    if kind is KafkaPythonSuite:
        return (pytest.mark.essential,)
    return () if kind.cheap else (pytest.mark.long,)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.name, marks=_marks(kind)) for kind in SUITES if kind.quick],
)
def test_a_few_cases_pass(kind: type[ClientSuite], tmp_path: Path) -> None:
    """The quick setting of each suite, on a broker of its own."""
    suite = kind()
    if not (kind.cheap or suite.ready()):
        pytest.skip(f"{kind.name} is not built; python -m tests.clients builds it")
    try:
        suite.prepare()
    except toolchain.SuiteUnavailable as error:
        pytest.skip(str(error))
    with servers.running_for(suite, "logstore", tmp_path / "server") as bootstrap:
        results = list(suite.run(kind.quick, bootstrap, tmp_path))
    assert {result.case for result in results} == set(kind.quick)
    failed = [f"{r.case}: {r.detail}" for r in results if r.outcome is not Outcome.PASSED]
    assert not failed, "\n".join(failed)


def test_a_case_is_left_out_with_one_reason(tmp_path: Path) -> None:
    class Suite(KafkaPythonSuite):
        @classmethod
        def directory(cls) -> Path:
            return tmp_path

    for line in ("case without a reason", "case: ", "known: yes\nknown: again"):
        text = f"# a comment\n\nother: fine\n{line}\n"
        (tmp_path / "kafka-python.left_out.txt").write_text(text)
        with pytest.raises(ValueError, match="CASE: reason"):
            Suite.left_out()


def test_a_build_runs_once(empty_cache: Path) -> None:
    built = []

    def build(directory: Path) -> None:
        built.append(directory)
        (directory / "made").touch()

    assert not toolchain.is_built("thing", "1")
    first = toolchain.built("thing", "1", build)
    assert (first / "made").exists()
    assert first.parent == empty_cache
    assert toolchain.is_built("thing", "1")
    assert toolchain.built("thing", "1", build) == first
    assert toolchain.built("thing", "2", build) != first
    assert len(built) == 2


def test_a_build_that_failed_begins_again_from_nothing(empty_cache: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "half").touch()
        toolchain.run(["false"], directory)

    with pytest.raises(toolchain.SuiteUnavailable, match="false ended with 1"):
        toolchain.built("thing", "1", fail)
    assert not toolchain.is_built("thing", "1")
    again = toolchain.built("thing", "1", lambda directory: None)
    assert not (again / "half").exists()


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(toolchain.SuiteUnavailable, match="no-such-program is not on PATH"):
        toolchain.tool("no-such-program")
    with pytest.raises(toolchain.SuiteUnavailable, match="did not end within"):
        toolchain.run(["sleep", "10"], tmp_path, timeout_s=0.05)
