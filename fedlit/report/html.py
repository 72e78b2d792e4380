"""report.html: one page that needs nothing from elsewhere but the pictures beside it.

A click on a number shows the runs it was computed from: a `popover`, which browsers open without a script.
"""

from itertools import count
from pathlib import Path

from fedlit.report.page import Report
from fedlit.report.templates import template, trusted

HERE = Path(__file__).parent


def html(report: Report) -> str:
    """The whole page, from page.html."""
    return template(HERE / "page.html").render(
        report=report,
        style=trusted((HERE / "page.css").read_text(encoding="utf-8")),
        runs=sum(len(section.runs.rows) for section in report.sections),
        groups=sum(len(section.groups) for section in report.sections),
        next_number=count(1).__next__,
    )
