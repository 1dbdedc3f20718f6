"""One random history: clients that join, commit, fall silent and come back; a log that is slow,
refuses and changes its leader; what must hold after each step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.coordinators.groups.config import GroupConfig
from replication.protocol import messages as wire
from tests.histories.groups_model import Key, Model, Share, Violation
from tests.histories.history import Run, history
from tests.support.groups import Call, GroupHost, LeavingMember

GROUPS = ("red", "blue")
PARTITIONS = frozenset(range(6))
TPS = tuple(TopicPartition("orders", number) for number in range(2))
SESSION_MS = 6000
REBALANCE_MS = 9000
STEPS = 220
REFUSALS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.MESSAGE_TOO_LARGE,
)
UNKNOWN_OUTCOME = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,  # of a commit that takes long
    ErrorCode.NOT_COORDINATOR,
)


@dataclass(eq=False)
class Client:
    """One consumer, which does what Kafka's clients do."""

    name: str
    group: str
    instance: str | None
    member_id: str = ""
    generation: int = -1
    partitions: frozenset[int] | None = None  # None: it has no assignment now
    is_silent: bool = False
    is_over: bool = False
    join: Call | None = None
    sync: Call | None = None
    old: list[tuple[str, int]] = field(default_factory=list)  # what it was before

    @property
    def identity(self) -> str:
        return self.instance or self.member_id


@dataclass(eq=False)
class Commit:
    key: Key
    offset: int
    member_id: str
    generation: int
    call: Call
    is_allowed: bool
    producer_id: int = -1


class World:
    def __init__(self, found: Run) -> None:
        self.random = random.Random(found.seed)
        delay = self.random.choice((0, 0, 1500))
        size = self.random.choice((100, 100, 3))
        config = GroupConfig(
            group_initial_rebalance_delay_ms=delay,
            group_max_size=size,
            offsets_retention_check_interval_ms=1 << 40,
        )
        self.host = GroupHost(config)
        self.model = Model()
        self.clients: list[Client] = []
        self.commits: list[Commit] = []
        self.transactions: dict[int, list[Commit]] = {}
        self.deletions: list[tuple[Call, list[Key]]] = []
        self.owners: dict[tuple[str, str], str] = {}  # instance -> its present member id
        self.offset = 0
        self.trace, self.done = found.trace, found.done

    # -- steps ---------------------------------------------------------------------------------

    def run(self) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (6, self.client_starts),
            (14, self.client_works),
            (14, self.client_commits),
            (3, self.client_is_silent),
            (3, self.client_leaves),
            (4, self.old_member_commits),
            (3, self.nobody_commits),
            (4, self.transaction_commits),
            (4, self.transaction_ends),
            (8, self.somebody_reads),
            (1, self.group_is_deleted),
            (1, self.offsets_are_deleted),
            (8, self.time_passes),
            (5, self.log_is_slow),
            (8, self.log_catches_up),
            (2, self.log_takes_long),
            (3, self.log_refuses),
            (3, self.leader_changes),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(STEPS):
            _, action = self.random.choices(actions, weights)[0]
            action()
            self.settle()
            self.check()
        self.end()

    def note(self, what: str, line: str = "") -> None:
        self.done[what] += 1
        self.trace.append(f"{self.host.now_ms % 10**7:8} {what} {line}")

    def some_client(self) -> Client | None:
        alive = [each for each in self.clients if not each.is_over and not each.is_silent]
        return self.random.choice(alive) if alive else None

    def client_starts(self) -> None:
        if sum(not each.is_over for each in self.clients) >= 6:
            return
        group = self.random.choice(GROUPS)
        instance = self.random.choice((None, None, "i1", "i2"))
        name = f"c{len(self.clients)}"
        client = Client(name, group, instance)
        self.clients.append(client)
        self.note("start", f"{name} {group} {instance}")
        self.join(client)

    def give_up(self, client: Client) -> None:
        """It has no place in the group as far as it knows."""
        if client.generation >= 0:
            client.old.append((client.member_id, client.generation))
        client.partitions, client.sync, client.generation = None, None, -1

    def join(self, client: Client) -> None:
        self.give_up(client)
        metadata = self.random.choice((b"a", b"a", b"b"))
        client.join = self.host.join(
            client.member_id,
            group_id=client.group,
            instance=client.instance,
            client=client.name,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            protocols=(("range", metadata), ("roundrobin", b"")),
            needs_id=self.random.random() < 0.5,
            may_skip=True,
        )

    def client_works(self) -> None:
        """A heartbeat, or a join without any reason."""
        client = self.some_client()
        if client is None or client.join is not None or client.sync is not None:
            return
        if client.generation < 0 or self.random.random() < 0.1:
            self.note("rejoin", client.name)
            self.join(client)
            return
        code = self.host.heartbeat(
            client.member_id, client.generation, client.instance, client.group
        )
        self.note("heartbeat", f"{client.name} {code.name}")
        if code is not ErrorCode.NONE:
            self.react(client, code)

    def react(self, client: Client, code: ErrorCode) -> None:
        """As clients do, on an error of any request."""
        match code:
            case ErrorCode.FENCED_INSTANCE_ID | ErrorCode.GROUP_MAX_SIZE_REACHED:
                client.is_over = True
                self.note("over", f"{client.name} {code.name}")
                return
            case ErrorCode.UNKNOWN_MEMBER_ID:
                if client.member_id:
                    client.old.append((client.member_id, client.generation))
                client.member_id, client.generation = "", -1
            case ErrorCode.ILLEGAL_GENERATION | ErrorCode.REBALANCE_IN_PROGRESS:
                pass
            case (
                ErrorCode.NOT_COORDINATOR
                | ErrorCode.COORDINATOR_NOT_AVAILABLE
                | ErrorCode.UNKNOWN_SERVER_ERROR
            ):
                self.give_up(client)  # and try again after a pause
                return
            case _:
                raise Violation(f"{client.name}: {code.name} makes no sense here")
        self.join(client)

    def client_commits(self) -> None:
        client = self.some_client()
        if client is not None and client.partitions is not None:
            self.commit(client.group, client.member_id, client.generation, client.instance)

    def old_member_commits(self) -> None:
        """Somebody who was away, and does not know what happened since."""
        clients = [each for each in self.clients if each.old]
        if clients:
            client = self.random.choice(clients)
            self.commit(client.group, *self.random.choice(client.old), client.instance)

    def nobody_commits(self) -> None:
        self.commit(self.random.choice(GROUPS), "", -1, None)

    def commit(
        self,
        group: str,
        member_id: str,
        generation: int,
        instance: str | None,
        producer_id: int = -1,
    ) -> Commit:
        self.offset += 1
        tp = self.random.choice(TPS)
        is_allowed = self.model.may_commit(group, member_id, generation)
        call = self.host.commit_call(
            self.offset,
            member_id,
            generation,
            tp=tp,
            group_id=group,
            instance=instance,
            producer_id=producer_id,
        )
        commit = Commit(
            (group, tp), self.offset, member_id, generation, call, is_allowed, producer_id
        )
        self.note("commit", f"{group} {tp.partition} {self.offset} {member_id[-4:]} {producer_id}")
        self.model.may_count(commit.key, commit.offset)
        self.commits.append(commit)
        return commit

    def transaction_commits(self) -> None:
        producer_id = self.random.randrange(3)
        group = self.random.choice(GROUPS)
        self.commit(group, "", -1, None, producer_id)

    def transaction_ends(self) -> None:
        """Its coordinator waits for the answers first."""
        producer_id = self.random.randrange(3)
        if any(each.producer_id == producer_id for each in self.commits):
            return
        if self.host.held:
            return
        is_commit = self.random.random() < 0.6
        offsets = self.transactions.pop(producer_id, [])
        self.note("commit marker" if is_commit else "abort marker", str(producer_id))
        self.host.end_transaction(producer_id, is_commit)
        for each in offsets:
            if not is_commit:
                self.model.never_counts(each.key, each.offset)
            elif self.model.is_after_deletions(each.key, each.offset):
                self.model.counts(each.key, each.offset)

    def client_is_silent(self) -> None:
        client = self.some_client()
        if client is not None:
            client.is_silent = True
            self.note("silent", client.name)

    def client_leaves(self) -> None:
        client = self.some_client()
        if client is None or not client.member_id:
            return
        answer = self.host.leave(
            LeavingMember(client.member_id, client.instance), group_id=client.group
        )
        self.note("leave", f"{client.name} {answer}")
        if answer.members and answer.members[0].error_code is ErrorCode.NONE:
            self.model.left(client.group, client.member_id)
        client.is_over = True

    def somebody_reads(self) -> None:
        key = self.random.choice(GROUPS), self.random.choice(TPS)
        found = self.host.fetch(key[1], group_id=key[0], stable=self.random.random() < 0.3)
        self.note("read", f"{key[0]} {key[1].partition} {found}")
        self.look(key, found)

    def look(self, key: Key, found: wire.OffsetFetchResponse.OffsetFetchResponsePartitions) -> None:
        if found.error_code is ErrorCode.NONE:
            self.model.read(key, found.committed_offset)
        elif found.error_code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
            raise Violation(f"{key}: {found}")

    def group_is_deleted(self) -> None:
        group = self.random.choice(GROUPS)
        call = self.host.request(wire.DeleteGroupsRequest((group,)))
        self.note("delete", f"{group} {call}")
        if call == [ErrorCode.GROUP_ID_NOT_FOUND] or call == [ErrorCode.NON_EMPTY_GROUP]:
            return
        self.model.forgotten(group)
        self._deletion(call, [(group, tp) for tp in TPS])

    def offsets_are_deleted(self) -> None:
        group = self.random.choice(GROUPS)
        call = self.host.delete_offsets_call(TPS[0], group_id=group)
        self.note("delete offsets", f"{group} {call}")
        if not call or isinstance(call.answer, dict):
            self._deletion(call, [(group, TPS[0])])

    def _deletion(self, call: Call, keys: list[Key]) -> None:
        for key in keys:
            self.model.deletes(key, self.offset)
        self.deletions.append((call, keys))

    def time_passes(self) -> None:
        ms = self.random.choice((100, 1000, 3000, 7000, 12_000))
        self.note("time", str(ms))
        self.host.pass_time(ms)

    # -- the log -------------------------------------------------------------------------------

    def log_is_slow(self) -> None:
        self.host.holds = True

    def log_catches_up(self) -> None:
        if self.host.held and self.random.random() < 0.5:
            self.host.commit(self.random.randint(1, len(self.host.held)))
        else:
            self.host.holds = False
            self.host.commit()
        self.note("catch up")

    def log_takes_long(self) -> None:
        self.note("time-out", str(len(self.host.held)))
        self.host.time_out()

    def log_refuses(self) -> None:
        self.host.refusal = self.random.choice(REFUSALS)

    def leader_changes(self) -> None:
        """Some of what was not committed may be in the next leader's log."""
        kept = self.random.randint(0, len(self.host.held))
        self.note("leader", f"keeps {kept} of {len(self.host.held)}")
        lost = sum(len(append.records) for append in self.host.held[kept:])
        if lost:
            del self.host.log[-lost:]
        before = self.host
        self.model.leader_changes()
        self.owners.clear()
        self.host = before.replayed()
        for call in before.calls.values():
            if not call:
                call.append(ErrorCode.NOT_COORDINATOR)
        self.host.calls, self.host._numbers = before.calls, before._numbers

    # -- answers -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Clients go on with their answers, until all wait."""
        for _ in range(100):
            went_on = [self._go_on(each) for each in self.clients]
            if True not in went_on:
                break
        else:
            raise Violation("the clients come to no rest")
        for commit in [each for each in self.commits if each.call]:
            self.commits.remove(commit)
            self._committed(commit)
        for deletion in [each for each in self.deletions if each[0]]:
            self.deletions.remove(deletion)
            self._deleted(*deletion)

    def _go_on(self, client: Client) -> bool:
        if client.is_silent or client.is_over:
            return False
        if client.join:
            answer, client.join = client.join.answer, None
            self._joined(client, answer)
            return True
        if client.sync:
            answer, client.sync = client.sync.answer, None
            self._synced(client, answer)
            return True
        return False

    def _joined(self, client: Client, answer: wire.JoinGroupResponse | ErrorCode) -> None:
        code = answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
        self.note("joined", f"{client.name} {code.name} {getattr(answer, 'generation_id', '')}")
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            assert isinstance(answer, wire.JoinGroupResponse)
            client.member_id = answer.member_id
            self.join(client)
            return
        if isinstance(answer, ErrorCode) or code is not ErrorCode.NONE:
            self.react(client, code)
            return
        client.member_id, client.generation = answer.member_id, answer.generation_id
        if client.instance is not None:
            owner = self.owners.get((client.group, client.instance))
            if owner is not None and owner != client.member_id:
                self.model.left(client.group, owner)
            self.owners[client.group, client.instance] = client.member_id
        assignments: dict[str, bytes] = {}
        if answer.members and not answer.skip_assignment:
            if client.member_id not in [each.member_id for each in answer.members]:
                raise Violation(f"{client.name} leads, and is not among {answer.members}")
            assignments = self._share(answer)
        client.sync = self.host.sync(
            client.member_id,
            client.generation,
            assignments,
            group_id=client.group,
            instance=client.instance,
            kind="consumer",
            protocol=answer.protocol_name,
        )

    def _share(self, answer: wire.JoinGroupResponse) -> dict[str, bytes]:
        ids = [each.member_id for each in answer.members]
        self.random.shuffle(ids)
        partitions = sorted(PARTITIONS)
        return {each: bytes(partitions[at :: len(ids)]) for at, each in enumerate(ids)}

    def _synced(self, client: Client, answer: wire.SyncGroupResponse | ErrorCode) -> None:
        code = answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
        self.note("synced", f"{client.name} {code.name} {client.generation}")
        if isinstance(answer, ErrorCode) or code is not ErrorCode.NONE:
            self.react(client, code)
            return
        client.partitions = frozenset(answer.assignment)
        share = Share(client.identity, client.partitions)
        self.model.synced(client.group, client.generation, share, PARTITIONS)

    def _committed(self, commit: Commit) -> None:
        answer = commit.call.answer
        code = answer
        if isinstance(answer, dict):
            (code,) = answer.values()
        assert isinstance(code, ErrorCode)
        self.note("committed", f"{commit.offset} {code.name}")
        if commit.producer_id >= 0:
            if code is ErrorCode.NONE or code in UNKNOWN_OUTCOME:
                self.transactions.setdefault(commit.producer_id, []).append(commit)
                if code is not ErrorCode.NONE:  # a marker must not make it certain
                    self.transactions[commit.producer_id].remove(commit)
            else:
                self.model.never_counts(commit.key, commit.offset)
        elif code is ErrorCode.NONE:
            if not commit.is_allowed:
                raise Violation(f"{commit.member_id} of {commit.generation} commits {commit.key}")
            self.model.counts(commit.key, commit.offset)
        elif code not in UNKNOWN_OUTCOME:
            self.model.never_counts(commit.key, commit.offset)

    def _deleted(self, call: Call, keys: list[Key]) -> None:
        self.note("deleted", f"{keys[0][0]} {call.answer}")

    # -- what must hold ------------------------------------------------------------------------

    def check(self) -> None:
        """Whoever reads the log now would know the same."""
        if self.host.held:
            return
        other = self.host.replayed()
        for group in GROUPS:
            for tp in TPS:
                for stable in (False, True):
                    here = self.host.fetch(tp, group_id=group, stable=stable)
                    there = other.fetch(tp, group_id=group, stable=stable)
                    if here != there:
                        raise Violation(f"{group} {tp}: {here} here, {there} in the log")
            described = self.host.describe(group)
            if described.group_state == "Stable" and not self._waits(group):
                found = other.describe(group)
                if found != described:
                    raise Violation(f"{group}: {described} here, {found} in the log")

    def _waits(self, group: str) -> bool:
        """A static member that comes back has another id here already."""
        return any(each.join is not None and each.group == group for each in self.clients)

    def end(self) -> None:
        """Nothing goes wrong any more: soon every group is Stable, and all is shared out."""
        self.host.holds, self.host.refusal = False, None
        self.host.commit()
        self.settle()
        for client in self.clients:
            if client.is_silent:
                client.is_over = True
        for _ in range(60):
            self.host.pass_time(1000)
            self.settle()
            for client in self.clients:
                if not client.is_over and client.join is None and client.sync is None:
                    if client.generation < 0:
                        self.join(client)
                        continue
                    code = self.host.heartbeat(
                        client.member_id, client.generation, client.instance, client.group
                    )
                    if code is not ErrorCode.NONE:
                        self.react(client, code)
            self.settle()
        for group in GROUPS:
            members = [c for c in self.clients if c.group == group and not c.is_over]
            state = self.host.describe(group).group_state
            if members and state != "Stable":
                raise Violation(f"{group} is {state} with {[c.name for c in members]}")
            shared = [c.partitions for c in members]
            if members and frozenset().union(*(each or () for each in shared)) != PARTITIONS:
                raise Violation(f"{group}: {shared} is not all")
            if not members and state not in ("Empty", "Dead"):
                raise Violation(f"{group} is {state} without members")
            for tp in TPS:
                self.look((group, tp), self.host.fetch(tp, group_id=group))
        self.check()


@history
def run(found: Run) -> None:
    World(found).run()
