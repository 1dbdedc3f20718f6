"""Runs the cells: each scenario under each rule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from checkpoints.loggers import package_loggers
from logstore.common.shield import unshielded
from replication.simulator.matrix.cluster import ScriptError
from replication.simulator.matrix.findings import Findings, Observer
from replication.simulator.matrix.rules import COLUMNS, DEFAULT, RuleColumn
from replication.simulator.matrix.scenarios import SCENARIOS, Scenario
from replication.simulator.matrix.stage import Stage


@dataclass(frozen=True, slots=True)
class Cell:
    """One run, and what it found."""

    scenario: Scenario
    column: RuleColumn
    findings: Findings

    @property
    def failed(self) -> bool:
        """Whether the default rule failed.

        It may lose only what the scenario allows, and the replicas must always agree in the end.
        """
        found = self.findings
        if self.column is not DEFAULT or found.ok:
            return False
        allowed = bool(self.scenario.allowed)
        return not allowed or bool(found.diverged) or bool(found.stuck)


def run_cell(scenario: Scenario, column: RuleColumn, seed: int = 0) -> Cell:
    """Run one cell.

    The seed varies small delays of messages, and the draws of ``coordinated_power_loss``.
    """
    with _quiet(), unshielded():
        stage = Stage(
            column,
            flush=scenario.flush,
            min_isr=scenario.min_isr,
            elr=scenario.elr,
            unclean=scenario.unclean,
            seed=seed,
        )
        observer = Observer(stage)
        unable = ""
        try:
            scenario.script(stage)
        except ScriptError as error:
            unable = f"in the script: {error}"
        return Cell(scenario, column, observer.finish(stage.heal() or unable))


def run_cells(
    scenarios: Sequence[Scenario] = SCENARIOS,
    columns: Sequence[RuleColumn] = COLUMNS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Cell]:
    """Run all cells, row by row. ``progress`` is called with (done, total)."""
    cells = []
    for scenario in scenarios:
        for column in columns:
            cells.append(run_cell(scenario, column))
            progress(len(cells), len(scenarios) * len(columns))
    return cells


@contextmanager
def _quiet() -> Iterator[None]:
    """Mute the logs, since failures are expected here."""
    loggers = package_loggers()
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
