"""Shell completion beyond what click knows by itself."""

from __future__ import annotations

from contextlib import suppress

import click
from click.shell_completion import CompletionItem


def directories(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and directories."""
    return [CompletionItem(incomplete, type="file")]


def topics(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The topics in the DIR that was given before."""
    from logstore.cli.common.topics import topics_of

    found: set[str] = set()
    with suppress(OSError):
        found.update(topics_of(str(context.params.get("directory", ""))))
    return [CompletionItem(topic) for topic in sorted(found) if topic.startswith(incomplete)]


def rules(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from logstore.verify.common.rules import RULES

    return [CompletionItem(rule) for rule in RULES if rule.startswith(incomplete)]
