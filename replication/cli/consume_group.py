"""``logstore consume --group``: what a group assigns, and commits of what was written out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore import terminal
from logstore.cli.common.exits import EXIT_FINDINGS
from logstore.cli.common.interrupts import Interrupts

if TYPE_CHECKING:
    import click

    from logstore.common.types import Record
    from replication.admin.membership import ConsumingMember
    from replication.client import Client, Consumer
    from replication.security.config import ClientProperties

POLL_MS = 500
_NO = ("false", "0", "no")


class RebalancedError(Exception):
    """Nothing may be read until the group has assigned again."""


class Copying:
    """A source of records, which notes how far they were written out."""

    def begin(self, found: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The partitions to read, each with the offset to go on from; None: as without a group."""
        return dict.fromkeys(found)

    def poll(self, consumer: Consumer) -> list[tuple[TopicPartition, Record]]:
        return consumer.poll(POLL_MS)

    def wrote(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Everything below these offsets has left this process."""


class GroupCopying(Copying):
    def __init__(
        self,
        member: ConsumingMember,
        interrupts: Interrupts,
        every_s: float | None,
        now_s: Callable[[], float],
        say: Callable[[str, Iterable[TopicPartition]], None],
    ) -> None:
        self._member, self._interrupts = member, interrupts
        self._every_s, self._now_s, self._say = every_s, now_s, say
        self._written: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._due_s = 0.0

    def begin(self, found: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        with self._interrupts.ending_waits():
            assigned, committed = self._member.join(), self._member.committed()
        self._say("assigned", assigned)
        self._written.clear()
        self._committed = {tp: committed[tp] for tp in assigned if tp in committed}
        self._due_s = self._now_s() + (self._every_s or 0)
        return {tp: committed.get(tp) for tp in assigned}

    def poll(self, consumer: Consumer) -> list[tuple[TopicPartition, Record]]:
        self._interrupts.check()
        if self._member.has_to_join():
            self.commit()
            self._say("revoked", consumer.positions)
            raise RebalancedError
        if self._now_s() >= self._due_s:
            self.commit()
        with self._interrupts.ending_waits():
            if consumer.positions:
                return super().poll(consumer)
            self._member.wait(POLL_MS / 1000)
            return []

    def wrote(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._written |= offsets

    def commit(self) -> list[str]:
        """Commit what is new. Returns what is not committed, and why: it is tried again."""
        self._due_s = self._now_s() + (self._every_s or 0)
        new = {tp: at for tp, at in self._written.items() if at != self._committed.get(tp)}
        if not new or self._every_s is None:
            return []
        failed = self._member.commit(new)
        self._committed |= {tp: at for tp, at in new.items() if tp not in failed}
        return [f"{tp}: offset {new[tp]} is not committed: {why}" for tp, why in failed.items()]


@contextmanager
def member_of(
    ctx: click.Context,
    group: str,
    properties: ClientProperties,
    client: Client,
    topics: Callable[[], Iterable[str]],
    quiet: bool,
) -> Iterator[GroupCopying]:
    """At the end it commits what was written out, and leaves; 1 if that cannot be committed."""
    from logstore.common.errors import LogstoreError
    from replication.admin import AdminClient
    from replication.admin.membership import ClassicMembership, ConsumingMember
    from replication.common.errors import UnknownPartitionError

    def count(topic: str) -> int:
        try:
            return len(client.partitions(topic))
        except UnknownPartitionError:
            return 0

    def say(how: str, tps: Iterable[TopicPartition]) -> None:
        names = ", ".join(f"{printable(tp.topic)} [{tp.partition}]" for tp in sorted(tps))
        text = f"% Group {printable(group)} rebalanced: {how}: {names or 'nothing'}"
        if not quiet:
            terminal.line(text, err=True)

    ms = partial(properties.milliseconds, least=1)
    membership = ClassicMembership(
        group,
        session_timeout_ms=ms("session.timeout.ms", 45_000),
        rebalance_timeout_ms=ms("max.poll.interval.ms", 300_000),
    )
    every_s = ms("auto.commit.interval.ms", 5_000) / 1000
    commits = properties.others.get("enable.auto.commit", "true").strip().lower() not in _NO
    lost: list[str] = []
    with (
        AdminClient(properties.config) as admin,
        ConsumingMember(
            admin,
            membership,
            lambda: tuple(topics()),
            count,
            heartbeat_s=ms("heartbeat.interval.ms", 3_000) / 1000,
            look_s=ms("metadata.max.age.ms", 300_000) / 1000,
            patience_s=properties.config.default_api_timeout_ms / 1000,
        ) as member,
    ):
        interrupts = Interrupts(second_ends=True)
        every = every_s if commits else None
        copying = GroupCopying(member, interrupts, every, client.now_s, say)
        try:
            with interrupts:
                yield copying
        finally:
            try:
                lost = copying.commit()
            except LogstoreError as error:
                lost = [str(error)]
            for text in lost:
                terminal.line(f"error: {printable(text)}", err=True)
    if lost:
        ctx.exit(EXIT_FINDINGS)
