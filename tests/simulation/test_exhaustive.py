"""Every interleaving within small bounds (I-2 … I-5, Appendix A of the scenarios).

The rules of the project decide in ``Model``; ``published_models`` has none of them and says what
the search itself must count.
"""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import permutations

import click
import pytest
from click.testing import CliRunner

from logstore.segments import leader_epochs as epochs
from replication.decisions import election, isr, truncation
from replication.decisions.truncation import (
    EPOCH_RULE,
    FETCH_RULE,
    HIGH_WATERMARK_RULE,
    TruncationRule,
)
from replication.simulator.command.exhaustive import FINISH, run_exhaustive
from replication.simulator.command.simulate import simulate
from replication.simulator.exhaustive import (
    Bounds,
    Model,
    ModelDecisions,
    Property,
    SearchOutcome,
    SearchProgress,
    search,
)
from replication.simulator.exhaustive.state import State
from replication.simulator.exhaustive.symmetry import Names, renamed_control, renamed_replica
from tests.mutants.model import FENCED_RULE
from tests.simulation.published_models import (
    Cut,
    Published,
    cut_kip101,
    cut_kip279,
    cut_to_high_watermark,
)

TWO = Bounds(replicas=2, log_size=2, records=2, max_epoch=2)
THREE = Bounds(replicas=3, log_size=2, records=2, max_epoch=2)
FENCED = [pytest.param(rule, id=rule.name) for rule in (FETCH_RULE, FENCED_RULE)]


def depths(outcome: SearchOutcome) -> dict[Property, int]:
    return {v.violated: v.depth for v in outcome.violations}


def counts(outcome: SearchOutcome) -> tuple[int, int, int, bool]:
    return outcome.states, outcome.generated, outcome.depth, outcome.complete


# -- the search itself ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut", "fenced", "states", "generated"),
    [
        pytest.param(cut_kip279, True, 5_973, 11_732, id="Kip320"),
        pytest.param(cut_kip279, False, 9_027, 21_876, id="Kip279"),
    ],
)
def test_the_published_models_are_counted_as_elsewhere(
    cut: Cut, fenced: bool, states: int, generated: int
) -> None:
    """Another search over the same TLA+ modules counted these; 18 levels are 17 steps."""
    outcome = search(Published(TWO, cut, fenced=fenced))
    assert counts(outcome) == (states, generated, 17, True)
    assert not outcome.violations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "cut", "weak", "strong"),
    [
        pytest.param(TWO, cut_kip101, 11, 11, id="Kip101-2"),
        pytest.param(TWO, cut_to_high_watermark, 8, 9, id="TruncateToHighWatermark-2"),
        pytest.param(THREE, cut_to_high_watermark, 8, 8, id="TruncateToHighWatermark-3"),
        pytest.param(THREE, cut_kip279, 10, 10, id="Kip279-3"),
    ],
)
def test_the_published_models_break_where_they_are_known_to(
    bounds: Bounds, cut: Cut, weak: int, strong: int
) -> None:
    outcome = search(Published(bounds, cut, fenced=False), stop_at=[Property.STRONG_ISR])
    assert depths(outcome) == {Property.WEAK_ISR: weak, Property.STRONG_ISR: strong}


def test_a_search_stops_at_the_number_of_states_it_is_given() -> None:
    seen: list[SearchProgress] = []
    outcome = search(Model(TWO), max_states=500, progress=seen.append)
    assert not outcome.complete
    assert 500 <= outcome.states < 1_000
    assert [p.depth for p in seen] == list(range(1, len(seen) + 1))


# -- the rules of the project ---------------------------------------------------------------------


def test_the_rules_under_check_are_those_of_the_brokers() -> None:
    homes = (isr, truncation, election, epochs)
    for field in fields(ModelDecisions):
        rule = getattr(ModelDecisions(), field.name)
        assert any(getattr(home, rule.__name__, None) is rule for home in homes), field.name


@pytest.mark.slow
@pytest.mark.parametrize("rule", FENCED)
@pytest.mark.parametrize("asynchronous_isr", [False, True], ids=["at-once", "asynchronous"])
def test_fenced_replication_holds_with_two_replicas(
    rule: TruncationRule, asynchronous_isr: bool
) -> None:
    outcome = search(Model(TWO, rule, asynchronous_isr=asynchronous_isr))
    assert outcome.complete
    assert outcome.violations == ()
    assert outcome.states > 5_973  # no less is looked at than in the published model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "states", "generated", "depth"),
    [
        (Bounds(replicas=3, log_size=2, records=2, max_epoch=1), 79_888, 335_346, 21),
        pytest.param(THREE, 1_023_310, 5_154_441, 26, marks=pytest.mark.long),
    ],
)
def test_fenced_replication_holds_with_three_replicas(
    bounds: Bounds, states: int, generated: int, depth: int
) -> None:
    """I-2 … I-5 in every state; the published model, which sees less, has 737,794 of THREE."""
    outcome = search(Model(bounds))
    assert outcome.violations == ()
    assert counts(outcome) == (states, generated, depth, True)


@pytest.mark.parametrize(
    ("rule", "depth"),
    [
        pytest.param(EPOCH_RULE, 11, id="epoch", marks=pytest.mark.slow),
        pytest.param(HIGH_WATERMARK_RULE, 9, id="hw"),
    ],
)
def test_unfenced_replication_loses_committed_records(rule: TruncationRule, depth: int) -> None:
    """S-1 and S-8: a follower cuts what is committed, and may be elected next."""
    outcome = search(Model(TWO, rule))
    assert depths(outcome)[Property.STRONG_ISR] == depth
    assert "cuts a@0" in outcome.violations[-1].trace[-1].text


# -- what makes it fast ---------------------------------------------------------------------------


def renamed(state: State, names: Names) -> State:
    replicas = {names[i]: renamed_replica(r, names) for i, r in enumerate(state.replicas)}
    control = renamed_control(state.control, names)
    return State(control, state.written, tuple(replicas[i] for i in sorted(replicas)))


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous_isr", [False, True], ids=["at-once", "asynchronous"])
@pytest.mark.parametrize("rule", [FETCH_RULE, FENCED_RULE, EPOCH_RULE, HIGH_WATERMARK_RULE])
def test_renaming_replicas_changes_nothing(rule: TruncationRule, asynchronous_isr: bool) -> None:
    """The steps out of a renamed state are the renamed steps; so are the broken properties."""
    model = Model(THREE, rule, asynchronous_isr=asynchronous_isr, symmetry=False)
    states, frontier = {model.initial()}, [model.initial()]
    for _ in range(6):  # a thin slice, but a deep one
        after = {key + step.change for key in frontier for step in model.steps(key)}
        frontier = sorted(after - states)[:: max(1, len(after) // 200)]
        states.update(frontier)
    for key in sorted(states):
        state = model.decode(key)
        successors = {model.decode(key + step.change) for step in model.steps(key)}
        for names in permutations(range(3)):
            other = model.encode(renamed(state, names))
            found = {model.decode(other + step.change) for step in model.steps(other)}
            assert found == {renamed(s, names) for s in successors}
            assert model.broken(other) == model.broken(key)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [TWO, Bounds(3, 1, 1, 1)], ids=["2-2-2-2", "3-1-1-1"])
@pytest.mark.parametrize("rule", [FETCH_RULE, FENCED_RULE, EPOCH_RULE, HIGH_WATERMARK_RULE])
def test_one_state_for_all_names_finds_the_same(bounds: Bounds, rule: TruncationRule) -> None:
    whole = search(Model(bounds, rule, symmetry=False), stop_at=())
    reduced = search(Model(bounds, rule), stop_at=())
    assert counts(whole) == counts(reduced)
    assert whole.states == whole.explored > reduced.explored
    assert depths(whole) == depths(reduced)


def test_a_trace_is_a_run_of_the_model() -> None:
    model = Model(TWO, HIGH_WATERMARK_RULE)
    violation = search(model).violations[-1]
    key = model.initial()
    for taken in violation.trace:
        assert taken.key - key in {step.change for step in model.steps(key)}
        assert not model.broken(key)
        key = taken.key
    assert violation.violated in model.broken(key)


def test_bounds_with_nothing_in_them_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing to explore"):
        Model(Bounds(0, 2, 2, 2))


# -- the command ----------------------------------------------------------------------------------


def test_the_command_tells_the_shortest_way_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_exhaustive((2, 2, 2, 2), "hw") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "WeakIsr, StrongIsr violated after 9 steps:" in lines
    assert any(line.startswith("  9. 1 learns that 0 leads, epoch 2, cuts a@0") for line in lines)
    assert lines[-2].strip().startswith("controller: 0 leads, epoch 2, ISR {0,1} | 0: leads in 0")


def test_the_command_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_exhaustive((2, 1, 1, 1), as_json=True) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["complete"]
    assert result["violations"] == []
    assert result["bounds"] == {"replicas": 2, "logSize": 1, "records": 1, "maxEpoch": 1}


def test_the_command_refuses_a_rule_that_it_does_not_know() -> None:
    with pytest.raises(click.UsageError, match="there are"):
        run_exhaustive((2, 1, 1, 1), truncation="kip")


@pytest.mark.parametrize("most", FINISH, ids=str)
def test_the_command_refuses_what_does_not_finish(most: Bounds) -> None:
    """In one sentence, one step beyond the largest bounds in each direction."""
    beyond = (most._replace(**{name: getattr(most, name) + 1}) for name in Bounds._fields)
    refused = [bounds for bounds in beyond if not any(bounds.within(other) for other in FINISH)]
    assert refused
    for bounds in [*refused, Bounds(50, 50, 50, 50)]:
        done = CliRunner().invoke(simulate, ["--exhaustive", *map(str, bounds)])
        assert done.exit_code == 2
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert "would not end within minutes; the largest that do are 1 " in done.stderr
