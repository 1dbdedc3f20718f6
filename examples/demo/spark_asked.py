"""Act three: the brokers have stopped, and Spark reads their files.

It verifies and compares the three directories in one pass, writes the report, and answers a
question about the flights with SQL on the raw segments. The same question is answered by plain
Python over the input: the two must agree.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from examples.demo.directory import BROKERS, Places
from examples.demo.flights import Rows
from examples.demo.outcome import CarrierDelay, ClusterOutcome, DemoOutcome, DemoStep, SparkOutcome
from examples.demo.show import Show
from examples.demo.topic import TOPIC
from logstore import terminal
from logstore.common import interrupts
from logstore.common.errors import LogstoreError
from logstore.verify import Severity, VerifyOptions
from logstore.verify.html import write_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Workers must import the installed packages, not the directory in which the demo was started.
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}
QUESTION = """
SELECT carrier, count(*) AS flights, count(delay) AS departed, coalesce(sum(delay), 0) AS minutes
FROM (SELECT f.carrier, f.dep_delay AS delay
      FROM (SELECT from_json(CAST(value AS STRING), 'carrier STRING, dep_delay INT') AS f
            FROM flights))
GROUP BY carrier
"""


def run(outcome: DemoOutcome, places: Places, sent: Sequence[Rows], show: Show) -> None:
    """Run act three. What could not be proven, errors of Spark included, is in ``faults``."""
    assert outcome.cluster is not None
    told = outcome.spark = SparkOutcome()
    try:
        with terminal.errors_to(places.spark_log), _spark(told, show) as spark:
            _verify(outcome, outcome.cluster, told, places, spark, show)
            if not outcome.faults:
                _ask(outcome, told, places, sent, spark, show)
    except (LogstoreError, OSError, RuntimeError) as error:
        outcome.faults.append(f"{type(error).__name__}: {error} (see also {places.spark_log})")


@contextmanager
def _spark(told: SparkOutcome, show: Show) -> Iterator[SparkSession]:
    from logstore.spark import session

    started = time.perf_counter()
    spark = session("local[*]", app_name="logstore demo", conf=_SETTINGS)
    interrupts.guard()  # PySpark took Ctrl-C
    told.version, told.cores = spark.version, spark.sparkContext.defaultParallelism
    told.started_seconds = time.perf_counter() - started
    show.line()
    show.line(f"Spark {told.version} on {told.cores} cores; no broker is running")
    try:
        yield spark
    finally:
        spark.stop()


def _verify(
    outcome: DemoOutcome,
    cluster: ClusterOutcome,
    told: SparkOutcome,
    places: Places,
    spark: SparkSession,
    show: Show,
) -> None:
    from logstore.spark import verify_on_spark

    log_dirs = [places.broker(broker_id) for broker_id in BROKERS]
    started = time.perf_counter()
    report = verify_on_spark(spark, *log_dirs, options=VerifyOptions(fingerprint=True)).report
    seconds = time.perf_counter() - started
    outcome.faults += report.unusable
    outcome.faults += [str(f) for f in report.findings if f.severity is not Severity.INFO]
    records = sum(p.records for p in report.partitions)
    size = sum(p.bytes for p in report.partitions)
    if records != outcome.records * len(log_dirs):
        outcome.faults.append(f"Spark saw {records:,} records in {len(log_dirs)} directories")
    outcome.steps.append(DemoStep("Spark verifies, compares", records, size, seconds))
    told.files = report.files
    write_report(report, places.report, title="The brokers of the demo")
    show.proven(
        outcome,
        f"Spark verified {report.files} files of {len(log_dirs)} brokers and compared the replicas "
        f"in one pass: equal below the high watermark; see {places.report}",
    )


def _ask(
    outcome: DemoOutcome,
    told: SparkOutcome,
    places: Places,
    sent: Sequence[Rows],
    spark: SparkSession,
    show: Show,
) -> None:
    """Ask which carrier has the longest delays."""
    flights = spark.read.format("logstore").option("subscribe", TOPIC).load(places.broker(0))
    flights.createOrReplaceTempView("flights")
    rows = spark.sql(QUESTION).collect()
    told.answer = sorted(
        (CarrierDelay(r.carrier, r.flights, r.departed, r.minutes) for r in rows),
        key=lambda each: -each.mean_minutes,
    )
    if {each.carrier: each for each in told.answer} != counted(sent):
        outcome.faults.append("Spark SQL answers otherwise than a count of the input")
    worst = told.answer[0]
    show.line(
        f"SQL on the segments of broker 0: of {len(told.answer)} carriers {worst.carrier} departs "
        f"latest, {worst.mean_minutes:.1f} minutes on average over {worst.departed:,} flights"
    )
    show.proven(outcome, "a count of the input in plain Python gives the same for every carrier")


def counted(sent: Sequence[Rows]) -> dict[str, CarrierDelay]:
    """Compute the answer from the input, without Spark and without a log."""
    flights: dict[str, int] = defaultdict(int)
    delays: dict[str, list[int]] = defaultdict(list)
    for rows in sent:
        for value in rows.values:
            flight = json.loads(value)
            flights[flight["carrier"]] += 1
            if flight["dep_delay"] is not None:
                delays[flight["carrier"]].append(flight["dep_delay"])
    return {
        carrier: CarrierDelay(carrier, count, len(delays[carrier]), sum(delays[carrier]))
        for carrier, count in flights.items()
    }
