"""``logstore groups``: consumer groups of a running cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import OFFSET, WHOLE
from logstore.cli.records.positions import moment
from replication.admin import AdminClient, Answered
from replication.admin.admin_client import LATEST
from replication.admin.groups import (
    INACTIVE,
    NONE_COMMITTED,
    GroupStatus,
    NewOffset,
    commit_offsets,
    delete_groups,
    delete_offsets,
    describe_groups,
    is_ahead,
    list_groups,
    plan_offsets,
    with_lag,
)
from replication.admin.topics import topic_statuses
from replication.cli.connection import client_options, print_errors, report
from replication.cli.status import flat, known
from replication.common.error_codes import ErrorCode, error_name
from replication.security.config import ClientProperties

_CSV_LINE = re.compile(r'"?([a-zA-Z0-9._-]+)"? *, *([0-9]{1,9}) *, *([0-9]{1,19})')
group_argument = click.argument("group")
topic_option = click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:P,…]",
    help="All partitions of a topic, or those; may be repeated.",
)


@click.group(short_help="List, describe and reset groups of a running cluster.")
def groups() -> None:
    """Consumer groups of a running cluster, ours or Kafka's 2.1 to 4.3.

    Ends with 1 if something was refused, or a group has committed above the end of a partition; the
    line of an error begins with Kafka's name of it.

    \b
    Examples:
      logstore groups describe billing
      logstore groups reset-offsets billing --topic orders --to-earliest
      logstore groups reset-offsets billing --topic orders:0,1 --shift-by -100 --execute
    """


@groups.command(name="list", short_help="States and members.")
@client_options
@json_option
def list_(client: ClientProperties, as_json: bool) -> None:
    """All groups: in which state each is, how many members it has, which broker coordinates it."""
    from logstore.terminal import tables

    with AdminClient(client.config) as admin:
        found, failed = list_groups(admin)
    if as_json:
        terminal.print_json(flat(found), indent=2)
    else:
        listing = tables.Listing(["group", "state", "protocol type"], ["members", "coordinator"])
        for group in found:
            listing.add_row(
                printable(group.group_id),
                printable(group.state),
                printable(group.protocol_type),
                str(len(group.members)),
                str(group.coordinator),
            )
        listing.print()
    if print_errors({f"broker {broker}": each for broker, each in failed.items()}):
        raise click.exceptions.Exit(EXIT_FINDINGS)


@groups.command(short_help="Members, assignments, committed offsets, lag.")
@click.argument("names", nargs=-1, metavar="[GROUP…]")
@client_options
@json_option
def describe(client: ClientProperties, names: tuple[str, ...], as_json: bool) -> None:
    """Groups with their members, and each partition that is committed or assigned: the committed
    offset, the end of the log as consumers see it, the lag between, and who reads it. What is not
    known is `-`, in JSON −1, and a lag null."""
    failed: dict[Any, Answered] = {}
    with AdminClient(client.config) as admin:
        if not names:
            listed, of_brokers = list_groups(admin)
            names = tuple(group.group_id for group in listed)
            failed |= {f"broker {broker}": each for broker, each in of_brokers.items()}
        answers = describe_groups(admin, names)
        described = [each.value for each in answers.values() if not each.code]
        tps = {each.tp for group in described for each in group.offsets}
        ends = admin.list_offsets(sorted(tps), LATEST) if tps else {}
    failed |= {name: each for name, each in answers.items() if each.code}
    at = {tp: each.value for tp, each in ends.items() if not each.code}
    found: list[GroupStatus] = [with_lag(group, at) for group in described]
    if as_json:
        terminal.print_json(flat(found), indent=2)
    else:
        for number, group in enumerate(found):
            if number:
                terminal.line()
            _print(group)
    # What is left of a topic that was deleted is no fault of its group.
    fine = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    failed |= {tp: each for tp, each in ends.items() if each.code not in fine}
    if print_errors(failed) or any(map(is_ahead, found)):
        raise click.exceptions.Exit(EXIT_FINDINGS)


def _print(group: GroupStatus) -> None:
    from logstore.terminal import tables

    assignor = f", assignor {group.assignor}" if group.assignor else ""
    terminal.line(
        printable(f"{group.group_id}: {group.state}, {len(group.members)} members{assignor}")
    )
    listing = tables.Listing(
        ["partition", "consumer", "client", "host"], ["committed", "hw", "lag"]
    )
    owners = {tp: member for member in group.members for tp in member.assigned}
    for each in group.offsets:
        owner = owners.get(each.tp)
        listing.add_row(
            printable(str(each.tp)),
            *(_names(owner.member_id, owner.client_id, owner.host) if owner else "---"),
            known(each.committed),
            known(each.high_watermark),
            "-" if each.lag is None else str(each.lag),
        )
    for member in group.members:
        if not member.assigned:
            listing.add_row(
                "-", *_names(member.member_id, member.client_id, member.host), "-", "-", "-"
            )
    listing.print()


def _names(*names: str) -> list[str]:
    return [printable(name) for name in names]


@groups.command(short_help="Delete groups with all their offsets.")
@click.argument("names", nargs=-1, required=True, metavar="GROUP…")
@client_options
@json_option
def delete(client: ClientProperties, names: tuple[str, ...], as_json: bool) -> None:
    """Delete groups with all their offsets. A group with members is refused (NON_EMPTY_GROUP)."""
    with AdminClient(client.config) as admin:
        answers = delete_groups(admin, names)
    report(answers, "deleted", as_json, lambda name: {"groupId": name})


@groups.command(name="delete-offsets", short_help="Forget what a group has committed.")
@group_argument
@topic_option
@client_options
@json_option
def forget(client: ClientProperties, group: str, topics: tuple[str, ...], as_json: bool) -> None:
    """Delete the committed offsets of GROUP in some partitions. Those of topics to which a member
    is subscribed are refused (GROUP_SUBSCRIBED_TO_TOPIC)."""
    if not topics:
        fail("give --topic")
    with AdminClient(client.config) as admin:
        answers = delete_offsets(admin, group, _scope(admin, topics))
    report(answers, f"{group}: deleted", as_json, lambda tp: {"groupId": group, **tp._asdict()})


@groups.command(name="reset-offsets", short_help="Let a group read from elsewhere.")
@group_argument
@topic_option
@click.option("--all-topics", is_flag=True, help="All partitions that the group has committed.")
@click.option("--to-earliest", is_flag=True)
@click.option("--to-latest", is_flag=True)
@click.option("--to-current", is_flag=True, help="What is committed; else the latest.")
@click.option("--to-offset", type=OFFSET, metavar="N")
@click.option("--shift-by", type=WHOLE, metavar="N", help="Forward; below zero back.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="The first record from then on: milliseconds, or as 2026-11-01T12:00+01:00.",
)
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="CSV: topic,partition,offset in each line, as --export prints it.",
)
@click.option("--export", is_flag=True, help="Print CSV for --from-file.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done: the default.")
@click.option("--execute", is_flag=True, help="Commit the new offsets.")
@client_options
@json_option
def reset_offsets(
    client: ClientProperties,
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    export: bool,
    dry_run: bool,
    execute: bool,
    as_json: bool,
    **to: Any,
) -> None:
    """Commit other offsets for GROUP, which must have no members. Without --execute nothing is
    changed. An offset outside of its log becomes the first or the last one of it. If the new offset
    of one partition is not known, none is committed.

    Needs one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime,
    --from-file; and --topic or --all-topics, unless a file names the partitions.
    """
    given = {name: value for name, value in to.items() if value not in (None, False)}
    if len(given) != 1:
        fail("give one of --" + ", --".join(name.replace("_", "-") for name in to))
    if execute and dry_run:
        fail("give --dry-run or --execute")
    from_file = {} if to["from_file"] is None else _read(to["from_file"])
    if bool(topics) + all_topics + bool(to["from_file"]) != 1:
        fail("give one of --topic and --all-topics, or neither with --from-file")
    with AdminClient(client.config) as admin:
        answer = describe_groups(admin, [group])[group]
        if answer.code == ErrorCode.GROUP_ID_NOT_FOUND:  # it may get its first offsets so
            answer = answer._replace(code=0, value=GroupStatus(group, "Dead", "", -1, ()))
        if answer.code:
            _refuse(group, answer)
        status: GroupStatus = answer.value
        if status.state not in INACTIVE:
            _refuse(f"{group} is {status.state}; its offsets are changed by its members alone")
        before = {e.tp: e.committed for e in status.offsets if e.committed != NONE_COMMITTED}
        tps = from_file or (before if all_topics else _scope(admin, topics))
        plan = plan_offsets(admin, status, tps, _target(admin, [*tps], given, from_file))
        refused = any(each.code for each in plan.values())
        if execute and not refused:
            done = commit_offsets(admin, group, {tp: each.value for tp, each in plan.items()})
            plan = {tp: each._replace(code=done[tp].code) for tp, each in plan.items()}
    if export:
        terminal.lines(f"{t},{p},{each.value}" for (t, p), each in plan.items() if not each.code)
    elif as_json:
        terminal.print_json(
            [
                {
                    "groupId": group,
                    **tp._asdict(),
                    "committed": before.get(tp),
                    "newOffset": None if each.code else each.value,
                    "executed": execute and not refused and not each.code,
                    "errorCode": error_name(each.code),
                    "errorMessage": each.message,
                }
                for tp, each in plan.items()
            ],
            indent=2,
        )
    else:
        _print_plan(before, plan)
        if not execute and not refused:
            terminal.line("nothing is changed; --execute commits these offsets", err=True)
    if print_errors({tp: each for tp, each in plan.items() if each.code}):
        if refused:
            terminal.line("error: nothing is changed", err=True)
        raise click.exceptions.Exit(EXIT_FINDINGS)


def _refuse(what: object, answer: Answered | None = None) -> NoReturn:
    terminal.line(printable(f"error: {what}{'' if answer is None else f': {answer}'}"), err=True)
    raise click.exceptions.Exit(EXIT_FINDINGS)


def _target(
    admin: AdminClient,
    tps: list[TopicPartition],
    given: Mapping[str, Any],
    from_file: Mapping[TopicPartition, int],
) -> NewOffset:

    ((kind, value),) = given.items()
    if kind == "to_datetime":
        found = admin.list_offsets(
            tps, moment(value.removeprefix("@"), "--to-datetime"), patient=True
        )
        # Nothing is that new: what comes next will be.
        return lambda tp, own, start, end: end if found[tp].value == -1 else found[tp].value
    targets: dict[str, NewOffset] = {
        "to_earliest": lambda tp, own, start, end: start,
        "to_latest": lambda tp, own, start, end: end,
        "to_current": lambda tp, own, start, end: end if own is None else own,
        "to_offset": lambda tp, own, start, end: int(value),
        "shift_by": lambda tp, own, start, end: None if own is None else own + int(value),
        "from_file": lambda tp, own, start, end: from_file[tp],
    }
    return targets[kind]


def _scope(admin: AdminClient, topics: tuple[str, ...]) -> list[TopicPartition]:
    """The partitions of ``TOPIC`` or ``TOPIC:0,1``."""
    named = [topic.partition(":") for topic in topics]
    answers = topic_statuses(admin.metadata([*dict.fromkeys(name for name, _, _ in named)]))
    found: dict[TopicPartition, None] = {}
    for name, colon, numbers in named:
        topic = answers.get(name, Answered(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if topic.code:
            _refuse(name, topic)
        parts = numbers.split(",") if colon else []
        if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            fail(f"--topic {printable(f'{name}:{numbers}')}: give TOPIC:0,1")
        every = [each.tp for each in topic.value.partitions]
        found |= dict.fromkeys([TopicPartition(name, int(part)) for part in parts] or every)
    return list(found)


def _read(path: Path) -> dict[TopicPartition, int]:
    found = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            match = _CSV_LINE.fullmatch(line.strip())
            if match is None:
                fail(f"{printable(str(path))}:{number}: give topic,partition,offset")
            found[TopicPartition(match[1], int(match[2]))] = int(match[3])
    return found


def _print_plan(
    before: Mapping[TopicPartition, int], plan: Mapping[TopicPartition, Answered]
) -> None:
    from logstore.terminal import tables

    listing = tables.Listing(["partition"], ["committed", "new"])
    for tp, each in plan.items():
        if not each.code:
            listing.add_row(printable(str(tp)), known(before.get(tp, -1)), str(each.value))
    listing.print()
    for tp, each in plan.items():
        if not each.code and each.message:
            terminal.line(f"note: {printable(str(tp))}: {printable(each.message)}", err=True)
