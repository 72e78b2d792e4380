"""partition.png: how many samples of which class each client has; readable for a few clients and for a thousand."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedlit.files import cache_home, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

_NAMED_CLIENTS = 60  # up to so many, every client has its id below it
_NAMED_CLASSES = 12
_MOST_COLUMNS = 2_000  # of more clients, evenly spaced ones are drawn: the picture has no more pixels
_COLOURS = ("#0969da", "#bf5700", "#1a7f37", "#8250df", "#bf3989", "#57606a", "#9a6700", "#1b7c83")


def draw_partition(described: Mapping[str, Any], path: Path) -> None:
    """Bars of the clients' sizes above a heat map client × class, where rows have classes.

    A picture is drawn once on a machine: runs of the same clients get a copy of what the cache has.

    Args:
        described: what `FederatedDataModule.describe` returns.
        path: where the PNG goes.
    """
    kept = cache_home() / "partitions" / f"{picture_key(described)}.png"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        if not kept.exists():
            with replacing(kept, shared=True) as draft:
                draw(described, draft)
        shutil.copyfile(kept, path)
    except OSError:  # nothing can be kept
        draw(described, path)


def picture_key(described: Mapping[str, Any]) -> str:
    """A hash of all that decides a picture: what is shown, and what draws it."""
    shown = json.dumps(described, sort_keys=True, default=str)
    return hashlib.sha256(f"{shown}\0{Path(__file__).read_text()}\0{version('matplotlib')}".encode()).hexdigest()[:24]


def draw(described: Mapping[str, Any], path: Path) -> None:
    """Draw the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here: matplotlib takes a second to import

    figure = partition_figure(described)
    FigureCanvasAgg(figure)  # needs no display
    figure.savefig(path, format="png", dpi=120)


def partition_figure(described: Mapping[str, Any]) -> "Figure":
    """Both panels have the clients in the same order: the largest first; many clients are grouped by main class."""
    from matplotlib.figure import Figure

    clients = described["clients"]
    counts: Floats = np.array([client.get("classes", [client["train"]]) for client in clients], dtype=float)
    has_classes = "classes" in clients[0]
    order = client_order(counts)
    every = max(1.0, len(order) / _MOST_COLUMNS)
    order = order[np.arange(0, len(order), every).astype(np.int64)]
    width = min(14.0, max(7.5, 2.2 + 0.22 * len(order)))
    tall = min(6.0, max(3.2, 0.07 * described["num_classes"])) if has_classes else 0.0
    figure = Figure(figsize=(width, 2.6 + tall), layout="constrained")
    panels = figure.subplots(
        1 + has_classes, 1, sharex=True, height_ratios=(2.0, tall)[: 1 + has_classes], squeeze=False
    )
    bars, last = panels[0, 0], panels[-1, 0]
    figure.suptitle(title(described), fontsize=11)
    draw_sizes(bars, counts[order].sum(1), [clients[client].get("group", "") for client in order])
    if has_classes:
        draw_shares(last, counts[order])
    name_clients(last, order, every)
    return figure


def client_order(counts: Floats) -> NDArray[np.int64]:
    """Client ids from the largest to the smallest; many clients are sorted by their most frequent class first."""
    sizes = counts.sum(1)
    if len(counts) <= _NAMED_CLIENTS:
        return np.argsort(-sizes, kind="stable")
    return np.lexsort((-sizes, np.where(sizes > 0, counts.argmax(1), counts.shape[1])))  # the empty ones last


def title(described: Mapping[str, Any]) -> str:
    """The name of the data, and the sizes of the clients."""
    sizes = [client["train"] for client in described["clients"]]
    clients = f"{len(sizes):,} client{'s' * (len(sizes) > 1)}"
    classes = f" {described['num_classes']} classes," if "classes" in described["clients"][0] else ""
    whole = f"{clients},{classes} {sum(sizes):,} training samples"
    varied = f"{min(sizes):,} to {max(sizes):,} per client, median {np.median(sizes):,.0f}"
    each = varied if min(sizes) < max(sizes) else f"{max(sizes):,} per client"
    return f"{described['name']}: {whole}\n{each}; data seed {described['seed']}, partition {described['hash']}"


def draw_sizes(axes: "Axes", sizes: Floats, groups: list[str]) -> None:
    """A bar for each client, in the colour of its group where there are a few groups."""
    names = sorted(set(groups)) if len(set(groups)) <= len(_COLOURS) else [""]
    for name, colour in zip(names, _COLOURS, strict=False):
        sizes_of_group = np.where(np.array(groups) == name, sizes, 0) if len(names) > 1 else sizes
        if len(sizes) <= _NAMED_CLIENTS:
            axes.bar(np.arange(len(sizes)), sizes_of_group, width=0.8, color=colour, label=shortened(name))
        else:  # one patch: a thousand bars take seconds
            axes.stairs(sizes_of_group, np.arange(len(sizes) + 1) - 0.5, fill=True, color=colour, label=shortened(name))
    if len(names) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, ncols=4, frameon=False, fontsize=8)
    scale_sizes(axes, sizes)
    axes.set_ylabel("training samples")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(bottom=False)


def scale_sizes(axes: "Axes", sizes: Floats) -> None:
    """A logarithmic axis where sizes differ much; ticks are whole numbers in either case."""
    from matplotlib.ticker import MaxNLocator, NullFormatter

    largest = sizes.max(initial=1)
    smallest = sizes.min(initial=largest, where=sizes > 0)
    if largest > 20 * smallest:
        axes.set_yscale("log")
        axes.set_ylim(bottom=10 ** np.floor(np.log10(smallest)) / 2)  # a client with one sample has a bar, too
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.05 * largest)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")


def shortened(name: str) -> str:
    """A group's name, cut to what fits into a legend of four columns."""
    return name if len(name) <= 18 else f"{name[:17]}…"


def draw_shares(axes: "Axes", counts: Floats) -> None:
    """The classes of each client; a missing class is white, and the smallest share is visibly not white."""
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(
        np.ma.masked_equal(share.T, 0),
        aspect="auto",
        cmap=visible_blues(),
        norm=PowerNorm(0.5, vmin=0, vmax=1),  # the same in all pictures; by the root: of 80 classes most have 1 %
        interpolation="nearest",
        origin="lower",
    )
    classes = counts.shape[1]
    axes.set_ylabel("class")
    most_ticks = classes if classes <= _NAMED_CLASSES else 10
    axes.yaxis.set_major_locator(MaxNLocator(most_ticks, steps=[1, 2, 5, 10], integer=True))
    bar = axes.figure.colorbar(image, ax=axes, label="share of its samples (white: none)", pad=0.01)
    bar.set_ticks([0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1], minor=False)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def visible_blues() -> "Colormap":
    """matplotlib's Blues without its near-white end."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["Blues"](np.linspace(0.15, 1, 256)))


def name_clients(axes: "Axes", order: NDArray[np.int64], every: float) -> None:
    """Label the axis with client ids, or with the number of clients if ids would be too small to read."""
    if len(order) <= _NAMED_CLIENTS:
        axes.set_xticks(range(len(order)), [str(client) for client in order], fontsize=8)
        axes.set_xlabel("client id, largest first")
        return
    axes.xaxis.set_major_formatter(lambda column, _: f"{column * every:,.0f}")
    drawn = f"; one in {every:,.0f} is drawn" if every > 1 else ""
    axes.set_xlabel(f"number of clients, in the order of the class they have most of, then of size{drawn}")
