"""``python -m tests.processes --minutes 10 --seed N``: three processes under faults and load.

A report is kept below build/processes, and the files of a run that found something.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.clients.toolchain import SuiteUnavailable
from tests.processes import porcupine
from tests.processes.chaos import Report, Run
from tests.processes.faults import Faults, Kind

REPORTS = Path(__file__).resolve().parents[2] / "build" / "processes"
GRACE_S = 900  # after the faults, for everything to come to rest and be checked


def verify_with_spark(run: Run) -> list[str]:
    """What Spark finds wrong in the directories, replicas compared."""
    from logstore.spark import session, verify_on_spark

    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    spark = session("local[2]", app_name="processes", conf=conf)
    try:
        paths = [str(node.directory) for node in run.nodes.brokers.values()]
        report = verify_on_spark(spark, *paths).report
        return [str(each) for each in report.findings if each.severity in ("error", "warning")]
    finally:
        spark.stop()


def one(options: argparse.Namespace, seed: int) -> Report:
    directory = Path(tempfile.mkdtemp(prefix=f"logstore-processes-{seed}-"))
    weights = {Kind[name]: Faults.WEIGHTS[Kind[name]] for name in options.kind} or None
    run = Run(
        directory,
        seed,
        options.minutes * 60,
        java=not options.no_java,
        overlap=options.overlap,
        longest_s=options.longest,
        between_s=options.every,
        weights=weights,
    )
    try:
        report = run.run()
        report.wrong += porcupine.check(run.registers)
        if not options.no_spark:
            report.wrong += verify_with_spark(run)
    except SuiteUnavailable as error:
        report.figures["left out"] = str(error)
    except BaseException as error:
        report = run.report
        report.wrong.append(f"{type(error).__name__}: {error}"[:8000])
    report.write(REPORTS / f"{seed}.json")
    if report.wrong:
        print(f"the files are in {directory}", flush=True)
    else:
        shutil.rmtree(directory)
    return report


def main() -> int:
    """Return 1 if anything is wrong."""
    name = "python -m tests.processes"
    parser = argparse.ArgumentParser(
        prog=name, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="another one each time")
    parser.add_argument("--runs", type=int, default=1, help="with the seeds that follow")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two faults")
    parser.add_argument("--longest", type=float, default=30.0, help="seconds of a fault")
    parser.add_argument("--overlap", action="store_true", help="of several faults at a time")
    parser.add_argument("--kind", choices=[kind.name for kind in Kind], action="append", default=[])
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument("--no-spark", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    wrong = False
    for number in range(options.runs):
        faulthandler.dump_traceback_later(options.minutes * 60 + GRACE_S, exit=True)
        began = time.monotonic()
        report = one(options, seed + number)
        print(f"{report}\n{time.monotonic() - began:.0f} s", flush=True)
        wrong = wrong or bool(report.wrong)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
