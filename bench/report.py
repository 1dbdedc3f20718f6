"""Turn the JSON of benchmark runs into the tables of ``RESULTS.md``.

    make bench
    python bench/report.py bench/results/run.json
    python bench/report.py --section replication bench/results/run.json

Several files are put one after the other: a long run may be made in parts. Only the part of
RESULTS.md between the two marker lines of the section (``figures`` by default) is replaced.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def row(claim: dict[str, Any]) -> str:
    met = {True: "yes", False: "**no**", None: ""}[claim["met"]]
    ratio = f"{claim['ratio']}x" if claim.get("ratio", "") != "" else ""
    cells = [
        claim["what"],
        f"{claim['ours']} {claim['unit']}",
        claim.get("peer", ""),
        ratio,
        claim["goal"],
        met,
        claim.get("note", ""),
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def tables(run: dict[str, Any]) -> str:
    machine = run["machine_info"]
    cpu = machine.get("cpu", {})
    lines = [
        f"Run of {run['datetime'][:10]} on {cpu.get('brand_raw', 'unknown CPU')}, "
        f"{cpu.get('count', '?')} cores, {machine['system']} {machine['release']}, "
        f"Python {machine['python_version']}.",
        "",
        "| what | logstore | peer | ratio | goal | met | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for benchmark in run["benchmarks"]:
        lines += [row(claim) for claim in benchmark["extra_info"].get("claims", [])]
    kernels = [b for b in run["benchmarks"] if "implementation" in b["extra_info"]]
    if kernels:
        lines += ["", "| kernel | MB/s | M records/s |", "| --- | --- | --- |"]
        for b in kernels:
            info = b["extra_info"]
            rate = f"{info['records_per_s'] / 1e6:.1f}" if "records_per_s" in info else ""
            lines.append(f"| {b['name']} | {info.get('mb_per_s', '')} | {rate} |")
    return "\n".join(lines)


def main() -> None:
    names, section = sys.argv[1:], "figures"
    if names[:1] == ["--section"]:
        section, names = names[1], names[2:]
    if not names:
        sys.exit(__doc__)
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    runs = [json.loads(Path(name).read_text()) for name in names]
    run = runs[0]
    run["benchmarks"] = [benchmark for each in runs for benchmark in each["benchmarks"]]
    text = RESULTS.read_text()
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    RESULTS.write_text(f"{before}{begin}\n{tables(run)}\n{end}{after}")


if __name__ == "__main__":
    main()
