"""Unknown names, and what they may have been meant for."""

from __future__ import annotations

from collections.abc import Collection

from logstore.common.errors import ConfigError

_LONGEST = 100  # characters of a name that may be a slip; more would take time to compare
_LIKENESS = 0.75  # two letters in each other's place in a word of five are 0.8
_LISTED = 25  # as many names can be read in a message


def or_meant(text: str, name: str, known: Collection[str]) -> str:
    """``text``, and which of ``known`` is like ``name``, upper or lower case, if any is."""
    from difflib import get_close_matches  # needed by few

    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), by_lower, 1, _LIKENESS) if len(name) <= _LONGEST else []
    return f"{text.rstrip('.')}. Did you mean {by_lower[close[0]]!r}?" if close else text


def unknown(what: str, name: str, known: Collection[str]) -> ConfigError:
    """The error for a name that is none of ``known``: which of them may be meant, or all."""
    plain = f"unknown {what} {name!r}"
    text = or_meant(plain, name, known)
    if text == plain and len(known) <= _LISTED:
        text = f"{plain}; known are: {', '.join(sorted(known, key=str.lower))}"
    return ConfigError(text)


__all__ = ["or_meant", "unknown"]
