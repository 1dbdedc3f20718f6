"""``python bench/flames.py WAY``: where the time of one of the hottest ways goes, as a picture.

    produce     one record a request over TCP, acks=1; the client is a process of its own
    acks-all    batches of 64 KiB to three brokers in one process
    read        all records of a log as Python tuples

py-spy takes samples of all threads that do not wait, and ``results/flame-WAY.svg`` is made of them:
the width of a frame is its share of the time. A picture takes ten seconds. It tells where to look;
figures are those of the lanes.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

BENCH = Path(__file__).resolve().parent
SECONDS = 6
RATE = 100  # samples a second
WIDTH, ROW, LETTER = 1200, 16, 6.7
NARROWEST = 3.0  # what is narrower is left out, so that a picture stays below 200 kB
LEFT_OUT = re.compile("_find_and_load|PyThread_acquire_lock|pthread_cond_|epoll_wait|os_wait")
"""Imports, at the start, and threads that wait: py-spy does not always see that they do."""
DONE = "done"
MISSING = "py-spy is missing: pip install -e '.[bench]'"


def until(end: float, work: Callable[[], object]) -> None:
    while time.monotonic() < end:
        work()


# -- the ways, each in the process that is looked at ----------------------------------------------


def produce(directory: Path) -> None:
    """One record a request over TCP, acks=1: the broker."""
    from replication.network import Listener
    from replication.server.serving import serve

    with serve(directory, listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),)) as kafka:
        kafka.create_topic("one")
        (endpoint,) = kafka.broker(0).endpoints
        subprocess.run([sys.executable, __file__, "--load", str(endpoint.port)], check=True)


def load(port: int) -> None:
    """The client of ``produce``."""
    from server_peers import RawClient, produce_frame

    request = produce_frame("one", bytes(100))
    with RawClient(port) as client:
        client.await_leader("one")

        def ask() -> None:
            client.send(request)
            client.receive()

        until(time.monotonic() + SECONDS, ask)


def acks_all(directory: Path) -> None:
    """Batches of 64 KiB to three brokers in one process, acks=all."""
    from bench_replication import TWO, Pipeline
    from workloads import CONFIG

    from replication.embedded.cluster import Cluster

    cluster = Cluster(3, directory, log_config=CONFIG.with_properties({"retention.bytes": "1"}))
    try:
        (tp,) = cluster.create_topic("all", assignment=[[0, 1, 2]], config=TWO)
        pipeline = Pipeline(cluster, tp)
        until(time.monotonic() + SECONDS, lambda: pipeline.run(64))
    finally:
        cluster.close()


def read(directory: Path) -> None:
    """All records of a log as Python tuples."""
    from workloads import make_log

    log = make_log(directory / "t-0", 100, 64 << 20)
    until(time.monotonic() + SECONDS, lambda: sum(map(len, log.record_chunks())))
    log.close()


WAYS: dict[str, Callable[[Path], None]] = {"produce": produce, "acks-all": acks_all, "read": read}


# -- the picture ----------------------------------------------------------------------------------


@dataclass
class Frame:
    """A function with what it called; ``samples`` has those of all below it."""

    samples: int = 0
    below: dict[str, Frame] = field(default_factory=dict)

    def add(self, stack: Sequence[str], samples: int) -> None:
        self.samples += samples
        if stack:
            self.below.setdefault(stack[0], Frame()).add(stack[1:], samples)

    def depth(self) -> int:
        return 1 + max((each.depth() for each in self.below.values()), default=0)


def sampled(way: str) -> Frame:
    beside = Path(sys.executable).with_name("py-spy")  # of a venv that is not activated
    spy = str(beside) if beside.exists() else shutil.which("py-spy")
    if spy is None:
        sys.exit(MISSING)
    with tempfile.TemporaryDirectory() as directory:
        raw, done = Path(directory) / "raw", Path(directory) / DONE
        command = [spy, "record", "--native", "--function", f"--rate={RATE}"]
        command += ["--format=raw", f"--output={raw}", "--"]
        command += [sys.executable, __file__, "--run", way, directory]
        subprocess.run(command, check=True)
        if not done.exists():  # py-spy does not say how it ended
            sys.exit(f"{way} failed: see above")
        root = Frame()
        for line in raw.read_text().splitlines():
            stack, _, samples = line.rpartition(" ")
            if not LEFT_OUT.search(stack):
                root.add(frames(stack), int(samples))
    return root


def frames(stack: str) -> list[str]:
    """Names without addresses; what has only an address is its library."""
    found: list[str] = []
    for each in stack.split(";"):
        name = re.sub(r"^0x[0-9a-f]+ \((?:.*/)?([^/)]*?)(\.[^)]*)?\)$", r"\1", each)
        if found[-1:] != [name]:
            found.append(name)
    return found


def picture(root: Frame, title: str) -> str:
    """SVG; the name of a frame and its share are told where the pointer rests."""
    height = (root.depth() + 2) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="monospace" font-size="11">',
        f'<text x="4" y="{ROW - 4}" font-size="13">{escape(title)}</text>',
    ]

    def draw(name: str, frame: Frame, x: float, depth: int) -> None:
        wide = WIDTH * frame.samples / root.samples
        if wide < NARROWEST:
            return
        y, share = height - (depth + 1) * ROW, 100 * frame.samples / root.samples
        shade = 90 + 130 * (zlib.crc32(name.encode()) % 97) // 97
        box = f'x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{ROW - 1}"'
        told = f"<title>{escape(name)} {share:.1f} %</title>"
        lines.append(f'<rect {box} fill="rgb(235,{shade},60)">{told}</rect>')
        short = name[: int(wide / LETTER)]
        if len(short) > 2:
            lines.append(
                f'<text x="{x + 2:.1f}" y="{y + 12}" pointer-events="none">{escape(short)}</text>'
            )
        for called, each in sorted(frame.below.items()):
            draw(called, each, x, depth + 1)
            x += WIDTH * each.samples / root.samples

    draw("all", root, 0, 0)
    return "\n".join([*lines, "</svg>", ""])


def draw(way: str) -> Path:
    root = sampled(way)
    title = f"{(WAYS[way].__doc__ or way).rstrip('.')}: {root.samples} samples"
    path = BENCH / "results" / f"flame-{way}.svg"
    path.write_text(picture(root, title))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("way", nargs="*", help="by default all")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--load", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        way, directory = args.run
        WAYS[way](Path(directory) / "data")
        (Path(directory) / DONE).touch()
    elif args.load:
        load(args.load)
    else:
        if unknown := set(args.way) - set(WAYS):
            parser.error(f"no way is called {', '.join(sorted(unknown))}")
        for way in args.way or WAYS:
            print(draw(way))


if __name__ == "__main__":
    main()
