r"""tables.tex: tables to be taken into a paper by \input, in the manner of booktabs.

They need \usepackage{booktabs} and \usepackage{graphicx}; a table wider than the text is shrunk to fit.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise

from fedlit.report.grids import Entry, Grid
from fedlit.report.page import Report

LONGEST = 36
"""Rows of a table that fit a page; a longer one is continued in another."""
HEADING = 14
"""Characters of a heading's line."""
WIDEST = 9
"""Metrics that can be read side by side; further ones stand below them, each line named again."""
_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
_SIGNS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after \\ these two would be arguments of the line break
    "*": "{*}",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "‖": r"$\|$",
    "∇": r"$\nabla$",
    "²": r"$^2$",
    "⁶": r"$^6$",
    "Σ": r"$\Sigma$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "η": r"$\eta$",
    "θ": r"$\theta$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "ρ": r"$\rho$",
    "’": "'",
    "…": r"\dots{}",
}


def latex(report: Report) -> str:
    """The whole file."""
    lines = [r"% Needs \usepackage{booktabs} and \usepackage{graphicx}; take it in with \input{tables}."]
    for section in report.sections:
        for grid in section.grids:
            lines += grid_lines(grid, section.data)
    return "\n".join(lines) + "\n"


def grid_lines(grid: Grid, data: str) -> Iterator[str]:
    """A grid as one table, or as several if it is longer than a page."""
    starts = range(0, max(len(grid.rows), 1), LONGEST)
    for number, start in enumerate(starts, start=1):
        name = grid.name if len(starts) == 1 else f"{grid.name}-{number}"
        part = "" if len(starts) == 1 else f", part {number} of {len(starts)}"
        yield from ("", r"\begin{table}", r"  \centering\footnotesize")
        yield f"  \\caption{{{escape(f'{grid.title}, {data}{part}. {grid.caption}')}}}"
        yield f"  \\label{{tab:{name}}}"
        if grid.rows:
            for columns in side_by_side(grid):
                yield from tabular(grid, columns, grid.rows[start : start + LONGEST])
        if grid.notes and start == starts[-1]:
            yield f"  \\par\\smallskip{{\\raggedright {escape(' '.join(grid.notes))}\\par}}"
        yield r"\end{table}"


def side_by_side(grid: Grid) -> list[list[int]]:
    """The metrics of a grid in as many parts as are needed, each beside the columns that name a row."""
    metrics = [column for column, heading in enumerate(grid.headings) if heading.name]
    others = [column for column, heading in enumerate(grid.headings) if not heading.name]
    parts = max(1, math.ceil(len(metrics) / WIDEST))
    ends = [round(part * len(metrics) / parts) for part in range(parts + 1)]
    return [sorted([*others, *metrics[first:last]]) for first, last in pairwise(ends)]


def tabular(grid: Grid, columns: Sequence[int], rows: Sequence[Sequence[Entry]]) -> Iterator[str]:
    """Head and rows of some columns between their rules, no wider than the text."""
    headings = [grid.headings[column] for column in columns]
    yield f"  \\par\\smallskip{_FIT}"
    yield f"  \\begin{{tabular}}{{{''.join('l' if heading.is_text else 'r' for heading in headings)}}}"
    yield r"    \toprule"
    yield f"    {' & '.join(stacked(heading.text, heading.is_text) for heading in headings)} \\\\"
    yield r"    \midrule"
    for entries in rows:
        yield f"    {' & '.join(entry_text(entries[column]) for column in columns)} \\\\"
    yield r"    \bottomrule"
    yield r"  \end{tabular}}"


def stacked(text: str, is_text: bool) -> str:
    """A heading over several lines, so that numbers and not words decide how wide a column is."""
    lines = [escape(line) for line in textwrap.wrap(text, HEADING, break_long_words=False)]
    if len(lines) == 1:
        return lines[0]
    return rf"\shortstack[{'l' if is_text else 'r'}]{{" + r" \\ ".join(lines) + "}"


def entry_text(entry: Entry) -> str:
    """A field, bold or plain."""
    return f"{{\\boldmath\\textbf{{{escape(entry.text)}}}}}" if entry.bold else escape(entry.text)


def escape(text: str) -> str:
    """Text that stays text; a sign that LaTeX cannot be trusted to know is written as its number."""
    plain = " ".join(text.split())
    return "".join(escape_sign(before, sign) for before, sign in pairwise(f" {plain}"))


def escape_sign(before: str, sign: str) -> str:
    """One sign, given the one before it."""
    if before == sign == "-":
        return "{-}"  # two in a row would become a dash
    known = sign.isascii() and sign.isprintable() or ("À" <= sign <= "ÿ" and sign not in "ÐðÞþ")
    return _SIGNS.get(sign) or (sign if known else f"U+{ord(sign):04X}")
