"""Sphinx: the pages of this repository and the reference of the API as one site (`make docs`).

The source directory is the root of the repository, so that a relative link leads to the same page
here and in the repository.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import logstore  # noqa: E402  found through the line above
from logstore.errors import LogstoreError  # noqa: E402

project = "logstore"
author = "the authors of logstore"
version = release = logstore.__version__
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "logstore/**.md", "tests/README.md", "bench/*.md"]
exclude_patterns = [".*", "build", "dist"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
highlight_language = "text"

# `x` in a docstring is code. Names in signatures become links.
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
autoclass_content = "both"  # the arguments of a class may be in its constructor's docstring
# These unions name every request and every response.
autodoc_type_aliases = {name: name for name in ("Request", "Response", "Handler", "OnReply")}
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["phone.css"]
html_title = f"logstore {version}"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False


class HtmlAnchors(SphinxTransform):
    """Links may lead to ``<a id="f-1"></a>``: Markdown itself gives ids to headings alone."""

    default_priority = 870  # before MyST resolves the links of a page

    def apply(self, **_: Any) -> None:
        slugs = dict(self.env.metadata[self.env.docname].get("myst_slugs", {}))
        for node in self.document.findall(nodes.raw):
            for name in re.findall(r'<a id="([\w-]+)">', node.astext()):
                slugs[name] = (node.line or 0, name, "")
        self.document.myst_slugs = slugs
        self.env.metadata[self.env.docname]["myst_slugs"] = slugs


def skip(app: Sphinx, what: str, _name: str, member: Any, skipped: bool, _options: Any) -> bool:
    """Leave out fields of named tuples: they are in the signature, without a text of their own.

    Errors are on the page of errors alone.
    """
    if what == "module" and isinstance(member, type) and issubclass(member, LogstoreError):
        return bool(skipped or app.env.docname != "docs/api/errors")
    return bool(skipped or str(member.__doc__).startswith("Alias for field number"))


def setup(app: Sphinx) -> None:
    app.add_transform(HtmlAnchors)
    app.connect("autodoc-skip-member", skip)
