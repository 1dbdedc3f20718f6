"""The codecs on the standard library alone, as where the faster libraries have no wheel."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from unittest.mock import patch

from logstore.format.codecs.compression import Compression


def _without(library: str, module: str) -> ModuleType:
    """A second copy of ``module``, made while ``library`` cannot be imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    with patch.dict(sys.modules, {library: None}):
        spec.loader.exec_module(copy)
    return copy


TWINS = {
    Compression.GZIP: _without("zlib_ng", "logstore.format.codecs.gzip"),
    Compression.ZSTD: _without("zstandard", "logstore.format.codecs.zstd"),
}
