"""The site: `make docs` builds it from the Markdown in this folder. docs/made.py writes what commands can write."""

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.util import inspect

import fedlit

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
from made import make_pages  # noqa: E402  # it stands beside this file

project = "fedlit"
copyright = "the fedlit developers"
version = release = fedlit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["made/*.md"]  # parts of pages, which those include
html_theme = "furo"
html_title = f"fedlit {release}"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
highlight_language = "text"  # a block without a language is a command, or what one prints

myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 4
default_role = "code"  # docstrings write `name`, as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the text says what an argument is; types are in the source, a click away
autodoc_default_options = {"undoc-members": False}


def escape_markup(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with formulas: bars, stars and trailing underscores mean nothing outside of code.

    What is indented below a line that ends with a colon, and is not one of Google's sections, is kept as it is written.
    """
    written: list[str] = []
    is_literal = False
    for line, rest in ((line, lines[k + 1 :]) for k, line in enumerate(lines)):
        is_literal = is_literal and not re.match(r"\S", line)
        if is_literal:
            written.append(line)
            continue
        below = next((other for other in rest if other), "")
        is_literal = re.match(r"\S.*:$", line) is not None and line not in SECTIONS and below.startswith(" ")
        written += [f"{escaped(line)}:", ""] if is_literal else [escaped(line)]
    lines[:] = written


SECTIONS = ("Args:", "Returns:", "Raises:", "Yields:", "Example:", "Examples:", "Attributes:")


def escaped(line: str) -> str:
    """Without markup, but for what stands in backticks."""
    parts = re.split(r"(`[^`]*`)", line)
    parts[::2] = [re.sub(r"([|*])|(?<=\w)_(?!\w)", lambda found: "\\" + found[0], part) for part in parts[::2]]
    return "".join(parts)


def shown_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """The arguments of `__init__`: many classes have a `__new__` that only notes them (fedlit.recorded)."""
    if what != "class" or obj.__init__ is object.__init__:
        return None
    arguments = inspect.signature(obj.__init__, bound_method=True)
    return inspect.stringify_signature(arguments, show_annotation=False, show_return_annotation=False), ""


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-signature", shown_signature)
    app.connect("autodoc-process-docstring", escape_markup, priority=400)  # before napoleon, at 500
    make_pages(DOCS / "made")
