"""Pages from templates, and report.html: one page that needs nothing from elsewhere but the pictures beside it.

Whatever is put into a template is escaped, unless it is marked as fedlit's own. A click on a number of report.html
shows the runs it was computed from: a `popover`, which browsers open without a script.
"""

from itertools import count
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from fedlit.report.page import Report

HERE = Path(__file__).parent
_ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)
"""A name that a template is not given is an error."""


def html(report: Report) -> str:
    """The whole page, from page.html."""
    return template(HERE / "page.html").render(
        report=report,
        style=trusted((HERE / "page.css").read_text(encoding="utf-8")),
        runs=sum(len(section.runs.rows) for section in report.sections),
        groups=sum(len(section.groups) for section in report.sections),
        next_number=count(1).__next__,
    )


def template(path: Path) -> Template:
    """The template in a file."""
    return _ENVIRONMENT.from_string(path.read_text(encoding="utf-8"))


def trusted(text: str) -> Markup:
    """Text that is markup, style or script already: never what a run has named."""
    return Markup(text)
