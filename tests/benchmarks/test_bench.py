"""The benchmark: is the hand-written loop the same work, and are the figures what they say?"""

import argparse
import io
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from benchmarks import __main__ as bench
from benchmarks.handwritten import federated_round, sgd
from benchmarks.measure import Entry, Instant, Result, Span, Turns, measure, warmed_up
from benchmarks.workloads import WORKLOADS, Workload
from fedlit import FederatedTrainer, Softmax
from fedlit.errors import ConfigError

TINY = Workload(
    name="tiny",
    title="a few rows",
    net=lambda: Softmax(5, 3),
    sample_shape=(5,),
    sizes=(20, 31, 45, 12),
    batch_size=10,
    local_epochs=2,
    clients_per_round=3,
    num_classes=3,
    with_extras=True,
)

STRONG = {"W1": {}, "W4": {"adapt_lr": 0.5}, "W5": {"prox": 2.0, "personal_lr": 0.2}}
"""Options with which a second-order term or a pull that is left out would show."""


def span(rate: float, other: float | None = 0.0) -> Span:
    """A run of two seconds at this rate, in which something else took `other` cores."""
    began = Instant(wall=100.0, own=50.0, machine=None if other is None else 7000.0)
    ended = Instant(wall=102.0, own=53.0, machine=None if other is None else 7003.0 + 2 * other)
    return Span(steps=round(2 * rate), rounds=4, began=began, ended=ended)


def entry(name: str, run=None) -> Entry:
    return Entry(name, threads=1, lanes=1, compiled=False, first_round_s=0.5, run=run)


def result(own: list[Span], base: list[Span]) -> Result:
    return Result(entry("vectorized"), own, base, peak_rss_mb=1.0)


def bench_args(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def tiny_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tiny workload exists, and nothing can be compiled."""
    monkeypatch.setattr(bench, "WORKLOADS", {"tiny": TINY})
    monkeypatch.setattr("fedlit.engines.choose.missing_compiler", lambda: "tests do not compile here")


@pytest.mark.parametrize("name", ["W1", "W4", "W5"])
def test_handwritten_rounds_equal_the_sequential_engine_on_full_batches(name):
    like = WORKLOADS[name]
    work = replace(
        TINY,
        lr=0.3,
        batch_size=100,
        algorithm=like.algorithm,
        by_hand=like.by_hand,
        options=like.options | STRONG[name],
    )
    data = work.data(tested=True)
    client, net = work.client(), Softmax(5, 3).double()
    net.load_state_dict(client.net.state_dict())
    before = net.linear.weight.detach().clone()
    trainer = FederatedTrainer(
        rounds=2,
        clients_per_round=4,
        engine="sequential",
        precision="64-true",
        initial_weights="net",
        enable_progress_bar=False,
    )
    trainer.fit(client, datamodule=data)
    samples, train = (data.store["x"], data.store["y"]), work.local_training()
    by_size = work.algorithm.weights == "samples"
    rounds = [federated_round(net, samples, data.everyone.train, train, by_size=by_size) for _ in range(2)]
    assert rounds == [8, 8]
    assert float((net.linear.weight.detach() - before).abs().max()) > 1e-2
    for name, value in client.net.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=0, atol=1e-12)


def test_handwritten_round_visits_every_row_once_an_epoch_in_ragged_batches():
    seen: list[torch.Tensor] = []
    net = Softmax(5, 3)
    net.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.randn(23, 5)
    train = sgd(lr=0.1, batch_size=10, local_epochs=2)
    data = (x, torch.zeros(23, dtype=torch.int64))
    steps = federated_round(net, data, [torch.arange(23)], train, by_size=True)
    assert steps == 6
    assert [len(batch) for batch in seen] == [10, 10, 3] * 2
    for epoch in (seen[:3], seen[3:]):
        assert torch.equal(torch.cat(epoch).sort(0).values, x.sort(0).values)


def test_workload_that_is_tested_trains_on_the_same_sizes():
    workload = WORKLOADS["W1"]
    plain, tested = workload.data(), workload.data(tested=True)
    plain.setup()
    tested.setup()
    assert plain.sizes.tolist() == tested.sizes.tolist() == list(workload.sizes)
    assert (len(plain.global_test), len(tested.global_test)) == (0, sum(size // 9 for size in workload.sizes))


def test_other_load_is_what_the_machine_did_beyond_this_process():
    assert span(10, other=0.25).other_load == pytest.approx(0.25)
    assert span(10, other=-0.01).other_load == 0
    assert span(10, other=None).other_load is None


def test_disturbed_repetitions_are_left_out():
    calm = result([span(100), span(10, other=0.11), span(300)], [span(10), span(10), span(10)])
    assert calm.undisturbed == [0, 2]
    assert calm.as_json()["steps_per_s"] == 200
    assert calm.as_json()["spread"] == [100, 300]
    assert calm.as_json()["round_s"] == 0.5
    assert calm.as_json()["other_load"] == 0
    assert (calm.as_json()["void"], calm.as_json()["void_repeats"]) == (False, 1)


def test_repetition_with_a_disturbed_handwritten_loop_is_left_out():
    figures = result([span(100), span(100)], [span(10), span(2, other=0.5)])
    assert figures.ratio == 10


def test_entry_without_an_undisturbed_repetition_is_shown_and_marked_void():
    figures = result([span(100, other=0.6), span(300, other=0.4)], [span(10), span(10)])
    assert (figures.as_json()["void"], figures.as_json()["void_repeats"]) == (True, 2)
    assert figures.as_json()["steps_per_s"] == 200
    assert figures.as_json()["other_load"] == pytest.approx(0.6)
    assert any("busy" in line for line in bench.remarks([figures]))
    assert any("not to be trusted" in line for line in bench.remarks([figures]))


def test_without_a_way_to_see_other_load_every_repetition_counts():
    figures = result([span(100, other=None)], [span(10, other=None)])
    assert (figures.is_void, figures.as_json()["other_load"]) == (False, None)


def test_ratio_is_the_median_of_the_ratios_within_a_repetition():
    figures = result([span(100), span(60), span(50)], [span(10), span(20), span(50)])
    assert figures.ratio == 3


def test_entries_run_in_turns_and_the_order_rotates():
    order: list[str] = []

    def running(name: str) -> Entry:
        return entry(name, lambda seconds: order.append(name) or span(1))

    results = measure([running("a"), running("b"), running("c")], repeats=3, seconds=1, report=lambda _: None)
    assert order == [*"abc", *"bca", *"cab"]
    assert [len(one.spans) for one in results] == [3, 3, 3]


def test_a_cloud_is_compared_with_one_server_that_has_the_same_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedlit.engines.choose.missing_compiler", lambda: "tests do not compile here")
    work = replace(TINY, clients_per_round=4, servers=2, with_extras=False)
    data = work.data()
    data.setup()
    both = warmed_up(work, data, lambda what: None)
    flat, cloud = (one.run(0.0) for one in both)
    assert [one.name for one in both] == ["flat", "cloud"]
    assert flat.steps == cloud.steps == sum(2 * math.ceil(size / 10) for size in TINY.sizes)


@pytest.mark.usefixtures("tiny_workload")
def test_bench_prints_a_table_and_writes_the_documented_json(tmp_path, capsys):
    file = tmp_path / "bench.json"
    threads = torch.get_num_threads()
    assert bench.main(bench_args("--json", str(file), "--repeats", "2", "--seconds", "0.02")) == 0
    assert torch.get_num_threads() == threads
    written = json.loads(file.read_text())
    assert list(written) == ["machine", "versions", "repeats", "workloads"]
    assert list(written["machine"]) == ["cores", "cpu", "memory_mb", "system"]
    assert {"python", "fedlit", "torch"} < set(written["versions"])
    assert written["repeats"] == 2
    entries = written["workloads"]["tiny"]
    names = [one["name"] for one in entries]
    assert names[:3] == ["handwritten", "sequential", "vectorized"]
    assert names[-2:] == ["fedbc", "fit"]
    for one in entries:
        assert set(one) == {
            *("name", "processes", "threads", "lanes", "compiled", "steps_per_s", "spread", "ratio", "other_load"),
            *("round_s", "first_round_s", "peak_rss_mb", "in_turns", "void", "void_repeats", "estimated_steps_per_s"),
        }
        assert (one["processes"], one["compiled"]) == (1, False)
        assert 0 < one["spread"][0] <= one["steps_per_s"] <= one["spread"][1]
        assert one["ratio"] > 0
        assert one["first_round_s"] > 0
        assert one["peak_rss_mb"] > 10
    assert entries[0]["ratio"] == 1
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    assert "FedBC / FedAvg:" in printed


def test_fedbc_is_compared_with_fedavg_in_short_turns():
    """A machine that becomes ten times slower after a while slows both down."""
    order: list[str] = []

    def run_of(name: str, rate: float) -> Callable[[float], Span]:
        def run(seconds: float) -> Span:
            order.append(name)
            return span(rate if len(order) < 8 else rate / 10)

        return run

    fedavg = replace(entry("vectorized"), run=run_of("fedavg", 1e7))
    fedbc = replace(entry("fedbc"), run=run_of("fedbc", 9e6), rival=fedavg)
    results = measure([fedavg, fedbc], repeats=3, seconds=0.01, report=lambda what: None)
    assert order[1:4] == ["fedbc", "fedbc", "fedavg"]  # a span of its own, then turns
    assert results[0].turns == []
    assert [one.ratio for one in results[1].turns] == pytest.approx([0.9] * 3)
    assert results[1].turns[0].whole.rounds >= 8  # of both


def beside_fedavg(*turns: Turns) -> list[str]:
    """What is said of FedBC after such turns."""
    fedbc = replace(entry("fedbc"), rival=entry("vectorized"))
    return bench.remarks([Result(fedbc, [span(90)] * 3, [span(10)] * 3, peak_rss_mb=1.0, turns=turns)])


def test_turns_that_were_disturbed_are_left_out():
    said = beside_fedavg(Turns(0.9, span(1)), Turns(0.5, span(1, other=1.0)), Turns(0.9, span(1)))
    assert said == ["FedBC / FedAvg: 0.900 (steps/s in turns of a few rounds, vectorized, 1 thread)"]


def test_a_ratio_of_disturbed_turns_alone_is_marked():
    said = beside_fedavg(Turns(0.5, span(1, other=1.0)))
    assert said[0].startswith("FedBC / FedAvg: 0.500* (")
    assert said[-1].startswith("* no undisturbed run")


def test_table_shows_large_figures_in_full_on_80_columns():
    figures = Result(entry("handwritten"), [span(111_111, 1.5), span(222_222)], [span(1_000, 1.5)] * 2, peak_rss_mb=1.0)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(bench.table([figures]))
    words = console.export_text().splitlines()[-1].split()
    assert words == ["handwritten", "1", "1", "166,666", "111,111-222,222", "166.67*", "1.50", "0.5", "s"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workload", "W11"], "Did you mean 'W1'"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--seconds", "0"], "--seconds is 0"),
        (["--json", "/nowhere/at/all.json"], "cannot be written"),
        (["--growth", "--workload", "W1"], "Leave out --workload W1, or --growth"),
        (["--growth", "--peer", f"pfl={sys.executable}"], "Leave out --peer, or --growth"),
    ],
    ids=["workload", "repeats", "seconds", "json", "growth and workload", "growth and peer"],
)
def test_wrong_input_is_refused_before_any_work(words, message):
    with pytest.raises(ConfigError, match=message):
        bench.main(bench_args(*words))


@pytest.mark.parametrize(("estimated", "ending"), [(150.0, "150 estimated by auto"), (30.0, "off by 3.3 times, and")])
def test_what_auto_expects_stands_beside_what_was_measured(estimated: float, ending: str) -> None:
    own = replace(entry("sequential"), estimated=estimated)
    (line,) = bench.remarks([Result(own, [span(100)], [span(100)], peak_rss_mb=1.0)])
    assert line.startswith("sequential: 100 steps/s measured, ")
    assert ending in line
