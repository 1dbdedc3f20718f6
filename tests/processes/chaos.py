"""Three processes under faults and load, and a report of what happened (X-83, X-125)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.transactions import COPIES, PARTITIONS, SOURCE
from tests.processes import checks
from tests.processes.faults import Faults, Kind, Mend, Strike, rest
from tests.processes.load import APPENDS, Load, final_log, lane_history
from tests.processes.nodes import SESSION_MS, Nodes
from tests.support.transactional_histories import (
    Finding,
    History,
    Log,
    check,
    check_copies,
)
from tests.support.until import until

LEEWAY_S = 3.0
"""How long a partition may be away beside the time in which a session ends."""
BETWEEN_S = 5.0
SLACK = 8
"""More descriptors and threads than early in a process's life; a leak has one for each fault."""
TOPIC = {"segment.bytes": 1 << 20}


@dataclass
class Report:
    """What a run was, and what is wrong.

    Attributes:
        struck: (seconds since the beginning, fault).
        absences: (seconds, since when, partition) of the longest, of those that have a bound.
        wrong: findings; none in a run that is well.
    """

    seed: int
    minutes: float
    overlap: bool
    struck: list[tuple[float, str]] = field(default_factory=list)
    absences: list[tuple[float, float, int]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def __str__(self) -> str:
        longest = f"{self.absences[0][0]:.1f} s" if self.absences else "none"
        return (
            f"seed {self.seed}: {len(self.struck)} faults, longest absence of a partition "
            f"{longest}, {self.figures}\n" + ("\n".join(self.wrong[:20]) or "all is well")
        )


class Run:
    """One run.

    Args:
        session_s: after which a silent broker's session ends; what is away longer is a finding.
        overlap: strike every five seconds, whether or not the last fault is mended; there is no
            bound for absences then.
        weights: of the kinds of faults.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        seconds: float,
        *,
        java: bool = True,
        overlap: bool = False,
        longest_s: float = 30.0,
        between_s: float = BETWEEN_S,
        weights: Mapping[Kind, float] | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        self.nodes = nodes or Nodes(directory, seed=seed)
        self.seconds, self.java, self.overlap, self.seed = seconds, java, overlap, seed
        self.report = Report(seed, seconds / 60, overlap)
        self._longest_s, self._weights, self._between_s = longest_s, weights, between_s
        self._first: dict[int, tuple[int, int, int]] = {}
        self._began = 0.0
        self._blocked: list[tuple[float, float]] = []  # when partitions may be away, and how long
        self._two_leaders = False  # there may have been

    def run(self) -> Report:
        """
        Raises:
            NodeFailed, AssertionError: it came to no end.
        """
        with self.nodes as nodes:
            load = Load(nodes.bootstrap, self.seed, java=self.java)
            for topic, partitions in load.topics.items():
                nodes.create_topic(topic, partitions, TOPIC)
            try:
                load.begin(self.seconds)
                until(lambda: load.is_going, "every client is served")
                self._first_look()
                self._began = time.monotonic()
                self._strike_all(load)
                logs = self._settle(load)
            finally:
                load.close()
            self._check_files()
            self._check(load, logs)
        return self.report

    # -- faults ------------------------------------------------------------------------------------

    def _strike_all(self, load: Load) -> None:
        faults = Faults(self.nodes, self.seed, self._longest_s, self._weights)
        mends: list[tuple[float, Mend]] = []
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            rest(self._between_s, load.keep_alive)
            self._mend(mends, time.monotonic())
            kind = faults.draw()
            if mends and kind not in (Kind.CUT_ONE, Kind.CUT_BOTH, Kind.RESET, Kind.CLOCK):
                continue  # whoever does not run cannot be killed
            self._note(strike := faults.strike(kind))
            mends.append((time.monotonic() + strike[0].seconds, strike[1]))
            if not self.overlap:
                rest(strike[0].seconds, load.keep_alive)
                self._mend(mends, time.monotonic())
                self.nodes.wait_until_whole()
                self._first_look()
        self._mend(mends, time.monotonic() + 1e9)

    def _note(self, struck: tuple[Strike, Mend]) -> None:
        at = time.monotonic() - self._began
        strike, _ = struck
        self.report.struck.append((round(at, 1), str(strike)))
        self._two_leaders = self._two_leaders or strike.kind.leaves_two
        if strike.blocks:
            self._blocked.append((at, strike.seconds))
        print(f"{time.monotonic() % 1e5:9.2f}: {at:6.1f} s  {strike}", flush=True)

    def _mend(self, mends: list[tuple[float, Mend]], until: float) -> None:
        for due in [each for each in mends if each[0] <= until]:
            mends.remove(due)
            due[1]()

    # -- the end -----------------------------------------------------------------------------------

    def _settle(self, load: Load) -> Mapping[str, Log]:
        """Let all clients come to an end. Returns what is in each topic then."""
        self.report.figures["whole_after_s"] = round(self.nodes.wait_until_whole(), 1)
        absences = load.prober.absences(1.0)
        load.stop_writing()
        logs = {
            topic: final_log(self.nodes.bootstrap, topic, partitions)
            for topic, partitions in load.topics.items()
            if topic != COPIES
        }
        self._await_readers(load, logs)
        load.stop_reading()
        logs[COPIES] = final_log(self.nodes.bootstrap, COPIES, PARTITIONS)
        self._check_absences(absences)
        self._check_leftovers()
        return logs

    def _check(self, load: Load, logs: Mapping[str, Log]) -> None:
        """What the clients did and saw. Nothing runs any more: the checks need all of a core."""
        for lane in load.lanes:
            history = History()
            history.transactions += lane_history(lane, logs[lane.topic])
            self._find(check(history, logs[lane.topic]), lane.name)
            self._find(checks.check_sends(history, logs[lane.topic]), lane.name)
        self._check_appends(load, logs[APPENDS])
        self._check_transactions(load, logs)
        self.report.figures |= load.progress

    def _await_readers(self, load: Load, logs: Mapping[str, Log]) -> None:
        left = {value for records in logs[APPENDS].values() for _, value in records}
        count = sum(map(len, logs[SOURCE].values()))
        looked = dict.fromkeys(load.members, 0)

        def unseen() -> set[bytes]:
            # What was looked at once is not looked at again: the relay's thread is beside this one.
            for member, start in looked.items():
                polls = member.polls[start:]
                looked[member] = start + len(polls)
                left.difference_update(read.value for poll in polls for read in poll.reads)
            return left

        until(lambda: not unseen(), "the group has read everything")
        until(
            lambda: len(load.transactions.reads["reader"]) >= count,
            "the reader has read everything",
        )

        def copied() -> bool:
            if not load.copier.is_idle:
                return False
            found = final_log(self.nodes.bootstrap, COPIES, PARTITIONS)
            return sum(map(len, found.values())) >= count

        until(copied, "everything is copied")

    def _check_appends(self, load: Load, log: Log) -> None:
        history = load.appends
        polls = sorted((p for m in load.members for p in m.polls), key=lambda p: p.began)
        commits = [commit for member in load.members for commit in member.commits]
        self._find(check(history, log), APPENDS)
        self._find(checks.check_sends(history, log), APPENDS)
        self._find(checks.check_polls(polls, log), APPENDS)
        self._find(checks.check_commits(commits, polls), APPENDS)
        # A leader that does not know yet of its successor answers with an end that was.
        ends = [] if self._two_leaders else load.ends.reads
        registers = checks.registers(history, log, ends)
        self._find(checks.check_realtime(registers), APPENDS)
        self.registers = registers

    def _check_transactions(self, load: Load, logs: Mapping[str, Log]) -> None:
        copies = load.copier.copies
        self._find(check(load.transactions, logs[SOURCE]), SOURCE)
        self._find(check(copies, logs[COPIES]), COPIES)
        self._find(check_copies(copies, logs[SOURCE], logs[COPIES]), COPIES)
        both = History()
        both.transactions = [*load.transactions.transactions, *copies.transactions]
        edges = checks.dependencies(both, {**logs[SOURCE], **logs[COPIES]})
        if circles := checks.read_circles(edges):
            self.report.wrong.append(f"G1c: {circles[:3]}")
        self.report.figures |= {name: len(each) for name, each in checks.cycles(edges).items()}

    def _find(self, findings: Any, where: str) -> None:
        each: Finding
        for each in findings:
            self.report.wrong.append(f"{where}: {each.anomaly.value}: {each.what}"[:1000])

    def _check_absences(self, absences: list[tuple[float, float, int]]) -> None:
        since = self._began
        self.report.absences = [
            (round(s, 2), round(at - since, 1), p) for s, at, p in absences[:10] if at > since - 1
        ]
        bound = SESSION_MS / 1000 + LEEWAY_S
        if not self.overlap:
            self.report.wrong += [
                f"probes-{partition} was away for {seconds} s, from {at} s on, above {bound:.0f} s"
                for seconds, at, partition in self.report.absences
                if seconds > bound + self._excuse(at, seconds)
            ]

    def _excuse(self, since: float, seconds: float) -> float:
        """The seconds of cuts within that time in which no leader could shrink its ISR."""
        return sum(long for at, long in self._blocked if since - 1 < at < since + seconds)

    # -- what the processes hold -------------------------------------------------------------------

    def _first_look(self) -> None:
        for broker_id, node in self.nodes.brokers.items():
            if self._first.get(broker_id, (0,))[0] != node.starts:
                self._first[broker_id] = (node.starts, *node.held())

    def _check_leftovers(self) -> None:
        for broker_id, (starts, descriptors, threads) in self._first.items():
            node = self.nodes.brokers[broker_id]
            if starts != node.starts:
                continue
            held = node.held()
            for what, now, before in zip(
                ("descriptors", "threads"), held, (descriptors, threads), strict=True
            ):
                if now > before + SLACK:
                    self.report.wrong.append(f"{node.name} has {now} {what}, and had {before}")

    def _check_files(self) -> None:
        self.nodes.wait_until_whole()
        self.nodes.stop_all()
        self.nodes.verify()
