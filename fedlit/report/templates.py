"""Pages from templates: whatever is put into one is escaped, unless it is marked as fedlit's own."""

from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

_ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)
"""A name that a template is not given is an error."""


def template(path: Path) -> Template:
    """The template in a file."""
    return _ENVIRONMENT.from_string(path.read_text(encoding="utf-8"))


def trusted(text: str) -> Markup:
    """Text that is markup, style or script already: never what a run has named."""
    return Markup(text)
