"""Figures: what is drawn is what the runs hold, it can be read, and it needs no display."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Picture
from matplotlib.text import Text
from PIL import Image

from fedlit import FedAvg, FedBC, FederatedTrainer
from fedlit.errors import RunError
from fedlit.report.figures import Figure, draw_figures
from fedlit.report.figures.axes import number, show_values
from fedlit.report.figures.bars import Bar, bars_figure
from fedlit.report.figures.base import Curve, curve_of, final_values, have_all, seeds_of
from fedlit.report.figures.curves import MOST_BANDS, curves_figure, group_panels_figure, running_mean
from fedlit.report.figures.rounds import client_group_curves, mean_weights, user_accuracy
from fedlit.report.figures.scatter import Cloud, Users, clouds_figure, users_figure
from fedlit.report.figures.style import NARROW, WIDE, look, new_panels, sequential, styles_of
from fedlit.report.figures.sweep_figures import against_figure, against_state_figure, swept_figure
from fedlit.report.figures.sweeps import find_sweeps
from fedlit.report.figures.users import SHARE, cloud, last_part, last_round, state_rounds, users_of
from fedlit.results.folder import RunFolder
from fedlit.results.runs import Group, find_runs, group_runs, read_run
from tests.conftest import files as contents
from tests.problems import tiny_data, tiny_net
from tests.report.folders import one_group, seeds, write_run

NAN = float("nan")
Columns = Mapping[str, Sequence[Any]]


@pytest.fixture(autouse=True)
def styled() -> Iterator[None]:
    """As `draw_figures` draws."""
    with look():
        yield


def curve(label: str, *values: float, std: Sequence[float] | None = None, window: int = 1) -> Curve:
    """A curve in rounds 0, 1, …"""
    spread = None if std is None else np.array(std)
    return Curve(label, np.arange(len(values), dtype=float), np.array(values, dtype=float), spread, window)


def with_clients(path: Path, rounds: Mapping[int, Columns]) -> Path:
    """The run with these client records."""
    files = RunFolder(path)
    for round, columns in rounds.items():
        files.append_clients(round, columns)
    files.finish_clients()
    return path


def group_with_clients(folder: Path, *runs: Mapping[int, Columns], **options: Any) -> Group:
    """A group of one run for each of these records."""
    paths = [
        with_clients(write_run(folder / str(seed), {"global/acc": [0.5]}, seed=seed, **options), rounds)
        for seed, rounds in enumerate(runs)
    ]
    return one_group([read_run(path) for path in paths])


def legend_of(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.legends[0].get_texts()]


def lines_of(picture: Picture, panel: int = 0) -> list[list[float]]:
    """The y data of every line of a panel."""
    return [np.asarray(line.get_ydata(), dtype=float).tolist() for line in picture.axes[panel].lines]


def ticks_of(picture: Picture, panel: int = 0, *, x: bool = False) -> list[str]:
    """What is written beside an axis, within its range."""
    picture.draw_without_rendering()
    axis = picture.axes[panel].xaxis if x else picture.axes[panel].yaxis
    low, high = sorted(axis.get_view_interval())
    return [tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


# from runs to arrays


def test_a_curve_is_the_mean_over_seeds_in_the_rounds_that_all_of_them_have(tmp_path: Path) -> None:
    values: list[list[float | None]] = [[0.1, 0.2, None, 0.4], [0.3, None, 0.5, 0.8]]
    paths = [write_run(tmp_path / str(i), {"global/acc": own}, seed=i) for i, own in enumerate(values)]
    found = curve_of(one_group([read_run(path) for path in paths]), "global/acc")
    assert found is not None
    assert found.x.tolist() == [1, 4]
    assert found.mean == pytest.approx([0.2, 0.6])
    assert found.std == pytest.approx([0.1 * 2**0.5, 0.2 * 2**0.5])


def test_a_curve_of_one_seed_has_no_spread_and_one_without_common_rounds_does_not_exist(tmp_path: Path) -> None:
    alone = one_group(seeds(tmp_path / "one", "x", [0.5]))
    found = curve_of(alone, "x")
    assert found is not None
    assert found.std is None
    paths = [write_run(tmp_path / str(i), {"x": own}, seed=i) for i, own in enumerate([[1, None], [None, 1]])]
    assert curve_of(one_group([read_run(path) for path in paths]), "x") is None


def test_global_and_personal_accuracy_by_round_are_panels_of_one_figure(tmp_path: Path) -> None:
    """FedBCD's Fig. 3."""
    metrics = {"global/acc": [0.1, 0.5], "global/user_acc": [0.2, 0.4], "personal/acc": [0.2, 0.6]}
    group = one_group([read_run(write_run(tmp_path, metrics))])
    (drawn,) = user_accuracy([group], styles_of([group.label]))
    assert [np.asarray(panel.lines[0].get_ydata()).tolist() for panel in drawn.picture.axes] == list(metrics.values())


def test_what_is_infinite_is_not_in_a_curve_and_spoils_the_end(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, {"global/loss": [2.0, float("inf")]}))
    found = curve_of(one_group([run]), "global/loss")
    assert found is not None
    assert found.mean.tolist() == [2.0]
    assert np.isnan(final_values(one_group([run]), "global/loss")).tolist() == [True]


def test_a_group_is_left_out_if_one_of_its_runs_lacks_what_is_needed(tmp_path: Path) -> None:
    runs = [*seeds(tmp_path, "a", [1.0, 2.0]), *seeds(tmp_path, "b", [1.0], algorithm="FedBC")]
    groups = group_runs(runs)
    assert [group.label for group in have_all(groups, ["a"])] == ["FedAvg"]
    assert list(have_all(groups, ["clients.dual"])) == []
    assert seeds_of(groups) == "1 to 2 seeds"


RECORDS: dict[int, Columns] = {
    0: {"client": [0, 1, 2], "size": [10, 30, 60], "weight": [NAN] * 3, "dual": [NAN] * 3},
    1: {"client": [0, 1, 2], "size": [10, 30, 60], "weight": [0.2, 0.8, NAN], "dual": [1, 4, NAN]},
    2: {"client": [0, 1, 2], "size": [10, 30, 60], "weight": [NAN, 0.5, 0.5], "dual": [1, 6, 6]},
}


def test_a_client_is_shown_in_the_last_round_in_which_it_took_part(tmp_path: Path) -> None:
    group = group_with_clients(tmp_path, RECORDS)
    by_share = cloud(group, last_part, SHARE, "weight")
    assert by_share.x == pytest.approx([10 / 40, 30 / 90, 60 / 90])
    assert by_share.y == pytest.approx([0.2, 0.5, 0.5])
    assert cloud(group, last_part, "dual", "weight").x.tolist() == [1, 6, 6]


def test_seeds_are_pooled_and_clients_without_a_dual_left_out(tmp_path: Path) -> None:
    group = group_with_clients(tmp_path, RECORDS, {1: RECORDS[1]})
    found = cloud(group, last_round, "size", "dual")
    assert found.x.tolist() == [10, 30, 60, 10, 30]
    assert found.y.tolist() == [1, 6, 6, 1, 4]


def test_users_with_the_same_data_are_averaged_over_seeds_and_others_pooled(tmp_path: Path) -> None:
    first: Columns = {"client": [0, 1], "acc_global": [0.2, 0.6], "acc_local": [0.1, 0.9], "acc_personal": [NAN, 0.7]}
    second: Columns = {"client": [0, 1], "acc_global": [0.4, 0.8], "acc_local": [0.3, 0.9], "acc_personal": [NAN, 0.9]}
    same = users_of(group_with_clients(tmp_path / "same", {3: first}, {3: second}))
    assert same.server == pytest.approx([0.3, 0.7])
    assert same.own == pytest.approx([0.2, 0.8])
    group = group_with_clients(tmp_path / "other", {3: first}, {3: second})
    group.runs[1].partition["hash"] = "another"
    assert users_of(group).server == pytest.approx([0.2, 0.6, 0.4, 0.8])


@pytest.mark.parametrize(
    ("evaluated", "shown"),
    [
        (range(0, 501), [1, 50, 100, 200]),
        (range(0, 61), [1, 50, 60]),
        (range(0, 301, 10), [10, 50, 100, 200]),
        ([0, 1], [1]),
        ([0], []),
    ],
)
def test_duals_are_shown_in_the_rounds_of_the_paper_or_near_them(
    tmp_path: Path, evaluated: Sequence[int], shown: list[int]
) -> None:
    group = group_with_clients(tmp_path, {round: {"client": [0]} for round in evaluated})
    assert state_rounds([group]) == shown


def test_weights_are_averaged_over_the_clients_of_a_group_that_took_part(tmp_path: Path) -> None:
    kinds = ["clean", "clean", "flipped", ""]
    first = {1: {"client": range(4), "group": kinds, "weight": [0.3, 0.5, 0.2, 0.9]}}
    second = {1: {"client": range(4), "group": kinds, "weight": [0.6, NAN, 0.4, 0.9]}}
    group = group_with_clients(tmp_path, first, second)
    assert mean_weights(group.runs[0]) == {"clean": {1: pytest.approx(0.4)}, "flipped": {1: pytest.approx(0.2)}}
    clean, flipped = client_group_curves(group)
    assert (clean.label, flipped.label) == ("clean", "flipped")
    assert clean.mean == pytest.approx([0.5])
    assert flipped.mean == pytest.approx([0.3])


# swept options


def swept_groups(folder: Path, *settings: Mapping[str, Any]) -> list[Group]:
    """A group for each of these options of `write_run`."""
    paths = [write_run(folder / str(i), {"global/acc": [0.5]}, **own) for i, own in enumerate(settings)]
    return group_runs([read_run(path) for path in paths])


def test_groups_that_differ_in_one_option_are_a_sweep_in_the_order_of_its_values(tmp_path: Path) -> None:
    (sweep,) = find_sweeps(swept_groups(tmp_path, *({"model": {"mu": mu}} for mu in (10.0, 0.5, 2))))
    (line,) = sweep.lines
    assert (sweep.option, line.label, line.values) == ("model.mu", "FedAvg", [0.5, 2, 10.0])
    assert [group.options["model.mu"] for group in line.groups] == [0.5, 2, 10.0]


def test_every_algorithm_has_its_own_line_and_one_value_is_none(tmp_path: Path) -> None:
    settings = [{"algorithm": name, "model": {"lr": lr}} for name in ("FedAvg", "FedBC") for lr in (0.1, 0.2)]
    (sweep,) = find_sweeps(swept_groups(tmp_path, *settings, {"algorithm": "FedProx", "model": {"lr": 0.1}}))
    assert [line.label for line in sweep.lines] == ["FedAvg", "FedBC"]


def test_groups_that_differ_in_two_options_are_no_sweep(tmp_path: Path) -> None:
    assert find_sweeps(swept_groups(tmp_path, {"model": {"lr": 0.1, "mu": 1}}, {"model": {"lr": 0.2, "mu": 2}})) == []


def test_lines_of_one_algorithm_are_told_apart_by_their_other_options(tmp_path: Path) -> None:
    grid = [{"model": {"lr": lr, "mu": mu}} for lr in (0.1, 0.2) for mu in (1, 2)]
    by_option = {sweep.option: sweep for sweep in find_sweeps(swept_groups(tmp_path, *grid))}
    assert [line.label for line in by_option["model.lr"].lines] == ["FedAvg mu=1", "FedAvg mu=2"]
    assert [line.label for line in by_option["model.mu"].lines] == ["FedAvg lr=0.1", "FedAvg lr=0.2"]


def test_an_object_is_one_value_with_its_own_options(tmp_path: Path) -> None:
    weights = [{"class_path": "fedlit.ExpAlpha", "init_args": {"alpha": alpha}} for alpha in (0.2, 5.0)]
    settings = [{"trainer": {"weights": chosen}} for chosen in (None, *weights)]
    by_option = {sweep.option: sweep for sweep in find_sweeps(swept_groups(tmp_path, *settings))}
    assert by_option["trainer.weights"].values == ["not set", "ExpAlpha alpha=0.2", "ExpAlpha alpha=5"]
    assert by_option["trainer.weights.alpha"].values == [0.2, 5.0]


def test_an_infinite_value_has_no_place_on_an_axis_but_is_a_value(tmp_path: Path) -> None:
    (sweep,) = find_sweeps(swept_groups(tmp_path, *({"model": {"mu": mu}} for mu in (float("inf"), 1.0))))
    assert sweep.values == [1.0, "inf"]


# from arrays to pictures


def test_curves_are_drawn_with_their_bands_labels_and_percent() -> None:
    panels = {
        "global/acc": [curve("A", 0.2, 0.6, std=[0.1, 0.05]), curve("B", 0.3, 0.4)],
        "global/loss": [curve("A", 2.0, 1.0), curve("B", 1.5, 1.25)],
    }
    picture = curves_figure(panels, styles_of("AB"))
    assert lines_of(picture) == [[0.2, 0.6], [0.3, 0.4]]
    assert lines_of(picture, 1) == [[2.0, 1.0], [1.5, 1.25]]
    (band,) = picture.axes[0].collections
    corners = np.asarray(band.get_paths()[0].vertices)
    assert (corners[:, 1].min(), corners[:, 1].max()) == (pytest.approx(0.1), pytest.approx(0.65))
    assert [axes.get_ylabel() for axes in picture.axes] == ["global accuracy", "global loss"]
    assert {axes.get_xlabel() for axes in picture.axes} == {"round"}
    assert {"20 %", "40 %", "60 %"} <= set(ticks_of(picture))
    assert legend_of(picture) == ["A", "B"]


def test_thirty_labels_can_be_told_apart() -> None:
    labels = [str(place) for place in range(30)]
    styles = styles_of(labels)
    assert len({(style.colour, str(style.dash)) for style in styles.values()}) == 30
    picture = curves_figure({"global/acc": [curve("7", 0.5), curve("0", 0.2)]}, styles)
    assert [to_hex(str(line.get_color())) for line in picture.axes[0].lines] == [styles["7"].colour, styles["0"].colour]


def test_many_lines_have_no_bands() -> None:
    labels = [str(place) for place in range(MOST_BANDS + 1)]
    curves = [curve(label, 0.2, 0.4, std=[0.1, 0.1]) for label in labels]
    assert len(curves_figure({"x": curves[:-1]}, styles_of(labels)).axes[0].collections) == MOST_BANDS
    assert len(curves_figure({"x": curves}, styles_of(labels)).axes[0].collections) == 0


def test_a_running_mean_is_centred_and_shrinks_at_the_ends() -> None:
    assert running_mean(np.array([3.0, 6.0, 0.0, 9.0]), 3) == pytest.approx([4.5, 3, 5, 4.5])
    assert running_mean(np.array([3.0, 6.0]), 1).tolist() == [3, 6]


def test_panels_show_the_curve_faintly_below_its_running_mean() -> None:
    panels = {"FedAvg": [curve("low", 0, 0.3, 0.6, window=3)], "FedBC": [curve("high", 0.9, 0.6, 0.3)]}
    picture = group_panels_figure(panels, styles_of(["low", "high"]), "accuracy", percent=True)
    faint, thick = picture.axes[0].lines
    assert np.asarray(faint.get_ydata()).tolist() == [0, 0.3, 0.6]
    assert np.asarray(thick.get_ydata()) == pytest.approx([0.15, 0.3, 0.45])
    assert (faint.get_alpha() or 1) < 0.5
    assert lines_of(picture, 1) == [[0.9, 0.6, 0.3]]
    assert [axes.get_title() for axes in picture.axes] == ["FedAvg", "FedBC"]
    assert ticks_of(picture) == ["0 %", "25 %", "50 %", "75 %", "100 %"]


def test_clouds_have_their_points_and_a_line_of_equality() -> None:
    panels = {"A": [Cloud("A", np.array([0.1, 0.4]), np.array([0.3, 0.2]))], "B": [Cloud("B", *np.ones((2, 1)))]}
    picture = clouds_figure(panels, styles_of("AB"), "share", "weight", diagonal=True)
    assert picture.axes[0].collections[0].get_offsets().tolist() == [[0.1, 0.3], [0.4, 0.2]]  # type: ignore[union-attr]
    (line,) = picture.axes[1].lines
    assert np.asarray(line.get_xdata()).tolist() == np.asarray(line.get_ydata()).tolist() == [0, 1]
    assert [axes.get_ylabel() for axes in picture.axes] == ["weight", ""]
    assert [axes.get_xlabel() for axes in picture.axes] == ["share", "share"]
    assert picture.legends == []


def test_axes_are_logarithmic_only_where_positive_values_differ_much() -> None:
    wide, close = np.array([1.0, 20.0]), np.array([0.0, 20.0])
    picture = clouds_figure({"A": [Cloud("A", wide, close)]}, styles_of("A"), "n", "λ")
    assert (picture.axes[0].get_xscale(), picture.axes[0].get_yscale()) == ("log", "linear")
    assert {"1", "2", "5", "10", "20"} <= set(ticks_of(picture, x=True))


def test_users_stand_from_the_worst_served_to_the_best_with_their_own_models() -> None:
    users = Users(np.array([0.9, 0.1, 0.5]), np.array([0.8, 0.7, 0.5]))
    picture = users_figure({"FedBC": users})
    assert lines_of(picture) == [[0.1, 0.5, 0.9], [0.7, 0.5, 0.8]]
    assert picture.axes[0].get_title() == "FedBC\nown better for 1 of 3"
    assert ticks_of(picture, x=True) == ["1", "2", "3"]


def test_bars_start_at_zero_and_have_whiskers_only_with_several_seeds() -> None:
    picture = bars_figure({"users/acc_var": [Bar("A", 0.1, 0.02), Bar("B", 0.3)]}, styles_of("AB"))
    (axes,) = picture.axes
    assert [patch.get_width() for patch in axes.patches] == pytest.approx([0.1, 0.3])  # type: ignore[attr-defined]
    (whiskers,) = axes.collections
    ends = [np.asarray(path.vertices)[:, 0].tolist() for path in whiskers.get_paths()]
    assert ends[0] == pytest.approx([0.08, 0.12])
    assert not np.isfinite(ends[1]).any()
    assert axes.get_xlim()[0] == 0
    assert ticks_of(picture) == ["A", "B"]
    assert axes.get_xlabel() == "user variance"
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the first group is on top"


def test_bars_of_no_variance_and_of_no_number_are_drawn_as_nothing() -> None:
    picture = bars_figure({"users/acc_var": [Bar("A", 0.0, 0.0), Bar("B", NAN, NAN)]}, styles_of("AB"))
    assert ticks_of(picture) == ["A", "B"]
    assert picture.axes[0].get_xlim()[0] == 0


def test_values_of_a_swept_option_get_darker_to_lighter_colours_in_their_order() -> None:
    rows = {"PFedMe": {"global/acc": [curve("1", 0.1, 0.4), curve("2", 0.1, 0.5)], "personal/acc": [curve("2", 1)]}}
    picture = swept_figure(rows, ["1", "2"], "beta")
    assert lines_of(picture) == [[0.1, 0.4], [0.1, 0.5]]
    assert lines_of(picture, 1) == [[1]]
    assert [line.get_color() for line in picture.axes[0].lines] == sequential(2)
    assert picture.axes[1].lines[0].get_color() == sequential(2)[1]
    assert legend_of(picture) == ["beta = 1", "beta = 2"]


def test_the_end_is_drawn_against_the_values_of_an_option() -> None:
    ends = Curve("FedBC", np.array([20.0, 50.0]), np.array([0.8, 0.7]), np.array([0.1, 0.0]))
    picture = against_figure({"global/acc": [ends]}, [20, 50], "number of clients")
    assert np.asarray(picture.axes[0].lines[0].get_xdata()).tolist() == [20, 50]
    assert lines_of(picture)[0] == [0.8, 0.7]
    assert picture.axes[0].get_xlabel() == "number of clients"
    assert ticks_of(picture, x=True) == ["20", "50"]


def test_the_tolerance_has_a_logarithmic_axis_with_a_place_for_zero() -> None:
    ends = [
        Curve(label, np.array([0.0, 0.1, 10.0]), np.full(3, 0.5)) for label in ("global accuracy", "local accuracy")
    ]
    picture = against_state_figure({"FedBC": ends}, [0.0, 0.1, 10.0], "tolerance γ")
    assert picture.axes[0].get_xscale() == "symlog"
    assert ticks_of(picture, x=True) == ["0", "0.1", "10"]
    assert legend_of(picture) == ["global accuracy", "local accuracy"]


def test_ticks_that_would_overlap_are_left_out() -> None:
    picture, (axes,) = new_panels(1)
    show_values(axes, [0.001, 0.0011, 0.015])
    assert ticks_of(picture, x=True) == ["0.001", "0.015"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "not set"), (1000, "1,000"), (0.05, "0.05"), (1e-7, "1e-07"), (0.0, "0"), (True, "True"), ("a", "a")],
)
def test_values_are_written_as_people_write_them(value: Any, shown: str) -> None:
    assert number(value) == shown


# what a reader must be able to read


def texts_of(picture: Picture) -> list[Text]:
    return [text for text in picture.findobj(Text) if isinstance(text, Text) and text.get_text()]


def test_thirty_long_labels_stay_readable_outside_of_the_data() -> None:
    labels = [f"FedBC tolerance_init={place} local_epochs={place} server_optimizer=FedAdam" for place in range(30)]
    panels = {"global/acc": [curve(label, *np.linspace(0.1, 0.9, 501)) for label in labels]}
    picture = curves_figure(panels, styles_of(labels))
    picture.draw_without_rendering()
    legend, data, page = picture.legends[0].get_window_extent(), picture.axes[0].get_tightbbox(), picture.bbox
    assert data is not None
    assert legend_of(picture) == labels
    assert legend.y1 <= data.y0
    assert page.x0 <= legend.x0
    assert legend.x1 <= page.x1
    assert data.height / picture.dpi > 1.4, "the data keep their height"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 12])
def test_pictures_have_a_printed_width_and_no_text_below_eight_points(count: int) -> None:
    users = Users(np.array([0.2, 0.4]), np.array([0.3, 0.3]))
    picture = users_figure({f"group {place}": users for place in range(count)})
    picture.draw_without_rendering()
    assert picture.get_figwidth() == (NARROW if count == 1 else WIDE)
    assert min(float(text.get_fontsize()) for text in texts_of(picture)) >= 8
    assert picture.get_figheight() < 11, "it fits a page"


@pytest.mark.parametrize("label", [r"$\frac{", "_hidden", "a\nb", "短い", "", "x" * 500, "WW " * 60])
def test_a_label_from_anywhere_is_drawn_as_text_within_the_picture(label: str) -> None:
    picture = curves_figure({"global/acc": [curve(label, 0.5)]}, styles_of([label]))
    picture.draw_without_rendering()
    (shown,) = legend_of(picture)
    assert shown.strip()
    extent = picture.legends[0].get_window_extent()
    assert (extent.x0 >= 0, extent.x1 <= picture.bbox.x1) == (True, True)


def test_values_that_are_all_alike_do_not_look_like_a_curve() -> None:
    picture = curves_figure({"global/acc": [curve("A", 0.5, 0.5 + 1e-9)]}, styles_of("A"))
    low, high = picture.axes[0].get_ylim()
    assert high - low >= 0.02
    picture = curves_figure({"global/acc": [curve("A", 1.0, 1.0)]}, styles_of("A"))
    assert picture.axes[0].get_ylim()[1] < 1.01


# whole reports


EVERYTHING = [
    *("accuracy", "loss", "user_accuracy", "min_max_user", "worst_best_user", "coefficients_by_round"),
    *("weight_by_dual", "weight_by_tolerance", "weight_by_size", "dual_by_size", "dual_by_size_rounds"),
    *("tolerance_by_size", "tolerance_by_size_rounds", "variance", "user_ranks"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedBC and FedAvg with two seeds each, five rounds."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        for client in (FedBC(tiny_net(), lr=0.1, batch_size=4), FedAvg(tiny_net(), lr=0.1, batch_size=4)):
            trainer = FederatedTrainer(
                rounds=5,
                clients_per_round=3,
                engine="sequential",
                precision="64-true",
                seed=seed,
                run=folder / f"{type(client).__name__}-{seed}",
                enable_progress_bar=False,
            )
            trainer.fit(client, datamodule=tiny_data())
    return folder


@pytest.fixture(scope="module")
def drawn(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Figure], Path]:
    folder = tmp_path_factory.mktemp("drawn") / "figures"
    return draw_figures(group_runs(find_runs([runs])), folder), folder


def test_a_comparison_has_all_its_figures_as_png_and_pdf(drawn: tuple[list[Figure], Path]) -> None:
    figures, folder = drawn
    assert [figure.name for figure in figures] == EVERYTHING
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{kind}" for name in EVERYTHING for kind in ("png", "pdf")
    }
    for name in EVERYTHING:
        with Image.open(folder / f"{name}.png") as image:
            image.load()
            assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
            assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
        content = (folder / f"{name}.pdf").read_bytes()
        assert content.startswith(b"%PDF-")
        assert content.rstrip().endswith(b"%%EOF")
        assert b"/FontFile2" in content
        assert b"/Type3" not in content


def test_captions_say_what_is_shown_how_sure_and_who_is_missing(drawn: tuple[list[Figure], Path]) -> None:
    by_name = {figure.name: figure for figure in drawn[0]}
    assert all(figure.title and figure.caption.endswith(".") for figure in by_name.values())
    assert "z on pooled test" in by_name["accuracy"].caption
    assert "Mean over 2 seeds; band: ± one standard deviation." in by_name["accuracy"].caption
    assert by_name["dual_by_size"].caption.endswith("Without dual, and so not shown: FedAvg.")
    assert "not shown" not in by_name["weight_by_size"].caption


def test_another_process_without_a_display_writes_the_same_bytes(
    runs: Path, drawn: tuple[list[Figure], Path], tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path; from fedlit.results.runs import find_runs, group_runs\n"
        "from fedlit.report.figures import draw_figures\n"
        "draw_figures(group_runs(find_runs([Path(sys.argv[1])])), Path(sys.argv[2]), kinds=sys.argv[3:])"
    )
    without = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    some = ["accuracy", "weight_by_size", "variance", "user_ranks"]  # lines, points, bars and boxes
    command = [sys.executable, "-c", program, str(runs), str(tmp_path), *some]
    subprocess.run(command, env=without | {"MPLBACKEND": "tkagg"}, check=True, timeout=500)
    assert len(contents(tmp_path)) == 2 * len(some)
    assert contents(tmp_path).items() <= contents(drawn[1]).items()


def test_figures_do_not_depend_on_what_matplotlib_is_set_to(tmp_path: Path) -> None:
    groups = group_runs(seeds(tmp_path / "runs", "global/acc", [0.2, 0.4]))
    draw_figures(groups, tmp_path / "plain")
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30, "axes.facecolor": "black", "pdf.fonttype": 3}):
        draw_figures(groups, tmp_path / "set")
    assert contents(tmp_path / "plain") == contents(tmp_path / "set")


def test_figures_of_what_was_not_measured_are_left_out_and_each_is_reported(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", {"global/acc": [0.1, 0.5], "users/acc_var": [0.2, None]}))
    reported: list[str] = []
    figures = draw_figures(group_runs([run]), tmp_path / "figures", reported.append)
    assert [figure.name for figure in figures] == reported == ["accuracy", "variance"]
    assert figures[0].caption.endswith("One seed each, so no spread is shown.")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"model": {"tolerance_init": 0.0}}, ["tolerance", "swept_model_tolerance_init"]),
        ({"data_options": {"num_clients": 20}}, ["number_of_clients", "swept_data_num_clients"]),
        ({"model": {"beta": 2.0}}, ["against_model_beta", "swept_model_beta"]),
        ({"trainer": {"weights": "uniform"}}, ["against_trainer_weights", "swept_trainer_weights"]),
    ],
)
def test_a_swept_option_has_its_figures(tmp_path: Path, options: dict[str, Any], names: list[str]) -> None:
    ((part, ((option, _),)),) = [(part, tuple(own.items())) for part, own in options.items()]
    metrics = {"global/acc": [0.1, 0.5], "local/acc": [0.1, 0.4], "personal/acc": [0.2, 0.9]}
    paths = [
        write_run(tmp_path / "0", metrics, algorithm="FedBC", **options),
        write_run(tmp_path / "1", metrics, algorithm="FedBC", **{part: {option: 50}}),  # type: ignore[arg-type]
    ]
    figures = draw_figures(group_runs([read_run(path) for path in paths]), tmp_path / "figures")
    assert [figure.name for figure in figures][2:] == names


def test_clients_in_groups_have_a_figure_of_their_weights(tmp_path: Path) -> None:
    records: dict[int, Columns] = {
        round: {"client": [0, 1], "group": ["clean", "flipped"], "size": [5, 5], "weight": [0.7, 0.3]}
        for round in (1, 2)
    }
    figures = draw_figures([group_with_clients(tmp_path / "runs", records)], tmp_path / "figures")
    assert [figure.name for figure in figures] == ["accuracy", "weight_by_size", "weight_by_client_group"]


def test_one_client_and_one_round_can_be_drawn(tmp_path: Path) -> None:
    alone: Columns = {"client": [0], "size": [5], "weight": [1.0], "dual": [0.0], "acc_global": [1.0], "acc_local": [1]}
    figures = draw_figures([group_with_clients(tmp_path / "runs", {1: alone})], tmp_path / "figures")
    assert [figure.name for figure in figures] == [
        *("accuracy", "weight_by_dual", "weight_by_size", "dual_by_size", "user_ranks")
    ]


def test_no_groups_give_no_figures(tmp_path: Path) -> None:
    assert draw_figures([], tmp_path) == []


def test_a_file_in_the_way_of_the_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be made"):
        draw_figures([], tmp_path / "file")
