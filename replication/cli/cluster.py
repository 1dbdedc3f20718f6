"""``logstore cluster``: brokers in processes of their own, run together."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import COUNT, Number

if TYPE_CHECKING:
    from replication.supervisor.cluster_file import ClusterFile
    from replication.supervisor.cluster_state import BrokerView, ClusterHealth, EngineView
    from replication.supervisor.page import ClusterPage
    from replication.supervisor.planning import StartOptions
    from replication.supervisor.supervisor import Supervisor

LOCK = "cluster.lock"
POLL_S = 0.5
WAIT_S = 600.0  # until a broker is ready, and until one may be restarted
POLLS = range(int(WAIT_S / POLL_S))
TAIL_LINES = 100
PATHS = {"ssl.keystore.location", "ssl.truststore.location"}
BROKER_ID = Number(0, 2**31 - 1)


def _directory(ctx: click.Context, _: click.Parameter, value: str | None) -> str:
    """Absolute; the option may also stand before the command."""
    found = value or ctx.obj
    if found is None:
        raise click.UsageError("Missing option '--dir'.")
    return os.path.abspath(found)


directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    callback=_directory,
    type=click.Path(file_okay=False),
    help="Directory of the cluster.",
)
broker_argument = click.argument("broker_id", metavar="N", type=BROKER_ID)
unavailable_option = click.option(
    "--allow-unavailable",
    is_flag=True,
    help="Also if partitions that need each of their replicas are away meanwhile.",
)


@click.group(
    invoke_without_command=True, short_help="Run a cluster of brokers, each in its own process."
)
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Directory; each broker has its log directory in it.",
)
@click.option("--brokers", type=Number(1, 100), help="How many, at the first start: 3 by default.")
@click.option(
    "--config",
    "given",
    multiple=True,
    metavar="KEY=VALUE|FILE",
    help="Configuration under Kafka's broker-wide keys, or a server.properties with them; may be "
    "repeated.",
)
@click.option(
    "--listen",
    metavar="[PROTOCOL://]HOST:PORT",
    help="Address of the first broker, 127.0.0.1:9092 by default; the next ones have the ports "
    "that follow. Port 0: any.",
)
@click.option(
    "--engine",
    metavar="zookeeper|tree|URL",
    help="Where the brokers meet: ZooKeeper if its jars are here, otherwise a tree of our own; or "
    "what runs already.",
)
@click.option(
    "--zookeeper",
    "servers",
    type=click.Choice(["1", "3"]),
    help="How many servers of ZooKeeper: 1 by default.",
)
@click.option(
    "--zookeeper-jars",
    "jars",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Where ZooKeeper's jars are. Otherwise: ZOOKEEPER_HOME, Debian's package, PySpark's.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve the live page of all brokers there, and whether all are healthy and ready.",
)
@click.option(
    "--users",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Who may log in on listeners with SASL: NAME:PASSWORD in each line.",
)
@click.option(
    "--inter-broker-password-file",
    "password_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="NAME:PASSWORD by which brokers log in at each other, if their listener has SASL.",
)
@json_option
@click.pass_context
def cluster(ctx: click.Context, /, directory: str | None, as_json: bool, **given: Any) -> None:
    """Run the brokers of one cluster, each in a process of its own, and what they need to meet.

    The first start writes DIR/cluster.toml: ids, ports, options. A later one reads it. One line
    says that a broker is ready, one that all are. A process that dies is started again, after 1 to
    30 seconds; after five deaths in a minute it is given up, and the exit code is 1 in the end.
    Ctrl-C and SIGTERM stop one broker after the other, leaderships move away first; a second one
    stops all at once. No process outlives this one.

    \b
      logstore cluster --dir /tmp/kafka
      logstore cluster --dir /tmp/kafka --brokers 5 --zookeeper 3 --config num.partitions=4
      logstore cluster status --dir /tmp/kafka
      logstore cluster restart --rolling --dir /tmp/kafka
    """
    if ctx.invoked_subcommand is not None:
        if as_json or any(given.values()):
            raise click.UsageError(f"give options behind {ctx.invoked_subcommand}")
        ctx.obj = directory
        return
    if directory is None:
        raise click.UsageError("Missing option '--dir'.")
    code = _run(os.path.abspath(directory), _wanted(**given), _teller(as_json))
    raise click.exceptions.Exit(code)


def _wanted(
    brokers: int | None,
    given: tuple[str, ...],
    listen: str | None,
    engine: str | None,
    servers: str | None,
    jars: str | None,
    http: str | None,
    users: str | None,
    password_file: str | None,
) -> StartOptions:
    from replication.cli.serve import split_config
    from replication.supervisor.planning import StartOptions

    files, config = split_config(given)
    for key in PATHS & config.keys():  # the brokers' working directory is another one
        config[key] = os.path.abspath(config[key])
    return StartOptions(
        brokers=brokers,
        listen=listen,
        http=http,
        engine=engine,
        servers=None if servers is None else int(servers),
        jars=None if jars is None else os.path.abspath(jars),
        config_files=tuple(map(os.path.abspath, files)),
        config=config,
        users=None if users is None else os.path.abspath(users),
        password_file=None if password_file is None else os.path.abspath(password_file),
    )


def _teller(as_json: bool) -> Callable[[str, Mapping[str, Any]], None]:
    """Prints events. Nobody has to read them: the cluster goes on."""

    def tell(text: str, fields: Mapping[str, Any]) -> None:
        try:
            is_bad = fields.get("state") in ("failed", "paused")
            if as_json:
                terminal.line(json.dumps(fields))
            else:
                terminal.line(text, err=is_bad)
            terminal.flush()
        except BrokenPipeError:
            terminal.hang_up()
        except OSError:  # a full disk; what was said stays in the buffer
            pass

    return tell


def _run(
    directory: str, wanted: StartOptions, tell: Callable[[str, Mapping[str, Any]], None]
) -> int:
    from logstore.common.errors import LogDirLockedError
    from logstore.storage.local import LocalStorage
    from replication.coordination import open_coordinator
    from replication.supervisor.cluster_file import read_cluster, write_cluster
    from replication.supervisor.cluster_state import find_controller
    from replication.supervisor.control import ControlServer
    from replication.supervisor.planning import (
        check,
        check_ports,
        first_plan,
        require_jars,
        with_page,
    )
    from replication.supervisor.supervisor import Supervisor

    storage = LocalStorage()
    storage.make_dir(directory)
    with ExitStack() as opened:
        try:
            lock = storage.lock(os.path.join(directory, LOCK))
        except LogDirLockedError as error:
            fail(f"{printable(directory)}: its cluster is run by {error.holder}")
        opened.callback(lock.release)
        found = read_cluster(directory)
        if found is None:
            plan = first_plan(directory, wanted, os.environ)
        else:
            plan = with_page(found, wanted)
            check(directory, plan, wanted)
        open_coordinator(plan.engine.url).close()  # it connects to nothing
        jars = require_jars(plan.engine.jars or None, os.environ) if plan.engine.servers else None
        check_ports(plan)
        if found is None:
            _check_brokers(directory, plan)
        if plan is not found:
            write_cluster(directory, plan)
        origin = "" if jars is None else f" {jars.version} of {jars.origin}"
        _introduce(plan, origin, tell)
        supervisor = Supervisor(directory, plan, jars, say=tell, find_controller=find_controller)
        opened.enter_context(ControlServer(supervisor))
        if plan.http:
            opened.enter_context(_page(supervisor))
            url = f"http://{plan.http}/"
            tell(f"page:   {url}", {"state": "starting", "http": url})
        _handle_signals(supervisor)
        return supervisor.run()


def _check_brokers(directory: str, plan: ClusterFile) -> None:
    """What a broker would refuse at each start is refused before the file has it.

    Raises:
        ConfigError
    """
    from replication.cli.broker_process import ProcessOptions, settings_of
    from replication.cli.serve import properties_of
    from replication.server.kafka_server import LOCAL
    from replication.supervisor.supervisor import configuration_of

    url = plan.engine.url
    for each in plan.brokers:
        pairs = (f"{key}={value}" for key, value in configuration_of(each).items())
        properties = properties_of((*each.config_files, *pairs))
        place = os.path.join(directory, each.directory)
        settings_of(ProcessOptions(each.broker_id, url, place, each.listeners, properties, LOCAL))


def _page(supervisor: Supervisor) -> ClusterPage:
    from replication.common.addresses import split_address
    from replication.supervisor.page import ClusterPage

    host, port = split_address(supervisor.cluster.http) or ("", 0)
    return ClusterPage(lambda: supervisor.cluster.brokers, host=host, port=port)


def _introduce(
    plan: ClusterFile, origin: str, tell: Callable[[str, Mapping[str, Any]], None]
) -> None:
    engine = plan.engine
    count = len(engine.servers) or 1
    text = f"engine: {engine.name}{origin}, {engine.url}"
    if not engine.foreign_url:
        single = "1 server, a single point of failure"
        text += f", {single if count == 1 else f'{count} servers'}"
    tell(
        text,
        {
            "state": "starting",
            "engine": engine.name,
            "coordinator": engine.url,
            "servers": None if engine.foreign_url else count,
        },
    )


def _handle_signals(supervisor: Supervisor) -> None:
    """A terminal that is closed stops the cluster too, unless somebody wanted otherwise (nohup)."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: supervisor.stop())


# -- from another shell ----------------------------------------------------------------------------


def _cluster_of(directory: str) -> ClusterFile:
    from replication.supervisor.cluster_file import FILE, read_cluster

    found = read_cluster(directory)
    if found is None:
        fail(f"{printable(directory)}: there is no {FILE}; `logstore cluster --dir` writes it")
    return found


@cluster.command(short_help="What runs, who leads, what is not in sync.")
@directory_option
@click.option(
    "--can-restart",
    "broker_id",
    metavar="N",
    type=BROKER_ID,
    help="Only whether this broker may be restarted now: exit code 0, or 1 with the reasons.",
)
@unavailable_option
@json_option
def status(directory: str, broker_id: int | None, allow_unavailable: bool, as_json: bool) -> None:
    """The engine, the brokers, and whether one of them may be restarted now.

    Ends with 1 if something does not answer, is not ready or not in sync.
    """
    from replication.supervisor.cluster_state import ask_cluster, ask_engine, why_not_restart

    plan = _cluster_of(directory)
    view = ask_cluster(plan.brokers)
    if broker_id is not None:
        reasons = why_not_restart(broker_id, view, allow_unavailable=allow_unavailable)
        if as_json:
            terminal.print_json({"canRestart": not reasons, "reasons": reasons})
        else:
            _print_reasons(reasons or [f"broker {broker_id} may be restarted"])
        raise click.exceptions.Exit(EXIT_FINDINGS if reasons else 0)
    engine = ask_engine(plan)
    processes, silence = _processes(directory)
    may = {
        each.broker_id: not why_not_restart(
            each.broker_id, view, allow_unavailable=allow_unavailable
        )
        for each in view.brokers
    }
    if as_json:
        terminal.print_json(_status_json(engine, processes, silence, view, may), indent=2)
    else:
        _print_status(engine, processes, silence, view, may)
    if (
        silence == "does not answer"
        or engine.answering < engine.servers
        or not all(each.is_ready for each in view.brokers)
        or view.under_replicated
        or view.leaderless
    ):
        raise click.exceptions.Exit(EXIT_FINDINGS)


def _processes(directory: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Those of the supervisor by name, and why none are known."""
    from logstore.common.errors import ConfigError
    from replication.supervisor.control import ControlClient, ControlError

    try:
        with ControlClient(directory) as control:
            answer = control.ask("status")
    except ConfigError:
        return {}, "does not run"
    except ControlError:
        return {}, "does not answer"
    return {each["name"]: each for each in answer["processes"]}, ""


def _status_json(
    engine: EngineView,
    processes: dict[str, dict[str, Any]],
    silence: str,
    view: ClusterHealth,
    may: Mapping[int, bool],
) -> dict[str, Any]:
    return {
        "engine": {
            "url": engine.url,
            "servers": engine.servers,
            "answering": engine.answering,
            "tookMs": engine.took_ms,
        },
        "supervised": silence != "does not run",
        "processes": list(processes.values()),
        "brokers": [
            {
                "broker": each.broker_id,
                "ready": each.is_ready,
                "problem": each.problem or None,
                "reasons": list(each.reasons),
                "controller": each.is_controller,
                "canRestart": may[each.broker_id],
                "state": dict(each.state),
            }
            for each in view.brokers
        ],
        "underReplicated": [str(each.tp) for each in view.under_replicated],
        "leaderless": [str(each.tp) for each in view.leaderless],
    }


def _print_status(
    engine: EngineView,
    processes: dict[str, dict[str, Any]],
    silence: str,
    view: ClusterHealth,
    may: Mapping[int, bool],
) -> None:
    if engine.servers:
        answers = f"answers in {engine.took_ms:.0f} ms" if engine.answering else "no answer"
        many = f"{engine.answering} of {engine.servers} servers"
        servers = "1 server: no redundancy" if engine.servers == 1 else many
        terminal.line(f"engine      {engine.url}  {answers}   {servers}")
    else:
        terminal.line(f"engine      {engine.url}")
    if silence:
        terminal.line(f"supervisor  {silence}")
    for each in view.brokers:
        if each.is_controller:
            epoch = each.state.get("controller_epoch")
            known = "" if epoch is None else f"   epoch {epoch}"
            terminal.line(f"controller  broker {each.broker_id}{known}")
    if not any(each.is_controller for each in view.brokers):
        terminal.line("controller  none answers")
    for each in view.brokers:
        process = processes.get(f"broker {each.broker_id}", {})
        terminal.line(f"broker {each.broker_id:<4} {_broker_text(each, process)}")
    free = [broker_id for broker_id, is_free in may.items() if is_free]
    now = ", ".join(map(str, free)) if free else "none can"
    terminal.line(
        f"under-replicated {len(view.under_replicated)}   without leader {len(view.leaderless)}   "
        f"restart now: {now}"
    )


def _broker_text(broker: BrokerView, process: Mapping[str, Any]) -> str:
    if broker.problem:
        state = process.get("state", "no answer")
        return f"{state:<10} {process.get('reason') or broker.problem}"
    row = broker.state
    leads = row.get("leaders", 0)
    pid = process.get("pid")
    parts = [
        f"{'ready' if broker.is_ready else process.get('state', 'not ready'):<10}"
        + ("" if pid is None else f" pid {pid}"),
        f"epoch {row.get('epoch', -1)}",
        f"leads {leads}, follows {row.get('partitions', 0) - leads}",
        broker.why or "in sync",
    ]
    return "   ".join(parts)


def _print_reasons(reasons: list[str], most: int = 20) -> None:
    for each in reasons[:most]:
        terminal.line(each)
    if len(reasons) > most:
        terminal.line(f"and {len(reasons) - most} more")


@cluster.command(short_help="Restart a broker, or one after the other.")
@click.argument("broker_id", metavar="[N]", required=False, type=BROKER_ID)
@directory_option
@click.option("--rolling", is_flag=True, help="All brokers, one after the other.")
@unavailable_option
@json_option
def restart(
    broker_id: int | None, directory: str, rolling: bool, allow_unavailable: bool, as_json: bool
) -> None:
    """Restart brokers so that no partition falls below min.insync.replicas: one at a time, the
    controller last, not while a broker recovers. Each is awaited until its replicas are in sync.

    One broker is refused if it may not be restarted now; with --rolling that moment is awaited.
    """
    from replication.supervisor.cluster_state import ask_cluster, why_not_restart
    from replication.supervisor.control import ControlClient

    if rolling == (broker_id is not None):
        raise click.UsageError("give a broker N, or --rolling")
    plan, tell = _cluster_of(directory), _teller(as_json)
    with ControlClient(directory) as control:
        control.ask("begin")  # no other command may change anything until this one ends
        pending = [each.broker_id for each in plan.brokers]
        if broker_id is not None:
            pending = [broker_id]
            view = ask_cluster(plan.brokers)
            reasons = why_not_restart(broker_id, view, allow_unavailable=allow_unavailable)
            if reasons:
                _print_reasons(reasons)
                raise click.exceptions.Exit(EXIT_FINDINGS)
        while pending:
            chosen = _turn(plan, pending, allow_unavailable) if rolling else pending[0]
            tell(f"broker {chosen} is restarted", {"broker": chosen, "state": "restarted"})
            control.ask("restart", broker=chosen)
            _await_ready(plan, chosen)
            tell(f"broker {chosen} is ready", {"broker": chosen, "state": "ready"})
            pending.remove(chosen)


def _turn(plan: ClusterFile, pending: list[int], allow_unavailable: bool) -> int:
    """Which broker comes next, as soon as one may."""
    from replication.supervisor.cluster_state import ask_cluster, next_restart

    found: list[int] = []

    def obstacle() -> str:
        view = ask_cluster(plan.brokers)
        choice, reasons = next_restart(pending, view, allow_unavailable=allow_unavailable)
        if choice is not None:
            found.append(choice)
        return "; ".join(reasons[:3])

    _await(obstacle, "no broker may be restarted")
    return found[-1]


def _await_ready(plan: ClusterFile, broker_id: int) -> None:
    from replication.supervisor.cluster_state import ask_cluster

    entries = [each for each in plan.brokers if each.broker_id == broker_id]

    def obstacle() -> str:
        (own,) = ask_cluster(entries).brokers
        return own.why

    _await(obstacle, f"broker {broker_id} is not in sync")


def _await(obstacle: Callable[[], str], what: str, polls: Iterable[int] = POLLS) -> None:
    """Until there is none; each new one is printed.

    Args:
        what: is the case meanwhile.
    """
    pause, told = threading.Event(), ""
    for _ in polls:
        found = obstacle()
        if not found:
            return
        if found != told:
            told = found
            terminal.line(f"waiting: {printable(found)}", err=True)
        pause.wait(POLL_S)
    fail(f"{what} for {WAIT_S:.0f} s: {printable(told)}")


@cluster.command(short_help="Stop all brokers, then the engine.")
@directory_option
@json_option
def stop(directory: str, as_json: bool) -> None:
    """Stop the cluster as Ctrl-C does, and wait until it has ended."""
    from replication.supervisor.control import ControlClient

    with ControlClient(directory) as control:
        control.ask("stop")
        control.wait_for_end()
    if as_json:
        terminal.print_json({"state": "stopped"})


@cluster.command(short_help="Start one more broker.")
@broker_argument
@directory_option
@json_option
def add(broker_id: int, directory: str, as_json: bool) -> None:
    """Start a further broker. It has no replicas until topics are created or moved to it:
    `logstore reassign`."""
    from replication.supervisor.control import ControlClient
    from replication.supervisor.planning import further_broker

    plan = _cluster_of(directory)
    if plan.broker(broker_id) is not None:
        fail(f"there is a broker {broker_id}")
    with ControlClient(directory) as control:
        control.ask("begin")
        entry = further_broker(plan, broker_id)
        control.add(entry)
    _teller(as_json)(
        f"broker {broker_id} is ready at {entry.bootstrap}",
        {"broker": broker_id, "state": "ready", "bootstrapServers": [entry.bootstrap]},
    )


@cluster.command(short_help="Move a broker's replicas away, and stop it.")
@broker_argument
@directory_option
@click.option("--throttle", "rate", type=COUNT, metavar="BYTES", help="A second, of each broker.")
@json_option
def remove(broker_id: int, directory: str, rate: int | None, as_json: bool) -> None:
    """Move the replicas of a broker to the others, stop it and forget it. Its directory stays.

    A remove that was interrupted goes on when it is called again.
    """
    from replication.supervisor.control import ControlClient
    from replication.supervisor.emptying import Emptying

    plan = _cluster_of(directory)
    if plan.broker(broker_id) is None:
        fail(f"there is no broker {broker_id}")
    others = plan.without(broker_id)
    if not others.brokers:
        fail(f"broker {broker_id} is the last one")
    with ControlClient(directory) as control:
        control.ask("begin")
        with Emptying(others.bootstrap_servers, broker_id, rate) as emptying:
            # However long the bytes take.
            _await(emptying.step, f"broker {broker_id} still has replicas", itertools.count())
        control.ask("remove", broker=broker_id)
    _teller(as_json)(
        f"broker {broker_id} is removed; its directory stays",
        {"broker": broker_id, "state": "removed"},
    )


@cluster.command(short_help="Print the log of a process.")
@click.argument("name", metavar="N|NAME")
@directory_option
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--lines", "count", type=COUNT, default=TAIL_LINES, show_default=True)
@json_option
def logs(name: str, directory: str, follow: bool, count: int, as_json: bool) -> None:
    """Print the last lines that a broker wrote, or another process, such as zookeeper-1."""
    from replication.supervisor.log_files import names_of_logs, tail

    _cluster_of(directory)
    known = names_of_logs(directory)
    name = f"broker-{name}" if name.isdigit() else name
    if name not in known:
        fail(f"{printable(name)}: there is no such log; there are {', '.join(known) or 'none'}")
    pause = threading.Event()
    for lines in tail(directory, name, count):
        terminal.lines([json.dumps({"line": each}) for each in lines] if as_json else lines)
        terminal.flush()
        if not follow:
            break
        if not lines:
            pause.wait(POLL_S)
