"""``logstore topics``: topics of a running cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, json_option
from logstore.cli.common.options import (
    PARTITIONS,
    Number,
    config_option,
    delete_config_option,
    parse_changes,
    parse_pairs,
)
from logstore.common.suggestions import or_meant
from replication.admin import AdminClient, Answered
from replication.admin.topics import (
    PartitionStatus,
    TopicStatus,
    alter_configs,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    overrides,
    topic_statuses,
    under_replicated,
    with_offsets,
)
from replication.cli.connection import client_options, print_errors, report
from replication.cli.status import flat, print_partitions
from replication.common.error_codes import ErrorCode
from replication.security.config import ClientProperties

topics_argument = click.argument("names", nargs=-1, required=True, metavar="TOPIC…")


@click.group(short_help="List, describe and change topics of a running cluster.")
def topics() -> None:
    """Topics of a running cluster, ours or Kafka's 2.1 to 4.3.

    Topics of a directory that no broker uses: `logstore ls`, `create`, `alter` and `delete`.

    Ends with 1 if a topic was refused or is not well; its line begins with Kafka's name of the
    error.

    \b
    Examples:
      logstore topics create orders --partitions 6 --config retention.ms=-1
      logstore topics describe orders --bootstrap-server kafka.example.org:9093
        --command-config client.properties
    """


def _topic(name: str) -> dict[str, Any]:
    return {"name": name}


@topics.command(name="list", short_help="Names, partitions and replicas.")
@click.option("--exclude-internal", is_flag=True, help="Not the brokers' own topics.")
@client_options
@json_option
def list_(client: ClientProperties, exclude_internal: bool, as_json: bool) -> None:
    """All topics: how many partitions each has, and how many replicas."""
    from logstore.terminal import tables

    with AdminClient(client.config) as admin:
        answers = topic_statuses(admin.metadata())
    found = [t.value for t in answers.values() if not (exclude_internal and t.value.is_internal)]
    if as_json:
        terminal.print_json([_summary(topic) for topic in found], indent=2)
        return
    listing = tables.Listing(["topic"], ["partitions", "replication factor"])
    for topic in found:
        listing.add_row(printable(topic.name), str(len(topic.partitions)), str(_factor(topic)))
    listing.print()


@topics.command(short_help="Leaders, replicas, in-sync sets, offsets, configuration.")
@click.argument("names", nargs=-1, metavar="[TOPIC…]")
@click.option(
    "--under-replicated-partitions",
    "only_under_replicated",
    is_flag=True,
    help="Only partitions of which a replica is not in sync.",
)
@client_options
@json_option
def describe(
    client: ClientProperties, names: tuple[str, ...], only_under_replicated: bool, as_json: bool
) -> None:
    """Topics with their configuration, as far as it is not Kafka's default; who leads each
    partition, its replicas, those in sync and offline, log start and high watermark."""
    with AdminClient(client.config) as admin:
        answers = _meant(admin, topic_statuses(admin.metadata(names or None)))
        found: list[TopicStatus] = [each.value for each in answers.values() if not each.code]
        every = [part for topic in found for part in topic.partitions]
        if only_under_replicated:
            every = [part for part in every if under_replicated(part)]
        every, not_known = with_offsets(admin, every)
        configs = describe_configs(admin, [topic.name for topic in found])
    failed: dict[Any, Answered] = {name: each for name, each in answers.items() if each.code}
    failed |= {name: each for name, each in configs.items() if each.code} | not_known
    parts: dict[str, list[PartitionStatus]] = {}
    for part in every:
        parts.setdefault(part.tp.topic, []).append(part)
    shown = [
        topic._replace(
            partitions=tuple(parts.get(topic.name, ())),
            configs=overrides(configs[topic.name].value or {}),
        )
        for topic in found
        if not only_under_replicated or topic.name in parts
    ]
    if as_json:
        terminal.print_json([{**_summary(topic), **flat(topic)} for topic in shown], indent=2)
    else:
        _print(shown)
    print_errors(failed)
    if failed or any(map(under_replicated, every)):
        raise click.exceptions.Exit(EXIT_FINDINGS)


def _summary(topic: TopicStatus) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topicId": topic.topic_id,
        "isInternal": topic.is_internal,
        "partitionCount": len(topic.partitions),
        "replicationFactor": _factor(topic),
    }


def _factor(topic: TopicStatus) -> int:
    return max((len(part.replicas) for part in topic.partitions), default=0)


def _print(found: Iterable[TopicStatus]) -> None:
    for number, topic in enumerate(found):
        if number:
            terminal.line()
        pairs = (f"{key}={value}" for key, value in sorted(topic.configs.items()))
        words = (
            topic.name,
            *([f"id {topic.topic_id}"] if topic.topic_id else []),
            f"partitions {len(topic.partitions)}",
            f"replication factor {_factor(topic)}",
            *pairs,
        )
        terminal.line(printable("  ".join(words)))
        print_partitions(topic.partitions)


@topics.command(short_help="New topics.")
@topics_argument
@click.option("--partitions", type=PARTITIONS, metavar="P", help="Default: the brokers'.")
@click.option(
    "--replication-factor", type=Number(1, 32767), metavar="R", help="Default: the brokers'."
)
@config_option
@click.option("--if-not-exists", is_flag=True, help="A topic that is there is left as it is.")
@client_options
@json_option
def create(
    client: ClientProperties,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    config: tuple[str, ...],
    if_not_exists: bool,
    as_json: bool,
) -> None:
    """Create topics. The brokers check the configuration, under Kafka's keys."""
    with AdminClient(client.config) as admin:
        answers = create_topics(
            admin,
            names,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=parse_pairs(config),
        )
    fine = ErrorCode.TOPIC_ALREADY_EXISTS if if_not_exists else ErrorCode.NONE
    report(_but(answers, fine), "created", as_json, _topic)


@topics.command(short_help="Delete topics with all their records.")
@topics_argument
@click.option("--if-exists", is_flag=True, help="A topic that is not there is no error.")
@client_options
@json_option
def delete(
    client: ClientProperties, names: tuple[str, ...], if_exists: bool, as_json: bool
) -> None:
    """Delete topics with all their records, at once."""
    with AdminClient(client.config) as admin:
        answers = delete_topics(admin, names)
        if if_exists:
            answers = _but(answers, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        answers = _meant(admin, answers)
    report(answers, "deleted", as_json, _topic)


def _but(answers: dict[str, Answered], fine: ErrorCode) -> dict[str, Answered]:
    """Without the answers that are no error here."""
    return {name: each for name, each in answers.items() if not each.code or each.code != fine}


def _meant(admin: AdminClient, answers: dict[str, Answered]) -> dict[str, Answered]:
    """With the name that may be meant, where there is no such topic."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    missing = {name: each for name, each in answers.items() if each.code == unknown}
    known = [topic.name or "" for topic in admin.metadata().topics] if missing else []
    for name, each in missing.items():
        text = or_meant(plain := each.message or "there is no such topic", name, known)
        answers[name] = each if text == plain else each._replace(message=text)
    return answers


@topics.command(short_help="More partitions, or another configuration.")
@topics_argument
@click.option("--partitions", type=PARTITIONS, metavar="P", help="How many in all; never fewer.")
@config_option
@delete_config_option
@client_options
@json_option
def alter(
    client: ClientProperties,
    names: tuple[str, ...],
    partitions: int | None,
    config: tuple[str, ...],
    removed: tuple[str, ...],
    as_json: bool,
) -> None:
    """Give topics another configuration, then more partitions. Keys that are not named stay as
    they are."""
    settings = parse_changes(partitions, config, removed)
    answers: dict[str, Answered] = {}
    with AdminClient(client.config) as admin:
        if settings or removed:
            answers = alter_configs(admin, names, settings, removed)
        if partitions is not None:
            rest = [name for name in names if name not in answers or not answers[name].code]
            answers |= create_partitions(admin, rest, partitions)
        answers = _meant(admin, answers)
    report(answers, "altered", as_json, _topic)
