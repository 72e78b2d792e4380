"""Numbers as a reader of tables wants them: shares as percentages, and all cells of a column with the same decimals."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedlit.metrics.catalogue import metric
from fedlit.report.tables import Cell

ABSENT = "—"


@dataclass(frozen=True)
class Style:
    """How the values of one metric are shown."""

    scale: float = 1.0
    decimals: int | None = 4
    """None where the magnitudes differ too much: four significant digits for each."""

    def number(self, value: float) -> str:
        """`81.12`; a minus sign, not a hyphen."""
        scaled = value * self.scale
        text = f"{scaled:.4g}" if self.decimals is None else f"{scaled:.{self.decimals}f}"
        zero = text.strip("-0.") == ""  # no minus sign before nothing but zeros
        return text.lstrip("-") if zero else text.replace("-", "−")

    def signed(self, value: float) -> str:
        """`+0.35`, `−1.20`, `0.00`."""
        text = self.number(value)
        return f"+{text}" if value > 0 and text.strip("0.") else text

    def cell(self, cell: Cell) -> str:
        """`81.12 ± 0.35`; without ± for one seed, and with the number of seeds where some of the group lack it."""
        if cell.mean is None:
            return ABSENT
        spread = f" ± {self.number(cell.std)}" if cell.std is not None else ""
        share = f" ({cell.n} of {cell.n + len(cell.missing)})" if cell.missing else ""
        return f"{self.number(cell.mean)}{spread}{share}"


def style_of(name: str, means: Iterable[float | None]) -> Style:
    """The style of a metric's column, given the means that stand in it."""
    unit = metric(name).unit
    if unit == "share":
        return Style(100.0, 2)
    if unit == "share²":
        return Style(1.0, 4)
    sizes = [abs(value) for value in means if value is not None and math.isfinite(value) and value != 0]
    if not sizes:
        return Style(1.0, 2)
    decimals = max(0, 3 - math.floor(math.log10(max(sizes))))
    readable = decimals <= 6 and min(sizes) >= 10.0 ** (1 - decimals)  # the smallest still has two digits
    return Style(1.0, decimals if readable else None)


def heading(name: str) -> str:
    """A metric's label with its unit: `global accuracy [%]`."""
    known = metric(name)
    unit = {"share": "%", "share²": "", "MB": "MB", "s": "s"}.get(known.unit, "")
    return f"{known.label} [{unit}]" if unit else known.label
