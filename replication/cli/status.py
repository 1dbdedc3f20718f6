"""``logstore status``: brokers, partitions and groups of a running cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, json_option
from logstore.common.json_fields import json_fields
from replication.cli.connection import client_options
from replication.common.addresses import address_of
from replication.common.internal_topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from replication.admin.status import ClusterStatus
    from replication.admin.topics import PartitionStatus
    from replication.security.config import ClientProperties


@click.command(short_help="Show brokers, partitions, groups and lag of a running cluster.")
@client_options
@click.option("--topic", metavar="T", help="Only the partitions of this topic.")
@click.option("--internal", is_flag=True, help="Show the brokers' own topics, too.")
@click.option("--group", metavar="G", help="Only this consumer group.")
@json_option
def status(
    client: ClientProperties, topic: str | None, internal: bool, group: str | None, as_json: bool
) -> None:
    """Show the brokers of a running cluster, who leads what, how far each partition goes, and how
    far behind its consumer groups are. It speaks Kafka's protocol, so the cluster may be a real
    Kafka.

    Ends with 1 if a broker does not answer, a partition has no leader, a replica is not in sync, or
    a group has committed an offset above the end of its partition: a lag below zero, as after the
    partition has lost its tail. Partitions of the brokers' own topics are shown where they are not
    in sync, and with --internal.

    \b
    Example:
      logstore status --bootstrap-server 127.0.0.1:9092
    """
    from replication.admin import AdminClient, cluster_status
    from replication.admin.groups import is_ahead
    from replication.admin.topics import under_replicated

    with AdminClient(client.config) as admin:
        found = cluster_status(admin)
    if topic is not None:
        found = found._replace(
            partitions=tuple(each for each in found.partitions if each.tp.topic == topic)
        )
    elif not internal:
        found = found._replace(
            partitions=tuple(
                each
                for each in found.partitions
                if each.tp.topic not in INTERNAL_TOPICS or under_replicated(each)
            )
        )
    if group is not None:
        found = found._replace(groups=tuple(g for g in found.groups if g.group_id == group))
    if as_json:
        terminal.print_json(_json(found), indent=2)
    else:
        _print(found)
    if (
        any(broker.problem for broker in found.brokers)
        or any(map(under_replicated, found.partitions))
        or any(map(is_ahead, found.groups))
    ):
        raise click.exceptions.Exit(EXIT_FINDINGS)


def flat(value: Any) -> Any:
    """The fields of a value in JSON. What is of a partition has its topic and number beside the
    others."""
    found = json_fields(value) if hasattr(value, "_fields") else value
    if isinstance(found, dict):
        rest = {key: flat(each) for key, each in found.items()}
        return {**rest.pop("tp", {}), **rest}
    return [flat(each) for each in found] if isinstance(found, list) else found


def _json(found: ClusterStatus) -> dict[str, Any]:
    fields = flat(found)
    for broker in fields["brokers"]:
        broker["broker"] = broker.pop("brokerId")
    for group in fields["groups"]:
        group["group"], group["members"] = group.pop("groupId"), len(group["members"])
    return dict(fields)


def print_partitions(found: Iterable[PartitionStatus]) -> None:
    from logstore.terminal import tables

    partitions = tables.Listing(
        ["partition", "isr", "replicas", "offline"], ["leader", "epoch", "start", "hw"]
    )
    for each in found:
        partitions.add_row(
            printable(str(each.tp)),
            _ids(each.isr),
            _ids(each.replicas),
            _ids(each.offline_replicas),
            known(each.leader),
            known(each.leader_epoch),
            known(each.log_start_offset),
            known(each.high_watermark),
        )
    partitions.print()


def _print(found: ClusterStatus) -> None:
    from logstore.terminal import tables

    brokers = tables.Listing(["broker", "address", "controller"], [])
    for broker in found.brokers:
        address = address_of(broker.host, broker.port)
        brokers.add_row(
            str(broker.broker_id), printable(address), "yes" if broker.is_controller else ""
        )
    brokers.print()
    for broker in found.brokers:
        if broker.problem:
            terminal.line(f"broker {broker.broker_id}: {printable(broker.problem)}", err=True)
    if found.partitions:
        terminal.line()
        print_partitions(found.partitions)
    if found.groups:
        terminal.line()
        groups = tables.Listing(
            ["group", "state", "partition"], ["members", "committed", "hw", "lag"]
        )
        for group in found.groups:
            head = [printable(group.group_id), printable(group.state)]
            rest = str(len(group.members))
            if not group.offsets:
                groups.add_row(*head, "", rest, "", "", "")
            for offset in group.offsets:
                groups.add_row(
                    *head,
                    printable(str(offset.tp)),
                    rest,
                    known(offset.committed),
                    known(offset.high_watermark),
                    "-" if offset.lag is None else str(offset.lag),
                )
        groups.print()


def _ids(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids))


def known(value: int) -> str:
    return "-" if value < 0 else str(value)
