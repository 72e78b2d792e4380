"""What a run says while it goes and at its end: the papers' words, and how old a measurement is."""

import re
from pathlib import Path

import pytest

from fedlit.catalogue import METRICS
from fedlit.progress import shown
from tests.conftest import TINY, Call

VALUES = {"train/loss": 0.5, "global/acc": 0.8, "min_user/acc": 0.4, "users/acc_min": 0.1}


def test_min_user_is_the_smallest_client_and_not_the_worst_user() -> None:
    assert shown(VALUES) == "loss 0.500  global 80.0%  min user 40.0%"


def test_accuracies_of_an_earlier_round_say_how_old_they_are() -> None:
    assert shown(VALUES, age=1).endswith("min user 40.0%  (measured 1 round ago)")
    assert shown(VALUES, age=3).endswith("(measured 3 rounds ago)")
    assert shown({"train/loss": 0.5}, age=3) == "loss 0.500"


def test_a_run_that_is_evaluated_now_and_then_says_so_in_its_lines(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlit.progress._SECONDS_BETWEEN_LINES", 0.0)
    out = call(f"fit {TINY.replace('--trainer.enable_progress_bar false', '--trainer.eval_every 2')}").out
    lines = re.findall(r"round (\d)/3 .*", out)
    assert lines == ["1", "2", "3"]
    aged = re.findall(r"round (\d)/3 .*\(measured 1 round ago\)", out)
    assert aged == ["1"], "round 1 shows what the initial model was worth; 2 and 3 are evaluated"


def test_the_last_table_calls_a_metric_what_the_catalogue_calls_it(call: Call, workplace: Path) -> None:
    out = call(f"fit {TINY}").out
    for name in ("global/acc", "min_user/acc", "max_user/acc", "users/acc_min", "users/acc_max"):
        assert re.search(rf"{re.escape(METRICS[name].label)} .*{name}", out), name
