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
    from logstore.common.errors import InvalidTopicError
    from logstore.format import filenames
    from logstore.storage.local import LocalStorage

    found: set[str] = set()
    with suppress(OSError):
        for entry in LocalStorage().scan_dir(str(context.params.get("directory", ""))):
            with suppress(InvalidTopicError):
                if (
                    entry.is_dir
                    and not (parsed := filenames.parse_partition_dir(entry.name)).suffix
                ):
                    found.add(parsed.topic_partition.topic)
    return [CompletionItem(topic) for topic in sorted(found) if topic.startswith(incomplete)]


def rules(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from logstore.verify.common.explanations import EXPLANATIONS

    return [CompletionItem(rule) for rule in EXPLANATIONS if rule.startswith(incomplete)]
