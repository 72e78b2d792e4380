"""One colour per algorithm: reports and dashboards ask the same place, and algorithms keep theirs on every page."""

import json
import re
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from fedlit import algorithms
from fedlit.report.colours import _HOMES, DASHES, TONES, Look, looks_of
from fedlit.report.dashboard import write_dashboard
from fedlit.report.figures.curves import Curve, curves_figure
from fedlit.report.figures.style import look, styles_of
from fedlit.results.runs import find_runs, group_runs
from tests.report.folders import write_run

SHIPPED = sorted(path.stem for path in Path(algorithms.__file__).parent.glob("[a-z]*.py"))


def test_every_shipped_algorithm_has_a_colour() -> None:
    assert sorted(name.lower() for name in _HOMES) == SHIPPED


@pytest.mark.parametrize("others", [["FedAvg"], ["FedProx", "Scaffold"], ["Mine"], ["PerFedBC", "QFedAvg"], ["FedDyn"]])
def test_fedbc_has_its_colour_beside_anyone_and_in_any_place(others: list[str]) -> None:
    for place in range(len(others) + 1):
        names = [*others[:place], "FedBC", *others[place:]]
        looks = looks_of(names)
        assert looks[place] == Look(1)
        assert len({look.tone for look in looks}) == len(names), "few groups differ by more than a dash"


def test_groups_of_one_algorithm_can_be_told_apart() -> None:
    looks = looks_of(["FedBC"] * len(TONES) * DASHES)
    assert looks[0] == Look(1)
    assert len(set(looks)) == len(looks)
    assert len(looks_of(["FedBC"] * 40)) == 40, "more than can be told apart are drawn all the same"


def test_report_and_dashboard_draw_a_group_in_the_same_colour(tmp_path: Path) -> None:
    for name in ("FedBC", "Ditto", "FedAvg", "Mine"):
        write_run(tmp_path / "runs" / name, {"global/acc": [0.1, 0.2]}, algorithm=name)
    groups = group_runs(find_runs([tmp_path / "runs"]))
    labels = [group.label for group in groups]
    with look():
        panels = {"global/acc": [Curve(label, [0, 1], [0.1, 0.2], None) for label in labels]}  # type: ignore[arg-type]
        drawn = [to_hex(str(line.get_color())) for line in curves_figure(panels, styles_of(labels)).axes[0].lines]
    write_dashboard(find_runs([tmp_path / "runs"]), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    rules = dict(re.findall(r"\.tone-(\d) \{ color: light-dark\((#\w+), #\w+\); \}", page))
    found = re.search(r'id="index">(.*?)</script>', page)
    assert found is not None
    assert [rules[str(group["look"]["tone"])] for group in json.loads(found[1])["groups"]] == drawn
    assert drawn[labels.index("FedBC")] == TONES[1].light
