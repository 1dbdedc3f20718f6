"""``python bench/figures.py``: measures everything, and writes every figure that the pages show.

    python bench/figures.py                      all lanes, one after the other; about half an hour
    python bench/figures.py --lane log           one of them; --lane may be given again
    python bench/figures.py --quick --lane log   small sizes: does it work? Nothing to publish
    python bench/figures.py --tables             only the pages, from the files that there are
    python bench/figures.py --compare HEAD~20    the claims that there are, beside those of then

A lane is some benchmarks, run alone. It leaves ``results/LANE.json``: its claims, and the commit,
the machine, its load and the time. ``RESULTS.md`` is made of these files and of
``results/LANE.md``, which says what is missed and why; so is README's table. A lane that fails
leaves its file as it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
RESULTS, README = BENCH / "RESULTS.md", ROOT / "README.md"
MOST_BUSY = 0.5
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->"
MADE = ("bench/results", "bench/RESULTS.md", "README.md")
"""What a run itself writes, so that it tells nothing of what was measured."""

Figure = float | Sequence[float]


@dataclass(frozen=True)
class Lane:
    """Benchmarks that run together, and the code whose speed they tell."""

    title: str
    benchmarks: tuple[str, ...]
    measures: tuple[str, ...]


_LOG = ("checkpoints", "logstore/log", "logstore/segments", "logstore/format", "logstore/kernels")
LANES = {
    "log": Lane(
        "The log",
        ("append", "records", "beside", "control"),
        (*_LOG, "logstore/manager", "logstore/storage"),
    ),
    "recovery": Lane(
        "Recovery", ("recovery", "crash_recovery"), (*_LOG, "logstore/manager", "logstore/recovery")
    ),
    "verify": Lane(
        "Verification", ("verify",), ("logstore/verify", "logstore/format", "logstore/kernels")
    ),
    "compaction": Lane("Compaction", ("compaction",), ("logstore/cleaner", "logstore/kernels")),
    "kernels": Lane("Kernels", ("kernels",), ("logstore/kernels",)),
    "protocol": Lane(
        "Protocol and waiting requests",
        ("protocol", "purgatory"),
        ("replication/protocol", "replication/replica_manager/purgatory.py"),
    ),
    "replication": Lane(
        "Replication",
        ("replication",),
        (
            *(f"replication/{room}" for room in ("broker", "client", "controller", "coordination")),
            *(f"replication/{room}" for room in ("embedded", "fetcher", "partition")),
            "replication/replica_manager",
            "logstore/log",
        ),
    ),
    "server": Lane(
        "Server",
        ("server",),
        tuple(
            f"replication/{room}"
            for room in ("apis", "coordinators", "network", "protocol", "replica_manager", "server")
        ),
    ),
    "processes": Lane(
        "Brokers in processes",
        ("processes",),
        tuple(
            f"replication/{room}"
            for room in ("broker", "controller", "fetcher", "network", "replica_manager", "wire")
        ),
    ),
    "mirror": Lane(
        "Mirror and backup",
        ("mirror", "backup"),
        ("logstore/backup", "logstore/tiers", "replication/fetcher", "replication/mirror"),
    ),
    "simulator": Lane("Simulator", ("simulator",), ("replication/simulator",)),
    "spark": Lane(
        "Spark",
        ("spark_read", "spark_verify", "spark_backup"),
        ("logstore/spark", "logstore/verify"),
    ),
}

CHOSEN = [
    ("recovery", "recovery of a 1 GiB segment, 1 record a batch"),
    ("recovery", "recovery of a 1 GiB segment, 100 records a batch"),
    ("recovery", "killed with 1,024 MiB unflushed in 1,000 partitions, until served"),
    ("log", "append, one batch a call, 100 records a batch"),
    ("log", "Python keys and values in batches of 1,000, columns, against LMDB"),
    ("log", "full scan to Python tuples, CRC checked"),
    ("log", "full scan to Arrow columns, CRC checked"),
    ("log", "truncate_to 10 MB off a 256 MB segment, rising timestamps, beside Kafka"),
    ("log", "durable checkpoint of 1,000 partitions, beside Kafka"),
    ("compaction", "compaction of 512 MiB, 90 % superseded, batches of 100, none"),
    ("replication", "acks=all, three replicas in one process, 64 KiB batches"),
    ("replication", "acks=all round trip, one record"),
    ("replication", "leader dead, its death known, until the first acks=all success"),
    ("replication", "1,000 partitions of three replicas created, one topic"),
    ("replication", "role change of 1,000 partitions to leader"),
    ("server", "produce, librdkafka, 100-byte values, acks=1"),
    ("server", "consume, fetches of 1 MiB from the page cache: CPU of the broker for 1,000 MB"),
    ("server", "produce of one record, acks=1, end to end"),
    ("mirror", "mirror of 1 KiB records, the whole process"),
    ("mirror", "mirror of 1 KiB records: CPU of the process for 1 GB"),
    ("spark", "verification on Spark, batch level, beside Kafka"),
    ("spark", "three replicas verified and compared, batch level"),
    ("spark", "CPU of sum of value lengths, 100-byte values, beside a Parquet copy with zstd"),
    ("spark", "sum of value lengths, beside Spark's Kafka source"),
]
"""The lines of README's table: lane and claim."""


# -- measuring ------------------------------------------------------------------------------------


def claimed(
    what: str,
    ours: Figure,
    unit: str,
    *,
    peer: str = "",
    theirs: Figure | None = None,
    limit: float | None = None,
    goal: float | None = None,
    less: bool = False,
    note: str = "",
) -> dict[str, Any]:
    """A line: the median and the range of ours, and of how many times as good it is as the peer's
    figure, or as a fixed limit.

    What has rounds is a sequence; the rounds of two sequences took turns and are compared one by
    one. ``goal`` is the least ratio wanted. ``less`` is for times and memory, of which less is
    better.
    """
    against = theirs if limit is None else limit
    assert against is not None, "a claim needs a peer or a limit"
    assert (limit is None) == bool(peer)
    mine = [ours] if isinstance(ours, int | float) else ours
    beside = [against] * len(mine) if isinstance(against, int | float) else against
    ratios = [
        times_as_good(b, m) if less else times_as_good(m, b)
        for m, b in zip(mine, beside, strict=True)
    ]
    goal, ratio = (goal if limit is None else 1), statistics.median(ratios)
    return {
        "what": what,
        "ours": shortened(statistics.median(mine)),
        "unit": unit,
        "peer": peer,
        "against": shortened(statistics.median(beside)),
        "less": less,
        "ratio": shortened(ratio),
        "goal": goal,
        "note": note,
        "ours_range": [shortened(edge(mine)) for edge in (min, max)],
        "ratio_range": [shortened(edge(ratios)) for edge in (min, max)],
        "met": None if goal is None else ratio >= goal,
        "runs": len(mine),
    }


def times_as_good(more: float, less: float) -> float:
    """The ratio; nothing at all, as the CPU of a short run, is a millionth, or equal to nothing."""
    return more / max(less, more / 1e6) if more else float(not less)


def shortened(value: float) -> float:
    return float(f"{value:.4g}")


def busy_cores(seconds: float = 2.0) -> float:
    """How many cores have been busy in the next seconds. The load average would tell of the lane
    before as well."""

    def used() -> int:
        fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return sum(fields) - fields[3] - fields[4] - sum(fields[8:])  # idle, waiting, guests

    before, started = used(), time.monotonic()
    time.sleep(seconds)
    ticks = os.sysconf("SC_CLK_TCK")
    return round((used() - before) / ticks / (time.monotonic() - started), 2)


def git(*args: str) -> str:
    return subprocess.run(
        ["git", *args], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def machine() -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def measure(name: str, quick: bool, loaded: bool) -> bool:
    """Run a lane and write its file; whether that went well."""
    busy = busy_cores()
    if busy > MOST_BUSY and not loaded:
        print(f"{name}: something else keeps {busy} cores busy; --loaded measures nevertheless")
        return False
    facts = {
        "lane": name,
        "quick": quick,
        "commit": git("rev-parse", "HEAD"),
        "committed": git("log", "-1", "--format=%cI"),
        "dirty": bool(git("status", "--porcelain", "--", ".", *(f":!{path}" for path in MADE))),
        "date": date.today().isoformat(),
        "command": f"python bench/figures.py --lane {name}" + " --quick" * quick,
        "machine": machine(),
        "busy_cores_before": busy,
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if quick:
        environment["BENCH_QUICK"] = "1"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory) / "benchmarks.json"
        command = [sys.executable, "-m", "pytest", "-v", f"--benchmark-json={told}"]
        command += ["--benchmark-columns=median,min,max,rounds"]
        command += [f"bench/bench_{benchmark}.py" for benchmark in LANES[name].benchmarks]
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            print(f"{name}: failed; its figures stay as they were")
            return False
        facts |= {
            "seconds": round(time.monotonic() - started),
            "load_after": [round(load, 2) for load in os.getloadavg()],
            "claims": [
                claim
                for benchmark in json.loads(told.read_text())["benchmarks"]
                for claim in benchmark["extra_info"]["claims"]
            ],
        }
    path = BENCH / "results" / f"{name}.json"
    path.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    return True


# -- before and after -----------------------------------------------------------------------------


def comparison(name: str, commit: str) -> str:
    """The claims of a lane as its file has them, beside those that ``commit`` had; above 1x is
    better now."""
    path = BENCH / "results" / f"{name}.json"
    try:
        then = json.loads(git("show", f"{commit}:{path.relative_to(ROOT)}"))
    except subprocess.CalledProcessError as error:
        return f"{name}: {error.stderr.strip()}\n"
    now = json.loads(path.read_text())
    if now["quick"] != then["quick"]:
        return f"{name}: one of them is a small run, so nothing can be compared\n"
    before = {claim["what"]: claim for claim in then["claims"]}
    rows = [
        [
            claim["what"],
            f"{number(was['ours'])} {was['unit']}",
            f"{number(claim['ours'])} {claim['unit']}",
            f"{number(gain(was, claim))}x",
            f"{number(was['ratio'])}x, {number(claim['ratio'])}x",
        ]
        for claim in now["claims"]
        if (was := before.get(claim["what"])) is not None and was["unit"] == claim["unit"]
    ]
    head = f"{LANES[name].title}: {then['commit'][:10]} and {now['commit'][:10]}"
    return f"{head}\n\n{table('what, before, now, better, ratios', rows)}\n"


def gain(was: dict[str, Any], now: dict[str, Any]) -> float:
    """How many times as good it is now."""
    pair = (was["ours"], now["ours"]) if now["less"] else (now["ours"], was["ours"])
    return times_as_good(*pair)


# -- the pages ------------------------------------------------------------------------------------


def measured() -> dict[str, dict[str, Any]]:
    """The lanes that have been measured, in their order."""
    paths = {name: BENCH / "results" / f"{name}.json" for name in LANES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def ranged(claim: dict[str, Any], name: str, unit: str) -> str:
    low, high = (number(edge) for edge in claim[f"{name}_range"])
    return f"{number(claim[name])}{unit}" + (f" ({low} to {high})" if low != high else "")


def cells(claim: dict[str, Any]) -> list[str]:
    """What, ours, the peer's, the ratio and the goal."""
    against = f"{number(claim['against'])} {claim['unit']}"
    if not claim["peer"]:
        goal = f"at {'most' if claim['less'] else 'least'} {against}"
    else:
        goal = "" if claim["goal"] is None else f"at least {number(claim['goal'])}x"
    return [
        claim["what"],
        ranged(claim, "ours", f" {claim['unit']}"),
        f"{claim['peer']}: {against}" if claim["peer"] else "",
        ranged(claim, "ratio", "x"),
        goal,
    ]


def row(values: list[str]) -> str:
    return "| " + " | ".join(values) + " |"


def table(head: str, rows: list[list[str]]) -> str:
    titles = head.split(", ")
    return "\n".join([row(titles), row(["---"] * len(titles)), *map(row, rows)])


def provenance(lane: dict[str, Any]) -> str:
    m, changed = lane["machine"], ", with uncommitted changes" if lane["dirty"] else ""
    small = "**A small run: every size was shrunk, so no figure counts.** " if lane["quick"] else ""
    return (
        f"{small}`{lane['command']}` at {lane['commit'][:10]}{changed}, {lane['date']}, "
        f"{lane['seconds']} s; "
        f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, Linux {m['kernel']}, "
        f"Python {m['python']}; {lane['busy_cores_before']} cores busy before, load "
        f"{lane['load_before'][0]} before and {lane['load_after'][0]} after."
    )


def section(name: str, lane: dict[str, Any]) -> str:
    met = {True: "yes", False: "**no**", None: ""}
    rows = [[*cells(c), met[c["met"]], str(c["runs"]), c["note"]] for c in lane["claims"]]
    return "\n\n".join(
        [
            f"## {LANES[name].title}",
            prose(name),
            provenance(lane),
            table("what, logstore, peer, ratio, goal, met, runs, note", rows),
        ]
    )


def prose(name: str) -> str:
    return (BENCH / "results" / f"{name}.md").read_text().strip()


def results_page() -> str:
    lanes = measured()
    goals = {name: [c["met"] for c in lane["claims"]] for name, lane in lanes.items()}
    overview = [
        [
            LANES[name].title,
            str(len(goals[name])),
            f"{goals[name].count(True)} of {len(goals[name]) - goals[name].count(None)}",
            f"{lane['seconds']} s",
        ]
        for name, lane in lanes.items()
    ]
    return (
        "\n\n".join(
            [
                "<!-- made by bench/figures.py from bench/results; do not edit -->",
                prose("index"),
                table("lane, lines, goals met, time", overview),
                *(section(name, lane) for name, lane in lanes.items()),
                "",
            ]
        ).rstrip("\n")
        + "\n"
    )


def readme_page(text: str) -> str:
    """README with the table that the files give."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    lanes = measured()
    claims = {(name, c["what"]): c for name, lane in lanes.items() for c in lane["claims"]}
    rows = [
        [what, ours, peer or f"goal: {goal}", ratio]
        for what, ours, peer, ratio, goal in (
            cells(claims[line]) for line in CHOSEN if line in claims
        )
    ]
    shown = {lane for lane, _ in CHOSEN}
    small = any(lane["quick"] for name, lane in lanes.items() if name in shown)
    made = (
        "Made by `make figures`; [bench/RESULTS.md](bench/RESULTS.md) has the commit, the\n"
        "machine, and all lines with what is missed. Above 1x is better than the peer or the goal."
        + "\nThese are of a small run: no figure counts."
        * small
    )
    inside = f"{made}\n\n{table('what, logstore, peer in the same run, ratio', rows)}\n"
    return f"{before}{BEGIN}{inside}{end}{after}"


def write_pages() -> None:
    RESULTS.write_text(results_page())
    README.write_text(readme_page(README.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lane", action="append", choices=LANES, default=[])
    parser.add_argument("--quick", action="store_true", help="small sizes, one run of each")
    parser.add_argument("--loaded", action="store_true", help="even if the machine is busy")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    parser.add_argument("--compare", metavar="COMMIT", help="measure nothing; beside its files")
    args = parser.parse_args()
    if args.compare:
        for name in args.lane or measured():
            print(comparison(name, args.compare))
        return
    names = [] if args.tables else args.lane or list(LANES)
    before = measured()
    for name in names:
        took = f"{before[name]['seconds']} s last time" if name in before else "never run"
        print(f"  {name:12} {took}")
    failed = []
    for at, name in enumerate(names, 1):
        print(f"\n{at} of {len(names)}: {name}", flush=True)
        if not measure(name, args.quick, args.loaded):
            failed.append(name)
        write_pages()
    write_pages()
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
