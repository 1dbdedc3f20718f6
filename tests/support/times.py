"""The processor time of every case, by lane and folder: ``build/test-times.json``.

A run of a lane fails if a case that is not marked slow takes more than three seconds of processor
time, or if the lane takes more than its share. Wall-clock time decides nothing: it is the
machine's.
"""

from __future__ import annotations

import gc
import json
import resource
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.lanes import LANES

FILE = Path(__file__).resolve().parents[2] / "build" / "test-times.json"
FAST_S = 3.0  # twelve times what a fast case takes: on a busy machine threads that poll spend more
SLOWEST = 30


def cpu_seconds() -> float:
    """Of this process, its threads, and the children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class PhaseTimes:
    """Puts the processor time of each phase of a case on its report, where the case runs.

    A pass of the garbage collector goes over what all earlier tests left: it is no case's own.
    """

    def __init__(self) -> None:
        self._before = 0.0
        self._pass_began = 0.0
        self._passes_s = 0.0
        gc.callbacks.append(self._on_pass)

    def _on_pass(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._pass_began = time.thread_time()
        else:
            self._passes_s += time.thread_time() - self._pass_began

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._before = cpu_seconds() - self._passes_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        report = yield
        now = cpu_seconds() - self._passes_s
        report.cpu_s, self._before = now - self._before, now
        report.is_slow = item.get_closest_marker("slow") is not None
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_s"] = cpu_seconds()


class LaneTimes:
    """Adds the times up where the run is controlled, and judges a whole lane."""

    def __init__(self, lane: str, *, sampled: bool) -> None:
        self.lane = LANES[lane]
        self.sampled = sampled
        self.started = time.monotonic()
        self.cases: dict[str, float] = defaultdict(float)
        self.overdue: dict[str, float] = {}
        self.workers_s = 0.0
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        seconds = getattr(report, "cpu_s", 0.0)  # a worker that crashed measures nothing
        self.cases[report.nodeid] += seconds
        if report.when == "call" and seconds > FAST_S and not report.is_slow:
            self.overdue[report.nodeid] = seconds

    def pytest_testnodedown(self, node: Any) -> None:
        self.workers_s += getattr(node, "workeroutput", {}).get("cpu_s", 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # Workers of xdist are children that were waited for.
        spent = max(cpu_seconds(), self.workers_s)
        self.failures += [
            f"{name} took {seconds:.1f} s of processor time and is not marked slow"
            for name, seconds in sorted(self.overdue.items())
        ]
        if self.sampled and spent > self.lane.cpu_s:
            self.failures.append(
                f"the lane {self.lane.name} took {spent:.0f} s of processor time; "
                f"its share is {self.lane.cpu_s} s"
            )
        if self.cases:
            self._write(spent)
        if self.failures and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write(self, spent: float) -> None:
        folders: dict[str, list[float]] = defaultdict(list)
        for name, seconds in self.cases.items():
            folders["/".join(name.partition("::")[0].split("/")[1:-1])].append(seconds)
        slowest = sorted(self.cases.items(), key=lambda case: -case[1])[:SLOWEST]
        times = json.loads(FILE.read_text()) if FILE.exists() else {}
        times[self.lane.name if self.sampled else f"{self.lane.name}, all"] = {
            "cases": len(self.cases),
            "cpu_s": round(spent, 1),
            "wall_s": round(time.monotonic() - self.started, 1),
            "folders": {
                folder: {"cases": len(seconds), "cpu_s": round(sum(seconds), 1)}
                for folder, seconds in sorted(folders.items())
            },
            "slowest": {name: round(seconds, 2) for name, seconds in slowest},
        }
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(json.dumps(times, indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for failure in self.failures:
            terminalreporter.write_line(f"FAILED {failure}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(PhaseTimes())
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
    if config.option.lane and whole and not hasattr(config, "workerinput"):
        sampled = config.option.sample is not None or config.option.markexpr == "essential"
        config.pluginmanager.register(LaneTimes(config.option.lane, sampled=sampled))
