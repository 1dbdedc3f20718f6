"""Run suites of others whole: ``python -m tests.clients [--suite kgo] [--server kafka]``."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.clients import servers
from tests.clients.suite import CaseResult, ClientSuite, Outcome
from tests.clients.suites import SUITES
from tests.clients.toolchain import SuiteUnavailable


def run_suite(
    suite: ClientSuite,
    server: str,
    directory: Path,
    cases: Sequence[str],
    tell: Callable[[CaseResult], None] = lambda result: None,
) -> list[CaseResult]:
    """Run cases of a prepared suite against a fresh broker.

    Raises:
        SuiteUnavailable: a real Kafka was asked for and cannot run here.
    """
    directory.mkdir(parents=True, exist_ok=True)
    results = []
    with servers.running_for(suite, server, directory) as bootstrap:
        for result in suite.run(cases, bootstrap, directory):
            results.append(result)
            tell(result)
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("--suite", action="append", choices=[s.name for s in SUITES])
    parser.add_argument("--case", action="append", help="only cases that match this pattern")
    parser.add_argument("--quick", action="store_true", help="a few cases of each suite")
    parser.add_argument("--left-out", action="store_true", help="run those left out as well")
    servers_help = "logstore, processes, kafka, or host:port"
    parser.add_argument("--server", default="logstore", help=servers_help)
    parser.add_argument("--report", type=Path, help="write all results there, as JSON")
    return parser.parse_args()


def _chosen(suite: ClientSuite, options: argparse.Namespace) -> list[str]:
    chosen = list(suite.quick) if options.quick else suite.cases()
    if not options.left_out:
        left_out = suite.left_out()
        chosen = [case for case in chosen if case not in left_out]
    if options.case:
        patterns = options.case
        chosen = [c for c in chosen if any(fnmatch.fnmatchcase(c, p) for p in patterns)]
    return chosen


def _tell(result: CaseResult) -> None:
    print(f"  {result.outcome.value:8}{result.seconds:7.1f} s  {result.case}", flush=True)
    if result.outcome is Outcome.FAILED:
        print("\n".join("      | " + line for line in result.detail.splitlines()[-12:]))


def main() -> int:
    """Return 1 if a case failed or a suite could not run."""
    options = _arguments()
    directory = Path(tempfile.mkdtemp(prefix="logstore-clients-"))
    report: dict[str, object] = {}
    bad = False
    for suite in (kind() for kind in SUITES):
        if options.suite and suite.name not in options.suite:
            continue
        began = time.monotonic()
        print(f"{suite.name}: {suite.pinned}", flush=True)
        try:
            suite.prepare()
            chosen = _chosen(suite, options)
            results = []
            if chosen:
                results = run_suite(suite, options.server, directory / suite.name, chosen, _tell)
        except SuiteUnavailable as error:
            print(f"  cannot run: {error}")
            bad = True
            continue
        counts = Counter(result.outcome for result in results)
        words = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
        left_out = suite.left_out()
        seconds = time.monotonic() - began
        print(f"  {words}, {len(left_out)} left out, in {seconds:.0f} s", flush=True)
        report[suite.name] = {
            "pinned": suite.pinned,
            "left_out": left_out,
            "cases": {r.case: [r.outcome.value, round(r.seconds, 1)] for r in results},
        }
        bad = bad or bool(counts[Outcome.FAILED])
    if options.report:
        options.report.write_text(json.dumps(report, indent=1))
    print(f"logs: {directory}")
    return int(bad)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
