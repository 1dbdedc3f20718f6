"""Runs the cells: each scenario under each rule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from checkpoints.loggers import package_loggers
from replication.simulator.matrix.findings import Findings, Observer
from replication.simulator.matrix.rules import COLUMNS, DEFAULT, Column
from replication.simulator.matrix.scenarios import SCENARIOS, Scenario
from replication.simulator.matrix.stage import ScriptError, Stage
from replication.simulator.search.mutants import mutated


@dataclass(frozen=True, slots=True)
class Cell:
    """One run, and what it found."""

    scenario: Scenario
    column: Column
    findings: Findings

    @property
    def failed(self) -> bool:
        """The default rule did what it must never do. What may be lost is only what the scenario
        allows; replicas agree in the end all the same."""
        found = self.findings
        if self.column is not DEFAULT or found.ok:
            return False
        allowed = bool(self.scenario.allowed)
        return not allowed or bool(found.diverged) or bool(found.stuck)


def run_cell(scenario: Scenario, column: Column, seed: int = 0) -> Cell:
    """The seed moves the small delays of messages, and what ``coordinated_power_loss`` draws."""
    with mutated(scenario.mutant), _quiet():
        stage = Stage(
            column, flush=scenario.flush, min_isr=scenario.min_isr, elr=scenario.elr,
            unclean=scenario.unclean, seed=seed,
        )  # fmt: skip
        observer = Observer(stage)
        unable = ""
        try:
            scenario.script(stage)
        except ScriptError as error:
            unable = f"in the script: {error}"
        return Cell(scenario, column, observer.finish(stage.heal() or unable))


def run_cells(
    scenarios: Sequence[Scenario] = SCENARIOS,
    columns: Sequence[Column] = COLUMNS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Cell]:
    """All of them, row by row. ``progress`` hears how many are done, of how many."""
    cells = []
    for scenario in scenarios:
        for column in columns:
            cells.append(run_cell(scenario, column))
            progress(len(cells), len(scenarios) * len(columns))
    return cells


@contextmanager
def _quiet() -> Iterator[None]:
    """What goes wrong is the subject here: the log would be full of it."""
    loggers = package_loggers()
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
