"""The page as a thing in a browser: what it keeps, what it refuses to run, and how it looks where."""

from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from fedlit.report.dashboard import write_dashboard
from fedlit.results.runs import find_runs
from tests.report.dashboard.browser import Page
from tests.report.dashboard.made import make_run

EVIL = "<img src=x onerror=alert(1)>"
TABS = ("curves", "extremes", "finals", "users", "pairs")


def background(page: Page) -> str:
    return str(page.js("return getComputedStyle(document.body).backgroundColor"))


def test_a_reload_keeps_what_was_chosen(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    page.click("input[value=runs] + span")
    page.click("#algorithms [data-value=FedBC]")
    page.click("#metric-list [data-metric='train/loss'] input")
    page.choose("#smoothing", "3")
    page.drag("svg.chart", -60, 60)
    page.click("#theme")
    page.hover("h1")
    drawn, zoom = page.lines(), page.texts("#zoom-reset")
    page.reload()
    assert page.lines() == drawn
    assert page.texts("#zoom-reset") == zoom
    assert page.legend() == ["FedBC"]
    assert page.texts("figcaption h2")[0] == "training loss"
    assert page.texts("#theme") == ["Theme: light"]


def test_an_address_with_nonsense_shows_a_page(page: Page, dashboard: Path) -> None:
    page.open(dashboard, "tab=nowhere&metrics=no/such&run=none&off=x&by=y&smooth=z&unknown=1")
    assert page.texts("#view .empty") == ["No metric is chosen. Tick one or more under Metrics."]
    page.click("#tab-users")
    assert len(page.column(1)) == 4
    page.open(dashboard, "zoom=a,b&smooth=-&mode=what&theme=pink&log=global/acc&round=9999")
    assert len(page.lines()) == 2


def test_names_from_run_folders_are_shown_as_text_and_never_run(page: Page, tmp_path: Path) -> None:
    make_run(tmp_path / EVIL, note=f"</script><script>alert(2)</script>{EVIL}")
    make_run(tmp_path / "other", note="{{script}}")
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.open(tmp_path / "page.html", "mode=runs")
    page.click("#run-list .more")
    assert EVIL in page.texts("#run-list")[0]
    for tab in TABS:
        page.click(f"#tab-{tab}")
        assert page.find("img") == []
    page.click("#tab-curves")
    page.hover("svg.chart", 30, 0)
    assert any("</script>" in label for label in page.tip()[1])


def test_the_page_loads_nothing_and_refuses_foreign_scripts(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    assert page.js("return performance.getEntriesByType('resource').length") == 0
    blocked = page.js(
        "window.ran = false; const s = document.createElement('script'); s.textContent = 'window.ran = true';"
        "document.body.append(s); return !window.ran"
    )
    assert blocked
    said = page.browser.get_log("browser")  # type: ignore[no-untyped-call]  # selenium has no types here
    assert len(said) == 1
    assert "Content Security Policy" in said[0]["message"]


def test_dark_is_what_the_system_says_unless_the_reader_says_otherwise(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    light = background(page)
    page.prefer("dark")
    dark = background(page)
    assert sum(map(int, dark[4:-1].split(","))) < 150 < 600 < sum(map(int, light[4:-1].split(",")))
    page.click("#theme")
    assert background(page) == light
    page.prefer("light")
    page.click("#theme")
    assert background(page) == dark


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_sticks_out_of_the_window(page: Page, dashboard: Path, tab: str, width: int) -> None:
    page.resize(width)
    page.open(dashboard, f"tab={tab}")
    assert page.js("return document.documentElement.scrollWidth") <= width
    charts = [chart.size["width"] for chart in page.find("svg.chart")]
    assert all(300 <= chart <= width for chart in charts)


def test_a_narrow_page_shows_its_charts_first_and_its_box_beside_them(page: Page, dashboard: Path) -> None:
    page.resize(400, 1400)
    page.open(dashboard)
    assert page.texts("#run-list") == []
    page.click("#runs-panel summary")
    assert len(page.texts("#run-list > li")) == 2
    page.hover("svg.chart", 20, 0)
    box, chart = page.one("#tip").rect, page.one("svg.chart").rect
    assert box["y"] >= chart["y"] + chart["height"] or box["y"] + box["height"] <= chart["y"] + 1


def test_every_control_can_be_reached_by_keyboard(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    page.js("document.activeElement.blur()")
    reached = set()
    for _ in range(80):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        active = page.browser.switch_to.active_element
        reached.add(active.get_attribute("id") or active.tag_name)
    wanted = {"theme", "run-filter", "runs-all", "metric-filter", "tab-curves", "smoothing", "svg"}
    assert wanted <= reached


def test_arrow_keys_change_the_view(page: Page, dashboard: Path) -> None:
    page.open(dashboard)
    page.one("#tab-curves").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.settle()
    assert page.one("#tab-users").get_attribute("aria-selected") == "true"
    assert len(page.column(1)) == 4


@pytest.mark.parametrize("tab", TABS)
def test_a_page_without_runs_says_what_to_do(page: Page, tmp_path: Path, tab: str) -> None:
    write_dashboard([], tmp_path / "page.html")
    page.open(tmp_path / "page.html", f"tab={tab}")
    assert page.texts("#view .empty")[0].startswith("This page holds no runs. Write it again with")


def test_remarks_stand_on_top(page: Page, tmp_path: Path) -> None:
    for rounds, seed in ((5, 0), (8, 1)):
        make_run(tmp_path / str(seed), seed=seed, rounds=rounds)
    write_dashboard(find_runs([tmp_path]), tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    assert page.texts("#remarks li") == ["FedBC: runs of different length, 5 to 8 rounds."]
    page.js("document.querySelector('svg.chart').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.END)
    assert list(page.tip()[1]) == ["FedBC (1 of 2 runs)"]
