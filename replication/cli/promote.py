"""``logstore promote``: a mirror, or a restored directory, becomes a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS, json_option
from logstore.cli.common.options import Number

if TYPE_CHECKING:
    from replication.mirror import Ending, Listeners, Promotion

_NAMED = 10


@click.command(short_help="Make a cluster of a mirror or a restored directory.")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@click.option(
    "--for-kafka",
    is_flag=True,
    help="Write DIR/server.properties too, with which a Kafka starts on it.",
)
@click.option(
    "--listener",
    metavar="HOST:PORT",
    help="With --for-kafka: where it listens; its controller has the next port.  "
    "[default: 127.0.0.1:9092]",
)
@click.option("--cluster-id", metavar="ID", help="Of the new cluster; a new one by default.")
@click.option(
    "--node-id",
    type=Number(0, 2**31 - 1),
    help="Of its only node; by default that of meta.properties, else 1.",
)
@click.option(
    "--partial",
    is_flag=True,
    help="Promote although something is missing; what is missing stays offline.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing, and say what would be.")
@json_option
@click.pass_context
def promote(
    ctx: click.Context,
    directory: str,
    for_kafka: bool,
    listener: str | None,
    cluster_id: str | None,
    node_id: int | None,
    partial: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a cluster of DIR, which is a mirror, or a directory that was restored.

    From then on it is the log directory of a Kafka node, for a Kafka from 4.0 on and for logstore
    serve --adopt. Groups keep their offsets, producers their sequences. Transactions that are open
    end. A mirror does not follow its source any more. Nothing else may have DIR open.

    \b
    Example:
      logstore promote mirror --for-kafka
      kafka-server-start.sh mirror/server.properties

    Exit code 0: promoted. 1: something is missing, and only --partial promotes. 2: an error. After
    an error, or a crash, promote again.
    """
    from replication.mirror import PromotionRules
    from replication.mirror import promote as carry_out

    if listener is not None and not for_kafka:
        raise click.UsageError("--listener is for --for-kafka")
    listeners = _listeners(listener) if for_kafka else None
    rules = PromotionRules(cluster_id, node_id, partial, dry_run, listeners)
    found = carry_out(directory, rules)
    if as_json:
        terminal.print_json(_json(found), indent=2)
    else:
        _print(found, dry_run, is_refused=bool(found.findings) and not partial)
    ctx.exit(EXIT_FINDINGS if found.findings else 0)


def _listeners(text: str | None) -> Listeners:
    from replication.common.addresses import MAX_PORT, split_address
    from replication.mirror import Listeners

    if text is None:
        return Listeners()
    host, port = split_address(text) or ("", 0)
    if not host or not 0 < port < MAX_PORT:  # the controller has the next one
        raise click.UsageError(f"--listener {printable(text)}: give HOST:PORT")
    return Listeners(host, port, port + 1)


def _json(found: Promotion) -> dict[str, Any]:
    if found.before:  # nothing is counted anew
        return {
            "directory": found.directory,
            "promoted": False,
            "promotedBefore": True,
            "clusterId": found.cluster_id,
            "nodeId": found.node_id,
            "serverProperties": found.server_properties,
        }
    return {
        "directory": found.directory,
        "promoted": found.promoted,
        "promotedBefore": found.before,
        "clusterId": found.cluster_id,
        "nodeId": found.node_id,
        "topics": found.topics,
        "partitions": found.partitions,
        "offline": found.offline,
        "groups": found.groups,
        "offsets": found.offsets,
        "transactionalIds": found.transactional_ids,
        "nextProducerId": found.next_producer_id,
        "ended": [_ending(each) for each in found.endings],
        "completedIds": list(found.ended.ids),
        "findings": [asdict(each) for each in found.findings],
        "notes": [asdict(each) for each in found.notes],
        "serverProperties": found.server_properties,
    }


def _ending(ending: Ending) -> dict[str, Any]:
    return {
        "topic": ending.open.tp.topic,
        "partition": ending.open.tp.partition,
        "firstOffset": ending.open.first_offset,
        "producerId": ending.open.producer_id,
        "producerEpoch": ending.producer_epoch,
        "transactionalId": ending.transactional_id,
        "result": "commit" if ending.commits else "abort",
        "reason": ending.why.value,
    }


def _print(found: Promotion, dry_run: bool, *, is_refused: bool) -> None:
    name = f"{printable(found.directory)}: node {found.node_id} of cluster {found.cluster_id}"
    if found.before:
        terminal.line(f"promoted before: {name}")
        _print_start(found, dry_run)
        return
    for finding in found.findings:
        terminal.line(f"missing: {finding}")
    for note in found.notes:
        terminal.line(str(note))
    for ending in found.endings[:_NAMED]:
        result = "committed" if ending.commits else "aborted"
        tp = f"{ending.open.tp.topic}-{ending.open.tp.partition}"
        whose = printable(ending.transactional_id or f"producer {ending.open.producer_id}")
        terminal.line(
            f"{result}: transaction of {whose} in {tp} from offset {ending.open.first_offset} on "
            f"({ending.why.value})"
        )
    if len(found.endings) > _NAMED:
        counts = Counter("commit" if each.commits else "abort" for each in found.endings)
        each = " and ".join(f"{count} by {result}" for result, count in sorted(counts.items()))
        terminal.line(f"open transactions: {len(found.endings)} in all end, {each}")
    if is_refused:
        terminal.line("not promoted, and nothing was changed: --partial leaves those offline")
        return
    led = found.partitions - found.offline
    terminal.line(
        f"{'would be promoted' if dry_run else 'promoted'}: {name}: {found.topics} topics, {led} "
        f"of {found.partitions} partitions, {found.groups} groups with {found.offsets} offsets, "
        f"{found.transactional_ids} transactional ids"
    )
    _print_start(found, dry_run)


def _print_start(found: Promotion, dry_run: bool) -> None:
    if found.server_properties is not None and not dry_run:
        terminal.line(f"start: kafka-server-start.sh {printable(found.server_properties)}")
