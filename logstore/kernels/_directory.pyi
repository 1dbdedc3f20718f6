"""Types of the native module; see ``_directory.pyx``."""

from typing import TypeVar

_Entry = TypeVar("_Entry", bound=tuple[str, int, int, bool])

def scan_directory(path: str, encoded: bytes, kind: type[_Entry]) -> list[_Entry]: ...
