"""Curves in a real browser: what is chosen is drawn, and what is shown is what was measured."""

import re
from pathlib import Path
from statistics import mean, stdev

import pytest
from selenium.webdriver.common.keys import Keys

from tests.report.dashboard.browser import Page, row_of

FIRST = "svg.chart"


def numbers(text: str) -> list[float]:
    """`81.12 ± 0.53 %` -> [81.12, 0.53]."""
    return [float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", text)]


def test_a_page_draws_a_line_for_each_group_in_a_chart_for_each_usual_metric(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    assert page.texts("figcaption h2") == ["global accuracy", "global loss", "personal accuracy", "user variance"]
    assert page.legend() == ["FedAvg", "FedBC"]
    assert len(page.lines()) == 2
    assert len(page.find("svg.chart path.band")) == 8
    assert page.texts("#remarks li") == []


@pytest.mark.parametrize("word", ["fedbc", "FedBC-1", "seed=1 fedbc"])
def test_text_narrows_curves_and_legend(page: Page, dashboard: Path, word: str) -> None:
    page.open(dashboard)
    before = page.lines()
    page.type("#run-filter", word)
    assert page.legend() == ["FedBC"]
    assert len(page.lines()) == 1
    assert page.lines()[0] not in before, "the axes fit what is left"


def test_algorithm_and_seed_narrow_to_one_run(page: Page, dashboard: Path) -> None:
    page.open(dashboard, "mode=runs")
    assert len(page.lines()) == 4
    page.click("#algorithms [data-value=FedAvg]")
    assert len(page.lines()) == 2
    page.click("#seeds [data-value='1']")
    assert len(page.lines()) == 1
    page.click("#runs-clear")
    assert len(page.lines()) == 4


def test_a_group_can_be_switched_off_in_list_and_legend(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    page.click("#run-list li .group input")
    assert page.legend() == ["FedBC"]
    page.click("#legend button:nth-child(2)")
    assert page.texts("#view .empty") == ["No run is chosen. Tick one or more under Runs, or clear the filters."]
    page.click("#runs-all")
    assert page.legend() == ["FedAvg", "FedBC"]


def test_a_single_run_can_be_unticked(page: Page, dashboard: Path) -> None:
    page.open(dashboard, "mode=runs")
    page.click("#run-list .more")
    page.click("#run-list li ul input")
    assert page.texts("#run-count") == ["3 of 4"]
    assert len(page.lines()) == 3
    assert page.js("return document.querySelector('#run-list input').indeterminate")


def test_metrics_are_chosen_with_label_unit_and_definition(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    page.type("#metric-filter", "gini")
    assert page.texts("#metric-list label") == [
        "Gini coefficient users/gini\nof z's own-test accuracies (regression: MSE); 0 = all users alike"
    ]
    page.click("#metric-list [data-metric='users/gini'] input")
    assert "Gini coefficient" in page.texts("figcaption h2")
    page.click("#metrics-none")
    assert page.texts("#view .empty") == ["No metric is chosen. Tick one or more under Metrics."]
    page.click("#metrics-default")
    assert len(page.texts("figcaption h2")) == 4


def test_hover_shows_every_runs_value_as_in_metrics_csv(page: Page, dashboard: Path, trained: Path) -> None:
    page.open(dashboard, "mode=runs&metrics=global/loss,global/acc")
    for chart, name, factor in (("figure:nth-child(1)", "global/acc", 100), ("figure:nth-child(2)", "global/loss", 1)):
        page.hover(f"{chart} svg.chart", 30, 0)
        heading, rows = page.tip()
        shown = {label: numbers(text)[0] for label, text in rows.items()}
        measured = {
            f"{label}, seed {seed}": row_of(trained / f"{label.lower()}-{seed}", int(heading.split()[1]))[name] * factor
            for label in ("FedAvg", "FedBC")
            for seed in (0, 1)
        }
        assert shown == pytest.approx(measured, rel=5e-4, abs=0.0051)


def test_hover_shows_mean_and_deviation_of_a_group(page: Page, dashboard: Path, trained: Path) -> None:
    page.open(dashboard, "metrics=global/loss")
    page.hover(FIRST, 30, 0)
    heading, rows = page.tip()
    values = [row_of(trained / f"fedbc-{seed}", int(heading.split()[1]))["global/loss"] for seed in (0, 1)]
    assert numbers(rows["FedBC"]) == pytest.approx([mean(values), stdev(values)], abs=0.00051)
    assert stdev(values) > 0.005, "large enough to be told from another formula"


def test_dragging_zooms_all_charts_and_reset_shows_all(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    before = page.lines()
    page.drag(FIRST, -60, 60)
    assert page.lines() != before
    first, last = page.js("return document.querySelectorAll('svg.chart')[1].chart.span")
    assert 0 < first < last < 12
    page.click("#zoom-reset")
    assert page.lines() == before
    assert page.texts("#zoom-reset") == []


def test_arrow_keys_walk_through_the_rounds_and_plus_zooms(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    page.js("document.querySelector('svg.chart').focus()")
    chart = page.browser.switch_to.active_element
    chart.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.tip()[0] == "Round 2"
    chart.send_keys(Keys.END)
    assert page.tip()[0] == "Round 12"
    chart.send_keys("+")
    page.settle()
    assert page.texts("#zoom-reset") == ["Rounds 9 to 12 · show all"]
    chart.send_keys(Keys.ESCAPE)
    page.settle()
    assert page.texts("#zoom-reset") == []


def test_smoothing_is_off_until_chosen_and_leaves_the_measured_values(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    page.hover(FIRST, 30, 0)
    raw, told = page.lines(), page.tip()
    page.choose("#smoothing", "5")
    page.hover(FIRST, 30, 1)
    assert page.lines() != raw
    assert page.tip() == told


def test_losses_have_a_logarithmic_axis_and_accuracies_do_not(page: Page, dashboard: Path) -> None:
    page.open(dashboard, "metrics=global/loss,global/acc")
    assert len(page.find("figcaption .log")) == 1
    before = page.texts("figure:nth-child(2) svg text")
    page.click("figcaption .log")
    assert page.one("figcaption .log").get_attribute("aria-pressed") == "true"
    after = page.texts("figure:nth-child(2) svg text")
    assert after != before
    ticks = after[: after.index("global loss")]
    assert len(ticks) == len(set(ticks)) > 2, "no two ticks have the same label"


def test_worst_and_best_users_and_coefficients_have_charts_beside_those_of_min_and_max_user(
    page: Page, dashboard: Path, trained: Path
) -> None:
    page.open(dashboard, "mode=runs&window=1")
    page.click("#tab-extremes")
    assert page.texts(".rest figcaption h2") == [
        "gap between min user and max user",
        "worst and best user's accuracy",
        "min-user and max-user coefficient",
        "min-user and max-user share of samples",
    ]
    assert len(page.find(".rest figure:nth-child(2) path.line")) == 8, "two lines of each run"
    page.hover(".rest figure:nth-child(2) svg.chart", 30, 0)
    heading, rows = page.tip()
    measured = row_of(trained / "fedbc-1", int(heading.split()[1]))
    assert numbers(rows["worst user: FedBC, seed 1"]) == pytest.approx([100 * measured["users/acc_min"]], abs=0.0051)
    assert numbers(rows["best user: FedBC, seed 1"]) == pytest.approx([100 * measured["users/acc_max"]], abs=0.0051)


def test_final_values_are_sorted_by_a_heading(page: Page, dashboard: Path, trained: Path) -> None:
    page.open(dashboard, "tab=finals&mode=runs&metrics=global/loss")
    folders = [trained / f"{name}-{seed}" for name in ("fedavg", "fedbc") for seed in (0, 1)]
    losses = [row_of(folder, 12)["global/loss"] for folder in folders]
    assert [float(text) for text in page.column(3)] == pytest.approx(losses, rel=5e-4)
    page.click("[data-sort='global/loss']")
    assert [float(text) for text in page.column(3)] == pytest.approx(sorted(losses), rel=5e-4)
    assert page.texts("td.best") == page.column(3)[:1], "a loss is best where it is lowest"
    page.click("[data-sort='global/loss']")
    assert [float(text) for text in page.column(3)] == pytest.approx(sorted(losses, reverse=True), rel=5e-4)
