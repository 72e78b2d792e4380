"""How every figure looks: widths of a printed page, fonts, legends, colours for colour-blind readers too."""

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlit.report.colours import TONES, looks_of

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure as Picture

NARROW, WIDE = 3.3, 6.8
"""Inches: one and both columns of a paper, so that 8 points are printed as 8 points."""
DPI = 150
CHARACTER = 0.066
"""Inches of a letter of 8 points, on average."""
_HANDLE, _LINE = 0.52, 0.165  # inches of a legend: a sample with what is around it, the height of a row
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2)))
_MARKERS = "osD^v"
_RC: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "figure.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "figure.dpi": DPI,  # laid out as it is drawn: letters have whole pixels
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.constrained_layout.w_pad": 0.06,
    "pdf.fonttype": 42,  # whole TrueType fonts: journals refuse type 3, and text stays text
}


@dataclass(frozen=True)
class Style:
    """How one line, bar or cloud of points is drawn; `dash` is what matplotlib calls a line style."""

    colour: str
    dash: Any = "-"
    marker: str = "o"


@contextmanager
def look() -> Iterator[None]:
    """Draw within this: fedlit's fonts and lines, whatever the user's matplotlibrc says."""
    from matplotlib import style

    with style.context(["default", _RC]):
        yield


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """A style for each label, whose first word is its algorithm's name where it has one: `FedProx mu=0.1`."""
    names = list(labels)
    looks = looks_of([name.split(" ")[0] for name in names])
    return {
        name: Style(TONES[look.tone].light, _DASHES[look.dash], _MARKERS[look.dash])
        for name, look in zip(names, looks, strict=True)
    }


def sequential(count: int) -> list[str]:
    """Colours from dark to light for values in order; the palest end of the map is left out, it is lost on white."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0, 0.85, max(count, 2))[:count])]


def good_is_dark(goal: str) -> "Colormap":
    """Colours from the lowest to the highest value, without the lightest, which white paper swallows."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    shades = colormaps["viridis"].resampled(256)(range(230))
    return ListedColormap(shades[::-1] if goal == "maximize" else shades)


def new_panels(
    count: int, *, columns: int = 3, height: float = 1.9, share: bool = False, wide: bool = False
) -> tuple["Picture", list["Axes"]]:
    """A picture with so many axes: one column of a page for a single one (unless `wide`), else the whole width."""
    from matplotlib.figure import Figure

    columns = 2 if count == 4 and columns == 3 else min(columns, count)
    rows = math.ceil(count / columns)
    tall = height if columns == 3 else 1.2 * height
    picture = Figure(figsize=(NARROW if count == 1 and not wide else WIDE, tall * rows), layout="constrained")
    grid = picture.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    axes: list[Axes] = list(grid.flat)
    for spare in axes[count:]:
        spare.remove()
    return picture, axes[:count]


def columns_of(axes: "Axes") -> int:
    """How many panels stand side by side."""
    spec = axes.get_subplotspec()
    assert spec is not None, "panels stand in a grid"
    return int(spec.get_gridspec().ncols)


def name_panels(axes: Sequence["Axes"], x: str, y: str) -> None:
    """The labels of axes that all panels share: below each column and at the left of each row."""
    columns = columns_of(axes[0])
    for lowest in axes[-columns:]:
        lowest.set_xlabel(x)
        lowest.tick_params(labelbottom=True)  # the panel below it may have been a spare one
    for leftmost in axes[::columns]:
        leftmost.set_ylabel(y)


def panel_width(axes: "Axes") -> float:
    """About how many inches the data have from left to right."""
    picture = axes.get_figure(root=True)
    assert picture is not None, "panels stand in a picture"
    return float(picture.get_figwidth()) / columns_of(axes) - 0.6


def title_panels(axes: Sequence["Axes"], titles: Iterable[str], remarks: Iterable[str] = ()) -> None:
    """A title above each panel, wrapped to its width, with a remark below it where there are any."""
    for panel, title, remark in zip_longest(axes, titles, remarks):
        room = panel_width(panel) + 0.35  # it may stand above the ticks of the axis as well
        panel.set_title("\n".join(wrapped(text, room, lines=4) for text in (title, remark) if text))


def legend_below(picture: "Picture", entries: Mapping[str, "Artist"]) -> None:
    """One legend for all panels, outside of them; the picture grows by as much as it takes."""
    width, height = picture.get_size_inches()
    texts = [wrapped(label, width - _HANDLE - 0.2) for label in entries]
    widest = max(inches(line) for text in texts for line in text.split("\n"))
    columns = min(len(texts), max(1, int((width - 0.05) / (_HANDLE + widest))))
    rows = math.ceil(len(texts) / columns)
    lines = sum(max(text.count("\n") + 1 for text in texts[row::rows]) for row in range(rows))
    picture.set_size_inches(width, height + _LINE * lines + 0.08)
    picture.legend(
        list(entries.values()),
        texts,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        columnspacing=1.4,
        handlelength=2.4,
        labelspacing=0.3,
    )


def needs_width(labels: Iterable[str]) -> bool:
    """Whether the legend of a single panel would take more room than one column of a page has."""
    known = [printable(label) for label in labels]
    return len(known) > 6 or max(map(inches, known)) > NARROW - _HANDLE


def inches(text: str) -> float:
    """How wide a text of 8 points is printed."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=8), ismath=False)
    return float(width) / 72


def printable(text: str) -> str:
    """The text in letters that the font has; it may come from anywhere."""
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont("DejaVu Sans"))  # matplotlib's own, the default of `look`
    letters = ("?" if not font.get_char_index(ord(letter)) else letter for letter in " ".join(text.split()))
    return "".join(letters) or "?"


def wrapped(text: str, width: float, lines: int = 3) -> str:
    """The text in lines of so many inches, nothing in it taken for mathematics."""
    plain = printable(text)
    letter = max(CHARACTER, 1.03 * inches(plain) / len(plain))
    parts = textwrap.wrap(plain, max(8, int(width / letter)), max_lines=lines, placeholder=" …")
    shown = "\n".join(parts).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown  # a legend leaves out labels that begin with _
