"""A supervisor whose processes are stubs, on a thread of the test."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replication.supervisor.cluster_file import BrokerEntry, ClusterFile, write_cluster
from replication.supervisor.control import ControlServer
from replication.supervisor.planning import StartOptions, first_plan
from replication.supervisor.processes import RestartRule
from replication.supervisor.supervisor import Supervisor
from tests.support.until import patience, until

STUB = Path(__file__).parent / "stub"
SOON = RestartRule(first_s=0.01, longest_s=0.02)


class Running:
    """
    Attributes:
        said: what it told programs, in order.
    """

    def __init__(self, directory: Path, plan: ClusterFile, **options: Any) -> None:
        self.directory = directory
        self.said: list[Mapping[str, Any]] = []
        self.code: int | None = None
        environment = {**os.environ, "PYTHONPATH": str(STUB)}
        self.supervisor = Supervisor(
            str(directory),
            plan,
            say=lambda text, fields: self.said.append({**fields, "text": text}),
            environment=environment,
            rule=options.pop("rule", SOON),
            **options,
        )
        self._control = ControlServer(self.supervisor)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._control:
            self.code = self.supervisor.run()

    def stop(self) -> int:
        """The exit code."""
        self.supervisor.stop()
        return self.wait()

    def wait(self) -> int:
        self._thread.join(patience())
        assert self.code is not None
        return self.code

    def until_said(self, state: str, process: str | None = None, count: int = 1) -> Any:
        """What was told last about a process, or about all of them."""

        def found() -> Any:
            them = [e for e in self.said if (e["state"], e.get("process")) == (state, process)]
            return them[-1] if len(them) >= count else None

        return until(found, f"{process} is {state}: {self.said}")

    def pid(self, broker_id: int) -> int:
        pid = self.supervisor.brokers[broker_id].pid
        assert pid is not None
        return pid

    @property
    def events(self) -> list[str]:
        """What the processes did, in order."""
        return (self.directory / "events").read_text().splitlines()


def plan_in(directory: Path, brokers: int = 2, **config: str) -> ClusterFile:
    """Brokers on free ports that meet elsewhere; keys have _ for each dot."""
    wanted = StartOptions(
        brokers=brokers,
        listen="127.0.0.1:0",
        engine="zookeeper://nowhere:1",
        config={key.replace("_", "."): value for key, value in config.items()},
    )
    plan = first_plan(str(directory), wanted, {})
    write_cluster(str(directory), plan)
    return plan


@contextmanager
def running(directory: Path, plan: ClusterFile, **options: Any) -> Iterator[Running]:
    found = Running(directory, plan, **options)
    try:
        yield found
    finally:
        if found.code is None:
            found.supervisor.stop()
            found.supervisor.stop()
            found.wait()


def shows(directory: Path, entry: BrokerEntry, **files: Any) -> None:
    """Let a stub answer so: ``ready`` and ``state``."""
    place = directory / entry.directory
    place.mkdir(exist_ok=True)
    for name, content in files.items():
        (place / f"{name}.json").write_text(json.dumps(content))
