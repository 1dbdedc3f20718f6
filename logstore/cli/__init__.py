"""The command line. ``logstore COMMAND --help`` has the details.

A command is a module of this package: ``logstore/cli/dump.py`` defines the click command ``dump``.
Names that begin with ``_`` are not commands; ``import_.py`` has the command ``import``. Other
packages add theirs as entry points of the group ``logstore.commands``. A module is imported only
when its command runs or the full help is printed. Libraries for tables and plots are imported only
inside the command that needs them. So the start costs little more than click itself (37 ms).

Exit codes: 0 done; 1 the command worked and found something wrong; 2 it could not work, because of
bad arguments or an error (one line on stderr), or because of a bug in logstore (with its
traceback); 130 ended by Ctrl-C; 141 the reader of a pipe closed it, as `| head` does.
"""

from __future__ import annotations

import importlib
import keyword
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from checkpoints.errors import CheckpointError
from checkpoints.printable import one_line
from logstore import terminal
from logstore.cli.common.exits import EXIT_ERROR, EXIT_HUNG_UP, EXIT_INTERRUPTED, fail
from logstore.common.errors import InvariantError, LogstoreError
from logstore.common.suggestions import or_meant
from logstore.common.version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "logstore.commands"


class LazyGroup(click.Group):
    """Commands found by name, in this package and among the entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        built_in = {
            module.name.rstrip("_").replace("_", "-")
            for module in pkgutil.iter_modules(__path__)
            if not module.ispkg
        }
        return sorted(built_in | _points().keys())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (added := super().get_command(ctx, cmd_name)) is not None:
            return added
        name = cmd_name.replace("-", "_")
        if keyword.iskeyword(name):
            name += "_"
        module = f"{__name__}.{name}"
        if any(found.name == name and not found.ispkg for found in pkgutil.iter_modules(__path__)):
            try:
                command = getattr(importlib.import_module(module), name)
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise click.ClickException(
                        f"{cmd_name} needs the package {error.name}"
                    ) from error
            else:
                assert isinstance(command, click.Command)
                return command
        point = _points().get(cmd_name)
        return None if point is None else point.load()

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError as error:  # click knows no command before its module is imported
            text = or_meant(error.message, args[0], self.list_commands(ctx))
            raise click.UsageError(text, ctx) from None

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """As click's, with the exit codes of a shell for Ctrl-C and for a closed pipe."""
        try:
            code = super().main(*args, standalone_mode=False, **extra)  # type: ignore[call-overload]
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except click.Abort:
            code = EXIT_INTERRUPTED
        try:
            terminal.flush()
        except BrokenPipeError:
            terminal.hang_up()
            code = EXIT_HUNG_UP
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        terminal.never_fail()
        with _printable_refusals(), _hanging_up():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _printable_refusals(), _hanging_up():
                return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except InvariantError as error:
            _fail_with_traceback(error)
        except (LogstoreError, CheckpointError) as error:
            fail(str(error) or type(error).__name__)
        except OSError as error:
            fail(str(error))
        except MemoryError as error:
            fail(f"not enough memory: {error}" if error.args else "not enough memory")
        except Exception as error:
            _fail_with_traceback(error)


def _fail_with_traceback(error: Exception) -> NoReturn:
    """Print the traceback of a bug in logstore, in a safe form."""
    from checkpoints.loggers import traceback_text

    for text in traceback_text(error).split("\n"):
        terminal.line(text, err=True)
    raise click.exceptions.Exit(EXIT_ERROR)


@contextmanager
def _hanging_up() -> Iterator[None]:
    """End quietly if the reader of stdout has closed it."""
    try:
        yield
    except BrokenPipeError:
        terminal.hang_up()
        raise click.exceptions.Exit(EXIT_HUNG_UP) from None


@contextmanager
def _printable_refusals() -> Iterator[None]:
    """Make click's own error messages printable, since they quote the argument."""
    try:
        yield
    except click.ClickException as error:
        if not isinstance(error, click.exceptions.NoArgsIsHelpError):  # quotes nothing
            error.message = one_line(error.message)  # type: ignore[misc]  # no other way in
        raise


def _points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # 60 ms, so only if no module has the command

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="logstore")
def main() -> None:
    """Read, check and write the log directories of Apache Kafka, without a broker."""


__all__ = ["ENTRY_POINT_GROUP", "LazyGroup", "common", "main", "records"]
