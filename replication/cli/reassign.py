"""``logstore reassign``: moves of replicas, as ``kafka-reassign-partitions.sh``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import Number
from replication.admin import AdminClient, Answered
from replication.admin.reassignment_plans import (
    Assignment,
    Plan,
    check_racks,
    plan_json,
    propose,
    read_plan,
    read_topics,
    without,
)
from replication.admin.reassignments import (
    DIRECTORY_RATE,
    Ongoing,
    Places,
    alter_places,
    alter_reassignments,
    describe_places,
    list_reassignments,
    look,
    present_of,
    set_rates,
    settled,
    throttle,
    unthrottle,
)
from replication.cli.connection import client_options, print_errors
from replication.common.error_codes import error_name

if TYPE_CHECKING:
    from replication.security.config import ClientProperties

_MAX_FILE_BYTES = 64 << 20
_RATE = Number(0, 2**63 - 1)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_EXISTING = (
    "there are moves under way: give --additional to begin these beside them, or to give them "
    "another throttle"
)


@click.command(short_help="Move replicas between brokers and directories.")
@click.option("--generate", is_flag=True, help="Propose a plan, and change nothing.")
@click.option("--execute", is_flag=True, help="Begin the moves of a plan.")
@click.option("--verify", is_flag=True, help="How far they are; at the end, remove throttles.")
@click.option("--cancel", is_flag=True, help="Go back to the replicas before them.")
@click.option("--list", "list_", is_flag=True, help="All moves between brokers under way.")
@click.option("--topics-to-move-json-file", "topics_file", type=_FILE, metavar="FILE")
@click.option("--broker-list", metavar="N,…", help="With --generate: who gets the replicas.")
@click.option("--reassignment-json-file", "plan_file", type=_FILE, metavar="FILE")
@click.option(
    "--exclude",
    type=Number(0, 2**31 - 1),
    metavar="N",
    help="In place of a file: no replica stays on this broker.",
)
@click.option("--throttle", "rate", type=_RATE, metavar="BYTES", help="A second, of each broker.")
@click.option("--replica-alter-log-dirs-throttle", "directory_rate", type=_RATE, metavar="BYTES")
@click.option("--additional", is_flag=True, help="Beside moves that are under way.")
@click.option("--preserve-throttles", is_flag=True, help="Leave them as they are.")
@click.option("--disable-rack-aware", is_flag=True, help="Spread without a look at racks.")
@client_options
@json_option
def reassign(client: ClientProperties, as_json: bool, **given: Any) -> None:
    """Move replicas of a running cluster, ours or Kafka's, between its brokers, and between the
    directories of a broker. The files are those of `kafka-reassign-partitions.sh`.

    Give one of --generate, --execute, --verify, --cancel and --list.

    Ends with 1 if a move was refused, or, with --verify, is not complete.

    \b
    Examples:
      logstore reassign --generate --topics-to-move-json-file topics.json --broker-list 1,2,3
      logstore reassign --execute --reassignment-json-file plan.json --throttle 50000000
      logstore reassign --verify --reassignment-json-file plan.json
      logstore reassign --execute --exclude 3
    """
    actions = [name for name in _ACTIONS if given[name]]
    if len(actions) != 1:
        fail("give one of --generate, --execute, --verify, --cancel and --list")
    run, taken = _ACTIONS[actions[0]]
    for name, value in given.items():
        is_given = value is not None and value is not False  # 0 is a broker, and a rate
        if is_given and name not in (actions[0], *taken):
            fail(f"{_flag(name)} does not go with {_flag(actions[0])}")
    with AdminClient(client.config) as admin:
        run(admin, as_json, **{name: given[name] for name in taken})


def _flag(name: str) -> str:
    return "--" + _OPTIONS.get(name, name.replace("_", "-"))


# -- plans -----------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        fail(f"{printable(str(path))}: above {_MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        fail(f"{printable(str(path))}: {error}")


def _plan(plan_file: Path | None) -> Plan:
    if plan_file is None:
        fail("give --reassignment-json-file")
    return read_plan(_text(plan_file))


def _proposed(
    admin: AdminClient,
    exclude: int | None,
    topics: list[str] | None,
    brokers: list[int] | None,
    aware: bool,
) -> tuple[Assignment, Assignment]:
    """The present replicas of the partitions of a proposal, and those that it gives them."""
    ongoing = list_reassignments(admin)
    found = look(admin, topics)
    present = settled(found.present, ongoing)
    racks = {broker: rack if aware else None for broker, rack in found.racks.items()}
    if exclude is None:
        for broker in brokers or ():
            if broker not in racks:
                fail(f"there is no live broker {broker}")
        racks = {broker: racks[broker] for broker in brokers or racks}
    check_racks(racks)
    if exclude is None:
        return present, propose(present, racks)
    proposed = without(present, racks, [exclude])
    return {tp: present[tp] for tp in proposed}, proposed


def _generate(
    admin: AdminClient,
    as_json: bool,
    topics_file: Path | None,
    broker_list: str | None,
    exclude: int | None,
    disable_rack_aware: bool,
) -> None:
    topics = brokers = None
    if exclude is None:
        if topics_file is None or broker_list is None:
            fail("give --topics-to-move-json-file and --broker-list, or --exclude")
        topics, brokers = read_topics(_text(topics_file)), _ids(broker_list)
    elif broker_list is not None or topics_file is not None:
        fail("give --topics-to-move-json-file and --broker-list, or --exclude")
    before, proposed = _proposed(admin, exclude, topics, brokers, not disable_rack_aware)
    if as_json:
        both = {"current": plan_json(before), "proposed": plan_json(proposed)}
        terminal.print_json(both, indent=2)
        return
    _say(as_json, f"Current partition replica assignment\n{_line(before)}\n")
    _say(as_json, f"Proposed partition reassignment configuration\n{_line(proposed)}")


def _ids(text: str) -> list[int]:
    ids = [each.strip() for each in text.split(",")]
    if not all(each.isascii() and each.isdigit() and len(each) <= 10 for each in ids):
        fail(f"--broker-list {printable(text[:80])}: give ids as 1,2,3")
    found = [int(each) for each in ids]
    if len(set(found)) < len(found):
        fail(f"--broker-list {text[:80]}: a broker twice")
    return found


def _line(replicas: Assignment) -> str:
    return json.dumps(plan_json(replicas), separators=(",", ":"))


# -- carried out -----------------------------------------------------------------------------------


def _execute(
    admin: AdminClient,
    as_json: bool,
    plan_file: Path | None,
    exclude: int | None,
    rate: int | None,
    directory_rate: int | None,
    additional: bool,
    disable_rack_aware: bool,
) -> None:
    if exclude is None:
        plan = _plan(plan_file)
    elif plan_file is not None:
        fail("give --reassignment-json-file or --exclude")
    ongoing = list_reassignments(admin)
    if ongoing and not additional:
        fail(_EXISTING)
    if exclude is not None:
        _, proposed = _proposed(admin, exclude, None, None, not disable_rack_aware)
        if not proposed:
            _say(as_json, f"No partition has a replica on broker {exclude}.")
            if as_json:
                terminal.print_json({"current": plan_json({}), "partitions": []}, indent=2)
            return
        plan = Plan(dict(proposed), {})
    present = present_of(admin, plan).present
    _say(as_json, f"Current partition replica assignment\n\n{_line(present)}\n")
    _say(as_json, "Save this to use as the --reassignment-json-file option during rollback")
    if exclude is not None:
        _say(as_json, f"Proposed partition reassignment configuration\n{_line(plan.replicas)}")
    if rate is not None or directory_rate is not None:
        _say(as_json, "Run --verify until all is complete: it removes the throttles.")
    if rate is not None:
        _demand(throttle(admin, present, plan.replicas, ongoing, rate))
        _say(as_json, f"The inter-broker throttle limit was set to {rate} B/s")
    if directory_rate is not None:
        brokers = {broker for _, broker in plan.directories}
        _demand(set_rates(admin, brokers, {DIRECTORY_RATE: str(directory_rate)}))
        _say(as_json, f"The replica-alter-dir throttle limit was set to {directory_rate} B/s")
    answers: dict[Any, Answered] = dict(alter_reassignments(admin, plan.replicas))
    begun = [str(tp) for tp, each in sorted(answers.items()) if not each.code]
    if begun:
        _say(
            as_json, f"Successfully started partition reassignment{_s(begun)} for {','.join(begun)}"
        )
    places: dict[Any, Answered] = {}
    if len(begun) == len(answers):
        places = dict(alter_places(admin, plan.directories))
        for (tp, broker), each in sorted(places.items()):
            if not each.code:
                path = plan.directories[tp, broker]
                words = f"moving log directory to {path} for replica {tp} with broker {broker}"
                _say(as_json, f"Successfully started {words}")
    shown = {"current": plan_json(present), "partitions": _codes(answers)}
    _end(as_json, shown | {"replicas": _replica_codes(places)}, answers | _named(places))


def _cancel(
    admin: AdminClient, as_json: bool, plan_file: Path | None, preserve_throttles: bool
) -> None:
    plan = _plan(plan_file)
    under_way = [tp for tp in list_reassignments(admin) if tp in plan.replicas]
    answers = alter_reassignments(admin, dict.fromkeys(under_way))
    done = [str(tp) for tp, each in sorted(answers.items()) if not each.code]
    if done:
        words = f"partition reassignment{_s(done)} for: {','.join(done)}"
        _say(as_json, f"Successfully cancelled {words}")
    elif not answers:
        _say(as_json, "None of the specified partition reassignments are active.")
    found = describe_places(admin, plan.directories)
    back = {
        replica: each.value.current
        for replica, each in found.items()
        if not each.code and each.value.future is not None and each.value.current is not None
    }
    places = alter_places(admin, back)
    if not back:
        _say(as_json, "None of the specified partition moves are active.")
    failed: dict[Any, Answered] = answers | _named(places)
    if not preserve_throttles and not any(each.code for each in failed.values()):
        failed |= _unthrottle(admin, as_json, plan)
    shown = {"partitions": _codes(answers), "replicas": _replica_codes(places)}
    _end(as_json, shown, failed)


def _unthrottle(admin: AdminClient, as_json: bool, plan: Plan) -> dict[Any, Answered]:
    found = look(admin, ())
    topics = sorted({tp.topic for tp in plan.replicas})
    brokers = sorted(found.racks)
    _say(as_json, f"Clearing broker-level throttles on broker{_s(brokers)} {_list(brokers)}")
    _say(as_json, f"Clearing topic-level throttles on topic{_s(topics)} {','.join(topics)}")
    return dict(unthrottle(admin, brokers, topics))


# -- watched ---------------------------------------------------------------------------------------


def _verify(
    admin: AdminClient, as_json: bool, plan_file: Path | None, preserve_throttles: bool
) -> None:
    plan = _plan(plan_file)
    ongoing = list_reassignments(admin)
    present = look(admin, sorted({tp.topic for tp in plan.replicas})).present
    _say(as_json, "Status of partition reassignment:")
    states = []
    for tp, target in sorted(plan.replicas.items()):
        now = ongoing[tp].replicas if tp in ongoing else present.get(tp, ())
        state = "in progress" if tp in ongoing else "completed" if now == target else "other"
        states.append({**tp._asdict(), "replicas": now, "target": target, "state": state})
        if state == "other":
            words = f"replica set is {_list(now)} rather than {_list(target)}"
            _say(as_json, f"There is no active reassignment of partition {tp}, but {words}.")
        else:
            _say(as_json, f"Reassignment of partition {tp} is {_STILL[state]}.")
    places = describe_places(admin, plan.directories)
    replicas = []
    for (tp, broker), each in sorted(places.items()):
        place, target_path = each.value or Places(), plan.directories[tp, broker]
        state, words = _place_state(place, target_path)
        replicas.append({**tp._asdict(), "broker": broker, "state": state, **place._asdict()})
        _say(as_json, f"Reassignment of replica {tp}-{broker} {words}.")
    moving = any(each["state"] == "in progress" for each in replicas)
    failed: dict[Any, Answered] = _named(places)
    if not ongoing and not moving and not preserve_throttles:
        failed |= _unthrottle(admin, as_json, plan)
    complete = all(each["state"] == "completed" for each in (*states, *replicas))
    _end(as_json, {"partitions": states, "replicas": replicas}, failed, complete)


_STILL = {"in progress": "still in progress", "completed": "completed"}


def _place_state(place: Places, target: str) -> tuple[str, str]:
    if place.future is not None:
        if place.future == target:
            return "in progress", "is still in progress"
        return "other", f"goes to {place.future} instead of {target}"
    if place.current is None:
        return "other", "is in no live directory of its broker"
    if place.current == target:
        return "completed", "completed successfully"
    return "other", f"is not being moved from {place.current} to {target}"


def _list_(admin: AdminClient, as_json: bool) -> None:
    found = sorted(list_reassignments(admin).items())
    if as_json:
        shown = [{**tp._asdict(), **each._asdict()} for tp, each in found]
        terminal.print_json(shown, indent=2)
        return
    if not found:
        terminal.line("No partition reassignments found.")
        return
    terminal.line("Current partition reassignments:")
    for tp, each in found:
        terminal.line(printable(f"{tp}: replicas: {_list(each.replicas)}.{_changes(each)}"))


def _changes(each: Ongoing) -> str:
    adding = f" adding: {_list(each.adding)}." if each.adding else ""
    return adding + (f" removing: {_list(each.removing)}." if each.removing else "")


# -- output ----------------------------------------------------------------------------------------


def _say(as_json: bool, text: str) -> None:
    for line in () if as_json else text.split("\n"):
        terminal.line(printable(line))


def _s(things: Iterable[Any]) -> str:
    return "" if len(list(things)) == 1 else "s"


def _list(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


def _codes(answers: Mapping[TopicPartition, Answered]) -> list[dict[str, Any]]:
    return [
        {**tp._asdict(), "errorCode": error_name(each.code), "errorMessage": each.message}
        for tp, each in sorted(answers.items())
    ]


def _replica_codes(answers: Mapping[tuple[TopicPartition, int], Answered]) -> list[dict[str, Any]]:
    return [
        {**tp._asdict(), "broker": broker, "errorCode": error_name(each.code)}
        for (tp, broker), each in sorted(answers.items())
    ]


def _named(answers: Mapping[tuple[TopicPartition, int], Answered]) -> dict[Any, Answered]:
    return {f"{tp} on broker {broker}": each for (tp, broker), each in answers.items()}


def _demand(answers: Mapping[Any, Answered]) -> None:
    """End if something was refused, before anything moves without its throttle."""
    if print_errors({key: each for key, each in answers.items() if each.code}):
        raise click.exceptions.Exit(EXIT_FINDINGS)


def _end(as_json: bool, shown: Any, answers: Mapping[Any, Answered], complete: bool = True) -> None:
    if as_json:
        terminal.print_json(shown, indent=2)
    _demand(answers)
    if not complete:
        raise click.exceptions.Exit(EXIT_FINDINGS)


_OPTIONS = {
    "topics_file": "topics-to-move-json-file",
    "plan_file": "reassignment-json-file",
    "rate": "throttle",
    "directory_rate": "replica-alter-log-dirs-throttle",
    "list_": "list",
}
_ACTIONS: Mapping[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "generate": (_generate, ("topics_file", "broker_list", "exclude", "disable_rack_aware")),
    "execute": (
        _execute,
        ("plan_file", "exclude", "rate", "directory_rate", "additional", "disable_rack_aware"),
    ),
    "verify": (_verify, ("plan_file", "preserve_throttles")),
    "cancel": (_cancel, ("plan_file", "preserve_throttles")),
    "list_": (_list_, ()),
}
"""Each with the options that it takes."""
