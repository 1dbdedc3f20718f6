"""Types of the native module; see ``_directory.pyx``."""

from typing import Any, TypeVar

_Entry = TypeVar("_Entry", bound=tuple[str, int, int, Any])

def scan_directory(
    path: str, encoded: bytes, make: type[_Entry], kinds: tuple[Any, Any, Any]
) -> list[_Entry]: ...
def read_small(path: str) -> bytes | None: ...
