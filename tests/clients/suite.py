"""What a suite of others is to the runner, and the list of cases that are left out.

``SUITE.left_out.txt`` beside a suite holds one ``CASE: reason`` a line. It may only grow shorter:
the suite's ``most_left_out`` is its exact length, and a case on it that does not exist is an error.
"""

from __future__ import annotations

import abc
import enum
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


class Outcome(enum.Enum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"  # by the suite itself, which says why


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case: how it ended, how long it took, and its last words if it did not pass."""

    case: str
    outcome: Outcome
    seconds: float = 0.0
    detail: str = ""


class ClientSuite(abc.ABC):
    """A pinned suite of others. Construction fetches and builds nothing."""

    name: ClassVar[str]
    pinned: ClassVar[str]
    """Name and version, for people."""
    quick: ClassVar[tuple[str, ...]]
    """Cases of a run of seconds."""
    most_left_out: ClassVar[int]
    cheap: ClassVar[bool]
    """Whether ``prepare`` takes seconds, so that every run of the tests may call it."""
    settings: ClassVar[Mapping[str, str | int]] = {}
    """What the broker must be set to, by Kafka's names."""
    brokers: ClassVar[int] = 1
    """How many brokers the cases expect; a real Kafka is one all the same."""
    has_brokers: ClassVar[bool] = False
    """Whether ``run`` starts brokers of ours itself, when it is given no address."""
    has_login: ClassVar[bool] = False
    """Whether the broker's listener wants ``servers.USER`` and ``servers.PASSWORD`` (SASL)."""

    @classmethod
    def directory(cls) -> Path:
        """Return the folder of the suite's runner, its list and its findings."""
        return Path(inspect.getfile(cls)).parent

    @classmethod
    def left_out(cls) -> dict[str, str]:
        """Return the reason of each case that is left out."""
        reasons = {}
        for line in (cls.directory() / f"{cls.name}.left_out.txt").read_text().splitlines():
            if not line or line.startswith("#"):
                continue
            case, colon, reason = line.partition(": ")
            if not colon or not reason.strip() or case in reasons:
                raise ValueError(f"{cls.name}: not 'CASE: reason', or twice: {line!r}")
            reasons[case] = reason.strip()
        return reasons

    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether ``prepare`` has nothing left to fetch or build."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Fetch and build.

        Raises:
            SuiteUnavailable: a tool chain or a registry is missing.
        """

    @abc.abstractmethod
    def cases(self) -> list[str]:
        """Return the names of all cases that talk to a broker; needs ``prepare``."""

    @abc.abstractmethod
    def run(self, cases: Sequence[str], bootstrap: str, directory: Path) -> Iterator[CaseResult]:
        """Run cases against a broker and give one result for each, in any order.

        Args:
            bootstrap: ``host:port``; empty if the suite has brokers of its own.
            directory: for the suite's own files and logs, which are kept when a case fails.
        Raises:
            SuiteUnavailable: it cannot use this broker, or a port is taken that it needs.
        """
