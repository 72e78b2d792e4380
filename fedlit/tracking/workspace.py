"""A W&B workspace for federated runs: who wins and who loses, how much each user counts, what clients keep.

The charts are data, so that a test can hold them against the catalogue; `workspace` turns them into W&B's panels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedlit.catalogue import STATES, metric
from fedlit.errors import ConfigError
from fedlit.tracking.command import PICTURE
from fedlit.tracking.logger import GLOSSARY, ROUND
from fedlit.tracking.users import HISTOGRAM, TABLE


@dataclass(frozen=True)
class Lines:
    """Metrics over the round, in one chart."""

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


Chart = Lines | Scatter | Media

SECTIONS: dict[str, tuple[Chart, ...]] = {
    "Users": (
        Lines("min- and max-user accuracy", ("min_user/acc", "max_user/acc")),
        Lines("worst, mean and best user", ("users/acc_min", "users/acc_mean", "users/acc_max")),
        Lines("worst tenth of users", ("users/acc_p10", "users/acc_worst10")),
        Lines("variance over users", ("users/acc_var",)),
        Lines("users by accuracy", (HISTOGRAM,)),
        Scatter("accuracy of z by data size", "size", "acc_global"),
    ),
    "Coefficients": (
        Lines("min user: coefficient beside share of samples", ("min_user/weight", "min_user/size_share")),
        Lines("max user: coefficient beside share of samples", ("max_user/weight", "max_user/size_share")),
        Scatter("coefficient by data size", "size", "weight"),
    ),
    "Models": (
        Lines("accuracy", ("val/acc", "global/acc", "local/acc", "personal/acc")),
        Lines("loss", ("train/loss", "val/loss", "global/loss")),
        Lines("distance to the server's model", ("distance/mean",)),
        Lines("traffic per round", ("comm/up_mb", "comm/down_mb")),
    ),
    "Records": (Media(TABLE), Media(PICTURE), Media(GLOSSARY)),
}


def sections() -> dict[str, tuple[Chart, ...]]:
    """All sections; one for what clients keep, of all algorithms that have words for it, before the models."""
    at = list(SECTIONS).index("Models")
    fixed = list(SECTIONS.items())
    return dict([*fixed[:at], ("States of clients", tuple(state_charts())), *fixed[at:]])


def state_charts() -> Iterator[Chart]:
    """By data size at the end, and over the rounds."""
    for name, shown in STATES.items():
        yield Scatter(f"{shown.label} by data size", "size", name)
        if shown.curves:
            yield Lines(f"{shown.label} of the cohort", tuple(shown.curves))


def workspace(entity: str, project: str, name: str) -> Any:
    """The workspace as an object of wandb-workspaces; nothing is sent."""
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
            for title, charts in sections().items()
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
        return panels.LinePlot(title=chart.title, x=ROUND, y=list(chart.metrics), title_y=", ".join(sorted(units)))
    if chart.key == PICTURE:
        return panels.MediaBrowser(media_keys=[chart.key])
    return panels.WeavePanelSummaryTable(table_name=chart.key)


def specification(built: Any) -> dict[str, Any]:
    """What W&B stores of a workspace, as plain data."""
    view: dict[str, Any] = built._to_model().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return view  # as wandb-workspaces sends it; it has no public name for that
