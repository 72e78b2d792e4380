"""A W&B workspace for federated runs: results of users, their weights, states of clients.

The charts are data, so that a test can compare them with the catalogue; `workspace` makes W&B's panels of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedlit.errors import ConfigError
from fedlit.metrics.catalogue import STATES, metric
from fedlit.metrics.measures import ACCURACY, Measure
from fedlit.report.min_max import LAST
from fedlit.trainer.wandb.logger import GLOSSARY, ROUND
from fedlit.trainer.wandb.session import PICTURE
from fedlit.trainer.wandb.users import TABLE, histogram


@dataclass(frozen=True)
class Lines:
    """Metrics over the round, in one chart."""

    title: str
    metrics: tuple[str, ...]
    mean_over: int = 1
    """Rounds of a running mean, for what is measured on one drawn cohort."""
    expression: str = ""
    """What is drawn of the metrics instead of themselves."""


@dataclass(frozen=True)
class Bars:
    """Numbers of whole runs, from their summaries."""

    title: str
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Scatter:
    """Two columns of the users' table: a point is a client after the last evaluated round."""

    title: str
    x: str
    y: str


@dataclass(frozen=True)
class Media:
    """A table or a picture of each run."""

    key: str


Chart = Lines | Bars | Scatter | Media

COEFFICIENTS: tuple[Chart, ...] = (
    Lines("min user: coefficient beside share of samples", ("min_user/weight", "min_user/size_share"), LAST),
    Lines("max user: coefficient beside share of samples", ("max_user/weight", "max_user/size_share"), LAST),
    Scatter("coefficient by data size", "size", "weight"),
)
TRAINING: tuple[Chart, ...] = (
    Lines("loss", ("train/loss", "val/loss", "global/loss")),
    Lines("distance to the server's model", ("distance/mean",)),
    Lines("traffic per round", ("comm/up_mb", "comm/down_mb", "comm/first_mb", "comm/eval_mb")),
)
RECORDS: tuple[Chart, ...] = (Media(TABLE), Media(PICTURE), Media(GLOSSARY))


def sections(measures: Sequence[Measure] = (ACCURACY,)) -> dict[str, tuple[Chart, ...]]:
    """All sections for runs with these measures; one has the states of all algorithms that declared a label."""
    return {
        "Users": tuple(chart for measure in measures for chart in user_charts(measure, measure is measures[0])),
        "Coefficients": COEFFICIENTS,
        "States of clients": tuple(state_charts()),
        "Models": (*(models_chart(measure) for measure in measures), *TRAINING),
        "Records": RECORDS,
    }


def user_charts(measure: Measure, is_first: bool) -> Iterator[Chart]:
    """Charts of a measure over users; the first measure has a histogram too."""
    label, users = measure.label, f"users/{measure.name}"
    yield from min_max_charts(measure)
    yield Lines(f"{label} of the worst, mean and best user", (f"{users}_min", f"{users}_mean", f"{users}_max"))
    yield Lines(f"{label} of the worst tenth of users", (f"{users}_{measure.tail}", f"{users}_worst10"))
    yield Lines(f"{label}: variance over users", (f"{users}_var",))
    if is_first:
        yield Lines(f"users by {label}", (histogram(measure),))
    yield Scatter(f"{label} of z by data size", "size", f"{measure.name}_global")


def min_max_charts(measure: Measure) -> Iterator[Chart]:
    """FedBC's Fig. 4 and 9 to 12: smoothed, the gap between the two, and what it comes to."""
    both = low, high = (f"min_user/{measure.name}", f"max_user/{measure.name}")
    apart = f"abs(${{{high}}} - ${{{low}}})"
    yield Lines(f"min- and max-user {measure.label}, mean over {LAST} rounds", both, LAST)
    yield Lines(f"gap of min- and max-user {measure.label}, mean over {LAST} rounds", both, LAST, apart)
    yield Bars(f"gap of min- and max-user {measure.label}, last {LAST} rounds", (f"min_max/{measure.name}_gap",))
    if measure.unit == "share":
        yield Bars("rounds with min and max user within ten points", (f"min_max/{measure.name}_within10",))


def models_chart(measure: Measure) -> Lines:
    """A measure of the server's, the local and the personal models."""
    return Lines(measure.label, tuple(f"{group}/{measure.name}" for group in ("val", "global", "local", "personal")))


def state_charts() -> Iterator[Chart]:
    """Charts of clients' states: by data size at the end, and over the rounds."""
    for name, shown in STATES.items():
        yield Scatter(f"{shown.label} by data size", "size", name)
        if shown.curves:
            yield Lines(f"{shown.label} of the cohort", tuple(shown.curves))


def workspace(entity: str, project: str, name: str, measures: Sequence[Measure] = (ACCURACY,)) -> Any:
    """The workspace as an object of wandb-workspaces, for runs with these measures; nothing is sent."""
    try:
        from wandb_workspaces import expr, workspaces
    except ImportError as error:
        raise ConfigError(
            "fedlit workspace needs the package wandb-workspaces. Install it: pip install 'fedlit[workspace]'."
        ) from error
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[
            workspaces.Section(name=title, panels=[panel(chart) for chart in charts], is_open=True)
            for title, charts in sections(measures).items()
        ],
        settings=workspaces.WorkspaceSettings(x_axis=ROUND),
        runset_settings=workspaces.RunsetSettings(groupby=[expr.Metric("Group"), expr.Metric("JobType")]),
    )


def panel(chart: Chart) -> Any:
    """The W&B panel of a chart."""
    from wandb_workspaces.reports.v2 import interface as panels

    if isinstance(chart, Scatter):
        return panels.CustomChart(
            query={"summaryTable": {"tableKey": TABLE}},
            chart_name="wandb/scatter/v0",
            chart_fields={"x": chart.x, "y": chart.y},
            chart_strings={"title": chart.title},
        )
    if isinstance(chart, Lines):
        units = {metric(name).unit for name in chart.metrics}
        plot = panels.LinePlot(title=chart.title, x=ROUND, y=list(chart.metrics), title_y=", ".join(sorted(units)))
        if chart.mean_over > 1:
            plot.smoothing_type, plot.smoothing_factor = "average", chart.mean_over  # of a running mean: its points
            plot.smoothing_show_original = False
        if chart.expression:
            plot.custom_expressions = [chart.expression]
        return plot
    if isinstance(chart, Bars):
        return panels.BarPlot(title=chart.title, metrics=list(chart.metrics))
    if chart.key == PICTURE:
        return panels.MediaBrowser(media_keys=[chart.key])
    return panels.WeavePanelSummaryTable(table_name=chart.key)


def specification(built: Any) -> dict[str, Any]:
    """A workspace as the plain data that W&B stores."""
    view: dict[str, Any] = built._to_model().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return view  # as wandb-workspaces sends it; there is no public method for it
