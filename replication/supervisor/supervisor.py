"""``Supervisor``: the processes of one cluster (X-150). It starts, restarts and stops them, and
knows nothing of what they do (X-1).

One thread waits for all of them, for the control socket and for signals. None of its processes
outlives it: see ``child``.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from logstore.common.clock import Clock, SystemClock
from logstore.storage.local import LocalStorage
from replication.supervisor import zookeeper
from replication.supervisor.cluster_file import (
    INTERNAL,
    TREE_DIR,
    ZOOKEEPER_DIR,
    BrokerEntry,
    ClusterFile,
    ServerPorts,
    write_cluster,
)
from replication.supervisor.log_files import LOGS, log_path, rotate
from replication.supervisor.processes import (
    NS_PER_S,
    Child,
    ChildState,
    Launch,
    RestartRule,
    Say,
)

LOOK_S = 1.0  # after the sizes of logs, and after ends where the system does not tell them
STOP_S = 60.0  # for a clean stop; then it is killed
CONTROLLER_S = 2.0  # for the answer who is the controller
_CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
_RUN = (sys.executable, "-P", _CHILD)
# What a process is given of the environment of its supervisor.
_PASSED = ("PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_PASSED_PREFIXES = ("LC_", "PYTHON", "LOGSTORE_", "JAVA_")

_storage = LocalStorage()

FindController = Callable[[Sequence[BrokerEntry]], int | None]
"""Which of some brokers is the controller, asked on a thread of its own."""


class Supervisor:
    """``run`` until ``stop``, or until no broker is left. For one thread, but for ``stop``.

    Args:
        directory: absolute; its lock is held by the caller.
        jars: of ZooKeeper, if that is the engine.
        say: told what happens.
    """

    def __init__(
        self,
        directory: str,
        cluster: ClusterFile,
        jars: zookeeper.Jars | None = None,
        *,
        say: Say,
        find_controller: FindController = lambda brokers: None,
        rule: RestartRule = RestartRule(),  # noqa: B008  # a constant
        environment: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.directory, self.cluster = directory, cluster
        self._jars, self._say, self._find_controller = jars, say, find_controller
        self._rule = rule
        self._clock = clock or SystemClock()
        self._environment = os.environ if environment is None else environment
        self._selector = selectors.DefaultSelector()
        self._wake_here, self._wake_there = socket.socketpair()
        for end in (self._wake_here, self._wake_there):
            end.setblocking(False)
        self.register(self._wake_here, self._on_wake)
        # The ends of two pipes: nobody reads them, see `child`.
        self._brokers_pipe, self._engine_pipe = os.pipe(), os.pipe()
        self.engine: list[Child] = []
        self.brokers: dict[int, Child] = {}
        self._stops_asked = 0
        self._stopping: list[Child] | None = None
        """Those that are still to be stopped, in order; None while nothing is."""
        self._stopping_engine = False
        self._give_up_ns = 0
        self._order: tuple[int, ...] | None = None
        self._order_due_ns = 0
        self._again: set[Child] = set()
        """Those that start anew when they have stopped."""
        self._told_all = False
        self.on_change: Callable[[Child], None] = lambda child: None
        """Called when a process is ready, has ended or was given up."""

    # -- from outside ----------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop all in order; the second call kills them. From any thread, or a signal handler."""
        self._stops_asked += 1
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # the buffer is full: it is awake; or it has ended
            self._wake_there.send(b"w")

    def register(self, source: Any, handle: Callable[[], None]) -> None:
        """Call ``handle`` when ``source`` can be read."""
        self._selector.register(source, selectors.EVENT_READ, handle)

    def unregister(self, source: Any) -> None:
        """One that is not registered, or not any more, is left alone."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(source)

    @property
    def is_stopping(self) -> bool:
        return self._stops_asked > 0

    def run(self) -> int:
        """The exit code: 0 if no process was given up."""
        try:
            self._make_directories()
            self.engine = [*self._engine_children()]
            for child in self.engine:
                self._start(child)
            if not self.engine:
                self._start_brokers()
            while not self._is_over():
                for key, _ in self._selector.select(self._patience_s()):
                    key.data()
                self._tick()
        finally:
            self._end()
        has_failed = any(each.state is ChildState.FAILED for each in self._children())
        return 1 if has_failed else 130 if self._stops_asked > 1 else 0

    # -- processes -------------------------------------------------------------------------------

    def _make_directories(self) -> None:
        for place in (LOGS, *(each.directory for each in self.cluster.brokers)):
            _storage.make_dir(os.path.join(self.directory, place))

    def _child(
        self, name: str, log: str, command: Sequence[str], pipe: int, kept: Sequence[int] = ()
    ) -> Child:
        launch = Launch(
            command,
            environment_of(self._environment),
            log_path(self.directory, log),
            pipe,
            tuple(kept),
        )
        return Child(name, launch, self._clock, self._rule)

    def _engine_children(self) -> Iterator[Child]:
        engine, pipe = self.cluster.engine, self._engine_pipe[0]
        if engine.tree_port:
            command = (
                *_RUN,
                "logstore",
                "coordinator",
                f"--dir={os.path.join(self.directory, TREE_DIR)}",
                f"--listen=127.0.0.1:{engine.tree_port}",
                "--json",
            )
            yield self._child("coordinator", "coordinator", command, pipe)
        for number, ports in enumerate(engine.servers, 1):
            name = f"zookeeper {number}"
            yield self._child(name, f"zookeeper-{number}", self._server(number, ports), pipe)

    def _server(self, number: int, ports: ServerPorts) -> Sequence[str]:
        """The command of a ZooKeeper, whose files are written."""
        home = os.path.join(self.directory, ZOOKEEPER_DIR, str(number))
        data = os.path.join(home, "data")
        _storage.make_dir(data)
        servers = self.cluster.engine.servers
        ensemble = servers if len(servers) > 1 else ()
        text = zookeeper.configuration(data, ports, ensemble)
        files = {os.path.join(home, "zoo.cfg"): text}
        if ensemble:
            files[os.path.join(data, "myid")] = f"{number}\n"
        for path, content in files.items():
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
        assert self._jars is not None
        program = zookeeper.java(self._environment) or "java"
        command = zookeeper.server_command(program, self._jars, os.path.join(home, "zoo.cfg"))
        return (*_RUN, "zookeeper", str(ports.port), *command)

    def _broker_child(self, entry: BrokerEntry) -> Child:
        pairs = configuration_of(entry)
        logins = {"--users": entry.users, "--inter-broker-password-file": entry.password_file}
        command = (
            *_RUN,
            "logstore",
            "serve",
            f"--broker-id={entry.broker_id}",
            f"--coordinator={self.cluster.engine.url}",
            f"--dir={os.path.join(self.directory, entry.directory)}",
            f"--listen={entry.listeners}",
            f"--http={entry.http}",
            "--json",
            *(f"{option}={path}" for option, path in logins.items() if path),
            *(f"--config={path}" for path in entry.config_files),
            *(f"--config={key}={value}" for key, value in pairs.items()),
        )
        name = f"broker {entry.broker_id}"
        log = f"broker-{entry.broker_id}"
        return self._child(name, log, command, self._brokers_pipe[0], self._engine_pipe[1:])

    def _start_brokers(self) -> None:
        for entry in self.cluster.brokers:
            self.brokers[entry.broker_id] = child = self._broker_child(entry)
            self._start(child)

    def _children(self) -> list[Child]:
        return [*self.engine, *self.brokers.values()]

    def _start(self, child: Child, anew: bool = False) -> None:
        if child.start_anew() if anew else child.start():
            if child.stdout is not None:
                self.register(child.stdout, lambda: self._on_output(child))
            if child.end >= 0:
                self.register(child.end, lambda: self._on_end(child))
        else:
            self._on_death(child)

    def _on_output(self, child: Child) -> None:
        stdout = child.stdout
        if stdout is None:
            return
        if child.on_output():
            self._on_ready(child)
        if child.output_ended:
            self.unregister(stdout)

    def _on_ready(self, child: Child) -> None:
        where = child.ready.get("coordinator") or ",".join(
            map(str, child.ready.get("bootstrapServers") or ())
        )
        self._tell(child, f"{child.name:<12} ready     {where}  pid {child.pid}")
        if child in self.engine:
            are_ready = all(each.state is ChildState.READY for each in self.engine)
            if are_ready and not self.brokers and not self.is_stopping:
                self._start_brokers()
        elif not self._told_all and all(
            each.state is ChildState.READY for each in self.brokers.values()
        ):
            self._told_all = True
            servers = self.cluster.bootstrap_servers
            self._say(
                f"ready: {servers}",
                {
                    "state": "ready",
                    "bootstrapServers": servers.split(","),
                    "coordinator": self.cluster.engine.url,
                },
            )
        self.on_change(child)

    def _on_end(self, child: Child) -> None:
        if not child.has_ended():
            return
        self._on_output(child)  # a last word
        for source in (child.stdout, child.end):
            self.unregister(source)
        was_asked = child.state is ChildState.STOPPING
        child.on_end()
        if was_asked:
            self._tell(child, f"{child.name:<12} stopped")
            if child in self._again and not self.is_stopping:
                self._start(child, anew=True)
            self._again.discard(child)
            self.on_change(child)
        else:
            self._on_death(child)

    def _on_death(self, child: Child) -> None:
        if child.state is ChildState.FAILED:
            self._tell(child, f"{child.name:<12} given up  {child.said}; see {child.launch.log}")
        else:
            wait_s = (child.due_ns - self._clock.monotonic_ns()) / NS_PER_S
            self._tell(child, f"{child.name:<12} died      {child.said}; again in {wait_s:.0f} s")
        self.on_change(child)

    def _tell(self, child: Child, text: str) -> None:
        self._say(
            text,
            {
                "process": child.name,
                "state": child.state.value,
                "pid": child.pid,
                "reason": child.said or None,
                **{key: value for key, value in child.ready.items() if key != "state"},
            },
        )

    # -- one broker --------------------------------------------------------------------------------

    def restart(self, broker_id: int) -> None:
        """Stop it in order if it runs, and start it anew."""
        child = self.brokers[broker_id]
        if child.state.is_alive:
            self._again.add(child)
            self._stop_within(child)
        else:
            self._start(child, anew=True)

    def stop_broker(self, broker_id: int) -> None:
        child = self.brokers[broker_id]
        self._again.discard(child)  # of a restart whose caller has gone
        self._stop_within(child)

    def add(self, entry: BrokerEntry) -> None:
        """Write it down, and start it."""
        _storage.make_dir(os.path.join(self.directory, entry.directory))
        self._write(self.cluster.with_broker(entry))
        self.brokers[entry.broker_id] = child = self._broker_child(entry)
        self._start(child)

    def forget(self, broker_id: int) -> None:
        """One that does not run: cross it out."""
        assert not self.brokers[broker_id].state.is_alive
        self._write(self.cluster.without(broker_id))
        del self.brokers[broker_id]

    def _write(self, cluster: ClusterFile) -> None:
        write_cluster(self.directory, cluster)
        self.cluster = cluster

    # -- time --------------------------------------------------------------------------------------

    def _in(self, seconds: float) -> int:
        return self._clock.monotonic_ns() + int(seconds * NS_PER_S)

    def _patience_s(self) -> float:
        now = self._clock.monotonic_ns()
        due = [each.due_ns for each in self._children() if each.state is ChildState.PAUSED]
        if self._give_up_ns:
            due.append(self._give_up_ns)
        return max(0.0, min([LOOK_S, *((at - now) / NS_PER_S for at in due)]))

    def _tick(self) -> None:
        now = self._clock.monotonic_ns()
        for child in self._children():
            if child.end < 0:
                self._on_end(child)
            if child.state is ChildState.PAUSED and child.due_ns <= now and not self.is_stopping:
                self._start(child)
            rotate(child.launch.log)
        if self._give_up_ns and now >= self._give_up_ns:
            self._give_up_ns = 0
            for child in self._children():
                if child.state is ChildState.STOPPING:
                    why = f"it did not stop in {STOP_S:.0f} s"
                    self._tell(child, f"{child.name:<12} killed    {why}")
                    child.kill()
        if self.is_stopping:
            self._go_on_stopping()

    # -- the end -----------------------------------------------------------------------------------

    def _on_wake(self) -> None:
        with suppress(OSError):
            self._wake_here.recv(64)

    def _is_over(self) -> bool:
        if self.is_stopping:
            return self._stopping_engine and not any(
                each.state.is_alive for each in self._children()
            )
        failed = [each.state is ChildState.FAILED for each in self.brokers.values()]
        if failed and all(failed):
            self._say("error: no broker is left", {"state": "failed"})
            return True
        if not self.brokers and any(each.state is ChildState.FAILED for each in self.engine):
            text = "error: without its coordinator the cluster cannot start"
            self._say(text, {"state": "failed"})
            return True
        return False

    def _go_on_stopping(self) -> None:
        """One broker after the other, the controller last; then the engine."""
        if self._stops_asked > 1:
            self._stopping_engine = True
            for child in self._children():
                child.kill()
                child.stop()
            return
        if self._stopping is None:
            if not self._knows_order():
                return
            last = self._order or ()
            ids = sorted(self.brokers, key=lambda broker_id: (broker_id in last, broker_id))
            self._stopping = [self.brokers[broker_id] for broker_id in ids]
        while self._stopping and not self._stopping[0].state.is_alive:
            self._stopping.pop(0).stop()
        if self._stopping:
            if self._stopping[0].state is not ChildState.STOPPING:
                self._stop_within(self._stopping[0])
        elif not self._stopping_engine:
            self._stopping_engine = True
            for child in self.engine:
                self._stop_within(child)

    def _stop_within(self, child: Child) -> None:
        child.stop()
        self._give_up_ns = self._in(STOP_S)

    def _knows_order(self) -> bool:
        """Whether the order of the brokers is settled: asked once, and not waited for longer than
        ``CONTROLLER_S``."""
        if sum(each.state.is_alive for each in self.brokers.values()) < 2:
            self._order = ()
        elif self._order is None and not self._order_due_ns:
            self._order_due_ns = self._in(CONTROLLER_S)
            threading.Thread(target=self._ask_order, name="order", daemon=True).start()
        elif self._order is None and self._clock.monotonic_ns() >= self._order_due_ns:
            self._order = ()
        return self._order is not None

    def _ask_order(self) -> None:
        found = self._find_controller(self.cluster.brokers)
        self._order = () if found is None else (found,)
        self._wake()

    def _end(self) -> None:
        """Nothing is left, however ``run`` ended: after an error of ours all are asked first."""
        for children in (self.brokers.values(), self.engine):
            for child in children:
                child.stop()
            ends_ns = self._in(STOP_S)
            for child in children:
                child.wait((ends_ns - self._clock.monotonic_ns()) / NS_PER_S)
        for pipe in (self._brokers_pipe, self._engine_pipe):
            for end in pipe:
                os.close(end)
        self._selector.close()
        self._wake_here.close()
        self._wake_there.close()


def configuration_of(broker: BrokerEntry) -> dict[str, str]:
    """What its process is given beside its files, under Kafka's keys."""
    return {
        "inter.broker.listener.name": INTERNAL,
        "listener.security.protocol.map": f"{INTERNAL}:PLAINTEXT",
        **broker.config,
    }


def environment_of(given: Mapping[str, str]) -> dict[str, str]:
    """What a process is given. It begins in another directory, so paths become absolute."""
    passed = {
        key: value
        for key, value in given.items()
        if key in _PASSED or key.startswith(_PASSED_PREFIXES)
    }
    if "PYTHONPATH" in passed:
        parts = passed["PYTHONPATH"].split(os.pathsep)
        passed["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in parts if part)
    return passed
