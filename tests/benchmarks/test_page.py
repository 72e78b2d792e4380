"""The page of measured tables: is it what the command makes, and do its figures come from the files?"""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.growth import BASE, FAMILIES, GROWTH, Point
from benchmarks.page import MARKED, TABLES, Measured, main, written
from benchmarks.workloads import WORKLOADS
from fedlit.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "measured.md"
FILES = sorted((DOCS / "measured").glob("*.json"))


def entry(name: str, rate: float = 100.0, **given: Any) -> dict[str, Any]:
    common = {"threads": 1, "steps_per_s": rate, "spread": [rate - 1, rate + 1], "ratio": rate / 100, "round_s": 0.5}
    return {"name": name, **common, "estimated_steps_per_s": None, "void": False, **given}


def run(workloads: dict[str, list[dict[str, Any]]], **given: Any) -> dict[str, Any]:
    machine = {"cpu": "a processor", "cores": 2, "memory_mb": 2048}
    versions = {"fedlit": "0.2.0", "torch": "2.13.0", "python": "3.11"}
    return {"machine": machine, "versions": versions, "repeats": 3, "workloads": workloads, **given}


def written_to(file: Path, content: dict[str, Any]) -> Path:
    file.write_text(json.dumps(content))
    return file


def made(table: str, folder: Path, content: dict[str, Any]) -> str:
    """What stands between the markers of a table."""
    measured = Measured.read([written_to(folder / "a.json", content)])
    return written(f"before\n<!-- measured: {table} -->\nold\n<!-- end -->\nafter\n", measured)


def test_page_is_what_the_command_makes_from_the_committed_files() -> None:
    assert FILES
    page = PAGE.read_text()
    assert written(page, Measured.read(FILES)) == page


def test_page_has_every_table_once() -> None:
    assert sorted(found[1] for found in MARKED.findall(PAGE.read_text())) == sorted(TABLES)


def test_committed_files_hold_known_workloads_and_all_points_of_growth() -> None:
    measured = set(Measured.read(FILES).workloads)
    assert measured >= set(GROWTH)
    assert measured <= {*WORKLOADS, *GROWTH}


def test_table_without_figures_says_so(tmp_path: Path) -> None:
    assert "\nNot measured yet.\n" in made("peers", tmp_path, run({}))


def test_what_stands_around_a_table_is_kept(tmp_path: Path) -> None:
    page = made("machines", tmp_path, run({}))
    assert page.startswith("before\n<!-- measured: machines -->\n\n- a.json: a processor, 2 cores, 2 GB, ")
    assert page.endswith("median of 3 repetitions\n\n<!-- end -->\nafter\n")


def test_engines_are_ratios_to_the_handwritten_loop(tmp_path: Path) -> None:
    entries = [
        entry("handwritten"),
        entry("sequential", 70),
        entry("vectorized", 330),
        entry("vectorized", 1234, threads=2),
    ]
    page = made("engines", tmp_path, run({"W1": [*entries, entry("fit", 5000)]}))
    assert "| 100 (99 to 101) | 0.70 | 3.30 | 12.3 |\n" in page


def test_many_servers_stand_beside_one(tmp_path: Path) -> None:
    others = [entry("handwritten"), entry("sequential"), entry("vectorized")]
    page = made("clouds", tmp_path, run({"W1": others, "W6": [entry("flat"), entry("cloud", 84)]}))
    assert "| 100 (99 to 101) | 84 (83 to 85) | 0.84 |\n" in page
    assert "| W1: " not in page


def test_figure_without_an_undisturbed_repetition_is_marked(tmp_path: Path) -> None:
    entries = [entry("handwritten"), entry("sequential", 70, void=True), entry("vectorized", 330)]
    page = made("engines", tmp_path, run({"W1": entries}))
    assert "| 0.70* | 3.30 |" in page
    assert "not to be trusted" in page


def test_peers_stand_beside_fedlit_with_what_their_rounds_came_to(tmp_path: Path) -> None:
    entries = [
        entry("handwritten"),
        entry("sequential", 70),
        entry("vectorized", 330),
        entry("fedbc"),
        entry("pfl", 150),
    ]
    seen = {who: {"steps": 1240, "fall": 0.04758, "version": ""} for who in ("handwritten", "vectorized")}
    seen["pfl"] = {"steps": 1240, "fall": 0.0481234, "version": "pfl-research 0.6.0"}
    content = run({"W1": entries}, same_work={"W1": seen})
    assert "| fedlit vectorized | pfl |" in made("peers", tmp_path, content)
    assert "| 0.70 | 3.30 | 1.50 |\n" in made("peers", tmp_path, content)
    assert "| W1 | 1,240 | 0.04758 | 0.04758 | 0.04812 |\n\n- pfl-research 0.6.0\n" in made(
        "same_work", tmp_path, content
    )


def test_estimates_beyond_a_factor_of_two_are_counted(tmp_path: Path) -> None:
    near, far = (entry("sequential", estimated_steps_per_s=value) for value in (180.0, 49.0))
    page = made("auto", tmp_path, run({"W1": [near], BASE.name: [far], "W6": [entry("flat"), entry("cloud")]}))
    assert "| 180 | 1.80 |\n" in page
    assert "| 49 | 0.49 |\n" in page
    assert "\n1 of 2 estimates are within a factor of 2.\n" in page


def test_growth_gives_a_round_and_a_step_of_each_entry(tmp_path: Path) -> None:
    entries = [entry("handwritten", 1e4, round_s=0.01), entry("sequential", 5e3), entry("vectorized", 2e5, ratio=20)]
    page = made("growth", tmp_path, run({Point(cohort=1000).name: entries}))
    assert "| 1,000 | 10.0 | 500.0 | 500.0 | 100.0 | 200.0 | 5.0 | 20.0 |\n" in page
    assert "parameters of the net" not in page


def test_points_differ_from_the_base_in_one_thing() -> None:
    for family in FAMILIES:
        assert BASE in family.points
        for point in family.points:
            assert sum(a != b for a, b in zip(vars(point).values(), vars(BASE).values(), strict=True)) <= 1
    assert len(GROWTH) == sum(len(family.points) for family in FAMILIES) - len(FAMILIES) + 1


@pytest.mark.parametrize("point", [BASE, Point(hidden=80), Point(epochs=15)], ids=["base", "net", "steps"])
def test_parameters_and_steps_of_a_point_are_those_of_its_workload(point: Point) -> None:
    work = point.workload()
    assert sum(value.numel() for value in work.net().parameters()) == point.parameters
    assert work.local_epochs * -(-work.sizes[0] // work.batch_size) == point.steps


def test_workload_in_two_files_is_refused(tmp_path: Path) -> None:
    files = [written_to(tmp_path / name, run({"W1": []})) for name in ("a.json", "b.json")]
    with pytest.raises(ConfigError, match=r"b.json measures W1 again. Give one file"):
        Measured.read(files)


@pytest.mark.parametrize(
    ("page", "content", "message"),
    [
        ("<!-- measured: engine -->\n<!-- end -->", json.dumps(run({})), "a marker for engine, which is not a table"),
        ("", "{", "a.json cannot be read"),
        (
            "",
            "{}",
            "a.json has no machine, repeats, versions, workloads. Give files of python -m benchmarks --json",
        ),
    ],
    ids=["marker", "not JSON", "other JSON"],
)
def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, content: str, message: str
) -> None:
    (tmp_path / "page.md").write_text(page)
    (tmp_path / "a.json").write_text(content)
    monkeypatch.setattr("sys.argv", ["page", str(tmp_path / "page.md"), str(tmp_path / "a.json")])
    with pytest.raises(SystemExit, match=message):
        main()
    assert (tmp_path / "page.md").read_text() == page
