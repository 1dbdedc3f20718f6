"""The embedded coordinator on a disk that crashes, fails and lies."""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest

from logstore.common.errors import CorruptDataError, LogDirLockedError
from logstore.testing import FaultyStorage, ManualClock, SimulatedCrash
from logstore.testing.faulty import FOREVER
from replication.coordination import (
    CoordinatorUnavailableError,
    CorruptStoreError,
    Create,
    Delete,
    SessionState,
    Set,
    journal,
)
from replication.coordination.embedded import CoordinatorStore, EmbeddedCoordinator
from tests.support.cases import for_each

DIRECTORY = "/data/coordinator"
FILE = f"{DIRECTORY}/{journal.FILE_NAME}"
State = dict[str, tuple[bytes, int, int]]
Step = Callable[[EmbeddedCoordinator], object]


def opened(storage: FaultyStorage) -> CoordinatorStore:
    return CoordinatorStore(DIRECTORY, storage, ManualClock())


def content(session: EmbeddedCoordinator, path: str = "/") -> State:
    """All persistent nodes below ``path``."""
    found: State = {}
    for name in session.children(path):
        inner = f"{path.rstrip('/')}/{name}"
        node = session.get(inner)
        assert node is not None
        if not node.ephemeral_owner:
            found[inner] = node[:3]
        found.update(content(session, inner))
    return found


def steps() -> list[Step]:
    """A life of a small cluster; every step is one write."""
    topic = "/brokers/topics/t"
    found: list[Step] = [
        lambda s: s.create("/brokers/ids", parents=True),
        lambda s: s.create("/brokers/ids/1", b"one", ephemeral=True),
        lambda s: s.transact([Create("/brokers/topics"), Create(topic, b"x" * 700)]),
        lambda s: s.create("/brokers/ids/2", b"two", ephemeral=True),
    ]
    for number in range(8):
        path = f"{topic}/{number}"
        found += [
            lambda s, path=path: s.transact([Create(path, b"state"), Set(topic, path.encode())]),
            lambda s, path=path: s.set(path, b"changed" * 20, 0),
            lambda s: s.create("/brokers/change_", b"c", sequential=True),
        ]
    found += [
        lambda s: s.delete("/brokers/ids/2"),
        lambda s: s.transact([Delete(f"{topic}/{n}") for n in range(4)]),
        lambda s: s.set(topic, b"z" * 1500),
    ]
    return found


@pytest.fixture(autouse=True)
def _compact_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMPACT_BYTES", 900)


def run(storage: FaultyStorage, states: list[State] | None = None) -> int:
    """Open and take every step; returns how many were answered before the machine went down."""
    answered = 0
    try:
        session = opened(storage).connect()
        for step in steps():
            step(session)
            answered += 1
            if states is not None:
                states.append(content(session))
    except SimulatedCrash:
        pass
    return answered


@pytest.fixture(scope="module")
def reference() -> tuple[int, list[State]]:
    """How many operations of the disk the life takes, and what is there after each step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "COMPACT_BYTES", 900)
        storage, states = FaultyStorage(), [{}]
        assert run(storage, states) == len(steps())
        return storage.operations, states


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "seeds"), [("all_lost", 1), ("all_kept", 1), ("random", 6)], ids=lambda each: str(each)
)
def test_a_crash_at_any_operation_loses_nothing_that_was_answered(
    reference: tuple[int, list[State]], mode: str, seeds: int
) -> None:
    operations, states = reference
    assert operations > 80
    for point in range(1, operations + 1):
        for seed in range(seeds):
            storage = FaultyStorage()
            storage.crash_after(point)
            answered = run(storage)
            storage.crash(random.Random(f"{point}-{seed}"), mode)
            _check(storage, states, answered, f"{mode}, operation {point}, seed {seed}")


@pytest.mark.slow
def test_a_crash_while_recovering_from_a_crash(reference: tuple[int, list[State]]) -> None:
    operations, states = reference
    for point in range(1, operations + 1, 3):
        for second in range(1, 12):
            rng = random.Random(f"{point}-{second}")
            storage = FaultyStorage()
            storage.crash_after(point)
            answered = run(storage)
            storage.crash(rng, "random")
            storage.crash_after(second)
            try:
                opened(storage)
            except SimulatedCrash:
                storage.crash(rng, "random")
                _check(storage, states, answered, f"operations {point} and {second}")


def _check(storage: FaultyStorage, states: list[State], answered: int, where: str) -> None:
    store = opened(storage)
    session = store.connect()
    found = content(session)
    assert found in states[answered : answered + 2], where
    assert session.children("/brokers/ids") == [], where  # no session outlives its process
    highest = max((czxid for _, _, czxid in states[answered].values()), default=0)
    _, czxid = session.create("/epoch")
    assert czxid > highest, where
    # What is open now is as good as before: one more crash, and all of it is there.
    expected = content(session)
    storage.crash(random.Random(1), "all_lost")
    assert content(opened(storage).connect()) == expected, where


def test_epochs_are_monotonic_over_restarts() -> None:
    """Also that of an ephemeral node, which the restart removes: it was somebody's broker epoch."""
    storage = FaultyStorage()
    epochs, sessions = [], []
    for _ in range(5):
        store = opened(storage)
        for _ in range(3):
            session = store.connect()
            assert session.get("/1") is None
            epochs.append(session.create("/1", ephemeral=True)[1])
            sessions.append(session.session_id)
            if len(epochs) % 3:
                session.close()
        store.crash()
    assert all(a < b for a, b in pairwise(epochs))
    assert all(a < b for a, b in pairwise(sessions))


def test_sequential_names_never_come_again_after_a_restart() -> None:
    storage, names = FaultyStorage(), []
    for _ in range(4):
        store = opened(storage)
        session = store.connect()
        for _ in range(2):
            names.append(session.create("/n-", sequential=True)[0])
            session.delete(names[-1])
        store.close()
    assert names == sorted(set(names))


# --- damage


def _written() -> tuple[bytes, list[State]]:
    """A file with a snapshot and six transactions, and the states after each of them."""
    storage = FaultyStorage()
    store = opened(storage)
    session = store.connect()
    session.create("/a", b"snapshot")
    store.close()
    store = opened(storage)
    states = []
    session = store.connect()
    states += [content(session)] * 2  # without the transaction that began the session, and with it
    for number in range(5):
        session.set("/a", b"value %d" % number)
        states.append(content(session))
    store.crash()
    return storage.read_file(FILE), states


def _opened_from(data: bytes) -> State:
    storage = FaultyStorage()
    storage.make_dir(DIRECTORY)
    storage.write_file(FILE, data)
    try:
        store = opened(storage)
    except CorruptStoreError:
        assert storage.read_file(FILE) == data  # kept as it is for whoever looks into it
        raise
    return content(store.connect())


def test_a_file_cut_anywhere_holds_the_transactions_before_the_cut() -> None:
    data, states = _written()
    snapshot_end, seen = data.find(b"LSt2"), []
    for size in range(len(data)):
        if size < snapshot_end:
            with pytest.raises(CorruptStoreError) as error:
                _opened_from(data[:size])
            assert (error.value.path, error.value.position) == (FILE, 0)
        else:
            seen.append(states.index(_opened_from(data[:size])))
    assert seen == sorted(seen)
    assert set(seen) == set(range(len(states))) - {1, len(states) - 1}


@pytest.mark.parametrize("tail", [b"\0" * 600, b"LSt1" * 50, b"\xff" * 31])
def test_garbage_at_the_end_is_cut(tail: bytes) -> None:
    data, states = _written()
    assert _opened_from(data + tail) == states[-1]


@pytest.mark.slow
def test_a_flipped_bit_is_found_wherever_it_is() -> None:
    """Before the last transaction it is damage, with its place; in the last it looks like a write
    that the power cut. A wrong tree never comes out."""
    data, states = _written()
    starts = [match.start() for match in re.finditer(b"LS[ct]2", data)]
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        if position >= starts[-1]:
            assert _opened_from(bytes(damaged)) == states[-2]
            continue
        with pytest.raises(CorruptStoreError, match=FILE) as error:
            _opened_from(bytes(damaged))
        assert error.value.position == max(start for start in starts if start <= position)
        assert isinstance(error.value, CorruptDataError)


def test_a_transaction_that_reads_as_zeros_is_damage() -> None:
    data, states = _written()
    third, fourth = [match.start() for match in re.finditer(b"LSt2", data)][2:4]
    with pytest.raises(CorruptStoreError) as error:
        _opened_from(data[:third] + bytes(fourth - third) + data[fourth:])
    assert error.value.position == third
    assert _opened_from(data[:third] + bytes(len(data) - third)) == states[2]


def test_a_journal_as_data_of_a_node_does_not_look_like_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "COMPACT_BYTES", 1 << 20)
    data, _ = _written()
    storage = FaultyStorage()
    store = opened(storage)
    session = store.connect()
    session.create("/a", data)
    session.create("/b", data)
    store.crash()
    whole = storage.read_file(FILE)
    assert list(_opened_from(whole)) == ["/a", "/b"]
    assert list(_opened_from(whole[:-1])) == ["/a"]


@pytest.mark.parametrize("data", [b"", b"\0", b"\0" * 100, b"LSc1" * 20])
def test_a_file_without_a_snapshot_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptStoreError):
        _opened_from(data)


# --- a disk that fails


@for_each("operation", ["write", "sync", "rename", "open", "sync_dir"])
@for_each("evicted", [False, True])
def test_a_failed_disk_gives_no_more_answers(operation: str, evicted: bool) -> None:
    """F-224: what reached the disk is unknown. Opened again it is one of two states."""
    storage = FaultyStorage()
    store = opened(storage)
    session = store.connect()
    other = store.connect()
    told: list[SessionState] = []
    other.on_state(told.append)
    session.create("/a", b"0")
    fault = storage.fail(operation, f"{DIRECTORY}*", times=FOREVER)
    number = 0
    with suppress(CoordinatorUnavailableError):
        for number in range(1, 200):
            session.set("/a", b"%d" % number)
    assert fault.struck
    assert number < 199
    storage.heal()
    for call in (lambda: session.get("/a"), lambda: other.set("/a", b""), store.connect):
        with pytest.raises(CoordinatorUnavailableError):
            call()
    assert session.state is SessionState.SUSPENDED
    assert told == [SessionState.SUSPENDED]
    session.close()
    store.close()
    if evicted:
        storage.evict(FILE)
    found = content(opened(storage).connect())
    assert found["/a"][0] in (b"%d" % (number - 1), b"%d" % number)
    storage.crash(mode="all_lost")
    assert content(opened(storage).connect()) == found


def test_a_write_that_failed_to_sync_does_not_come_back_as_damage() -> None:
    """After a failed sync the cache shows pages that are on no disk, and that no later sync writes:
    what is built on them must not be lost with them."""
    storage = FaultyStorage()
    session = opened(storage).connect()
    session.create("/a", b"0")
    storage.fail("sync", FILE)
    with pytest.raises(CoordinatorUnavailableError):
        session.set("/a", b"1")
    session = opened(storage).connect()
    session.create("/b")
    expected = content(session)
    storage.crash(mode="all_lost")
    assert content(opened(storage).connect()) == expected


def test_a_full_disk_is_told_and_survived() -> None:
    storage = FaultyStorage(capacity=6000)
    session = opened(storage).connect()
    session.create("/a", b"x" * 1000)
    with pytest.raises(CoordinatorUnavailableError, match="No space left"):
        session.create("/b", b"y" * 10_000)
    storage.capacity = None
    assert content(opened(storage).connect()).keys() == {"/a"}


def test_a_session_closes_even_if_its_end_cannot_be_written() -> None:
    storage = FaultyStorage()
    session = opened(storage).connect()
    session.create("/a", ephemeral=True)
    storage.fail("sync", FILE)
    session.close()
    assert session.state is SessionState.EXPIRED
    assert opened(storage).connect().get("/a") is None


def test_opening_an_unreadable_disk_is_an_os_error_and_leaves_it_free() -> None:
    storage = FaultyStorage()
    opened(storage).close()
    storage.fail("read", FILE)
    with pytest.raises(OSError) as error:
        opened(storage)
    assert error.value.errno == errno.EIO
    opened(storage).close()


def test_a_directory_has_one_store() -> None:
    storage = FaultyStorage()
    store = opened(storage)
    with pytest.raises(LogDirLockedError):
        opened(storage)
    store.crash()
    opened(storage).close()


# --- size


def test_the_file_stays_within_a_multiple_of_the_tree() -> None:
    storage = FaultyStorage()
    store = opened(storage)
    session = store.connect()
    session.create("/a")
    sizes = []
    for number in range(500):
        session.set("/a", b"%0100d" % number)
        sizes.append(store._journal.size)
    assert max(sizes) < 2000
    assert sum(b < a for a, b in pairwise(sizes)) > 50
    assert len(storage.read_file(FILE)) == store._journal.size
    store.crash()
    assert session.state is SessionState.SUSPENDED
    assert content(opened(storage).connect())["/a"][:2] == (b"%0100d" % 499, 500)
