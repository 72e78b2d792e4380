"""The vertical axes of a parallel-coordinates picture: where a value stands, and what is written beside it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedlit.experiments.sweep.parameters import is_number

_SPREAD = 100.0
"""Values over such a ratio get a logarithmic axis."""
_FEW = 8
"""So many different values are all written down."""
_LEAST_GAP = 0.045
"""Between two labels, as a part of the axis."""
_LONGEST = 14


@dataclass(frozen=True)
class Axis:
    """One axis."""

    title: str
    place: Callable[[Any], float]
    """Where a value stands, from 0 to 1."""
    ticks: Sequence[tuple[float, str]]
    """Places with what is written there."""


def axis_of(title: str, values: Sequence[Any], *, is_log: bool = False, factor: float = 1.0) -> Axis:
    """The axis of these values: numbers by size, by their logarithm where they are spread so, anything else in steps.

    Zero has no logarithm: spread values with a zero among them stand in steps too. Labels show `factor` times a number.
    """
    if not all(is_number(value) and not isinstance(value, bool) for value in values):
        return stepped(title, list({repr(value): value for value in values}.values()))
    numbers = sorted({float(value) for value in values})
    positive = [number for number in numbers if number > 0]
    spread = is_log or (len(positive) > 1 and positive[-1] / positive[0] >= _SPREAD)
    if not spread:
        return numeric(title, numbers, lambda number: number, factor)
    if numbers[0] > 0:
        return numeric(title, numbers, math.log10, factor)
    return (
        stepped(title, numbers) if len(numbers) <= 2 * _FEW else numeric(title, numbers, lambda number: number, factor)
    )


def stepped(title: str, values: Sequence[Any]) -> Axis:
    """Every value at a place of its own, in equal steps."""
    numbers = all(isinstance(value, float) for value in values)
    texts = number_texts(values) if numbers else [text_of(value) for value in values]
    last = len(values) - 1
    places = {key_of(value): k / last if last else 0.5 for k, value in enumerate(values)}
    return Axis(title, lambda value: places[key_of(value)], spaced(list(zip(places.values(), texts, strict=True))))


def numeric(title: str, numbers: Sequence[float], scale: Callable[[float], float], factor: float) -> Axis:
    """Numbers at their place on a scale: labels at all of them if they are few, else at round ones."""
    low, high = scale(numbers[0]), scale(numbers[-1])
    width = high - low

    def place(value: Any) -> float:
        return (scale(float(value)) - low) / width if width > 0 else 0.5

    marks = numbers if len(numbers) <= _FEW else round_numbers(numbers[0], numbers[-1], is_log=scale is math.log10)
    texts = number_texts([mark * factor for mark in marks])
    return Axis(title, place, spaced([(place(mark), text) for mark, text in zip(marks, texts, strict=True)]))


def round_numbers(low: float, high: float, *, is_log: bool) -> list[float]:
    """Powers of ten in a wide range, else steps of 1, 2 or 5."""
    if is_log and high / low >= _SPREAD:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        return [float(f"1e{power}") for power in range(first, last + 1)]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    return [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def spaced(ticks: Sequence[tuple[float, str]], first: Sequence[tuple[float, str]] = ()) -> list[tuple[float, str]]:
    """The ticks without those that would be written over each other, or over the `first`."""
    kept = list(first)
    for position, text in sorted(ticks):
        if all(abs(position - other) >= _LEAST_GAP for other, _ in kept):
            kept.append((position, text))
    return kept


def number_texts(numbers: Sequence[float]) -> list[str]:
    """Numbers as labels of one axis: four digits, or powers of ten where some are far from 1."""
    sizes = [abs(number) for number in numbers if number]
    if not sizes or (min(sizes) >= 1e-3 and max(sizes) < 1e4):
        return [f"{number:.4g}" for number in numbers]
    return [power_text(number) for number in numbers]


def power_text(number: float) -> str:
    """10⁻⁷, 2·10⁻⁴, 0."""
    if not number:
        return "0"
    digits, _, exponent = f"{number:.2e}".partition("e")
    factor = f"{float(digits):g}"
    return f"$10^{{{int(exponent)}}}$" if factor == "1" else f"${factor}\\cdot10^{{{int(exponent)}}}$"


def key_of(value: Any) -> str:
    """The same for 1, 1.0 and '1', which a sweep file may hold side by side."""
    return repr(float(value)) if is_number(value) and not isinstance(value, bool) else repr(value)


def text_of(value: Any) -> str:
    """A value as a label: of a dotted path its end, and not too long."""
    text = str(value)
    if text.replace(".", "").replace("_", "").isalnum() and not is_number(text):
        text = text.rsplit(".", 1)[-1]
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return text.replace("$", r"\$")  # no formula
