"""What a random history did, and the search for one that fails."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from traceback import format_exception

from logstore.common.shield import unshielded

HISTORIES = {
    "cleaner": "tests.histories.cleaner:run",
    "crash": "tests.crash.simulated:run",
    "cuts": "tests.crash.cuts:run",
    "groups": "tests.histories.groups:run",
    "lives": "tests.histories.lives:run",
    "mirror": "tests.histories.mirror:run",
    "rescue": "tests.histories.rescue:run",
    "transactions": "tests.histories.transactions:run",
    "verify": "tests.histories.verify:run",
    "streams": "tests.spark.histories:run_seed",
}


@dataclass(slots=True)
class Run:
    """
    Attributes:
        done: how often it did what.
        error: what ended it.
    """

    seed: int
    done: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    error: BaseException | None = None


def history(body: Callable[[Run], None]) -> Callable[[int], Run]:
    """Make a function of a seed: what the body raises is the error of its run."""

    @functools.wraps(body)
    def run(seed: int) -> Run:
        found, muted = Run(seed), logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with unshielded():  # for their time alone
                body(found)
        except Exception as error:
            found.error = error
        finally:
            logging.disable(muted)
        return found

    return run


def run_one(name: str, seed: int) -> Run:
    run: Callable[[int], Run] = pkgutil.resolve_name(HISTORIES[name])
    return run(seed)


def run_all(name: str, seeds: Iterable[int], jobs: int = 1) -> Iterator[Run]:
    """Run the seeds, in their order."""
    one = functools.partial(run_one, name)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap(one, seeds, chunksize=8)


def report(name: str, failed: Run) -> str:
    """What happened, and the command that repeats it."""
    return "\n".join(
        [
            f"seed {failed.seed} failed: {failed.error}",
            *(f"    {line}" for line in failed.trace),
            *([] if failed.error is None else format_exception(failed.error)),
            f"Repeat it with: python -m tests.histories {name} --one {failed.seed}",
        ]
    )


def hold(name: str, seeds: Iterable[int]) -> Counter[str]:
    """Fail with the report of the first history that does; what all of them did."""
    done = Counter[str]()
    for found in run_all(name, seeds):
        assert found.error is None, report(name, found)
        done += found.done
    return done
