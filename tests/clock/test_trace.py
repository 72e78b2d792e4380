"""Laws of a recorded trace: what stands in the file is replayed, and what does not is a clear error."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from fedlit.clock import Clock, Constant, Latency, Trace
from fedlit.errors import ConfigError
from fedlit.keys import Purpose

ROWS = ["2,0,4.5", "1,1,0.75", "1,0,3.25", "", "2,1,0"]


def write(folder: Path, rows: list[str], header: str = "round,client,seconds") -> Trace:
    file = folder / "trace.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    return Trace(str(file))


def test_numbers_of_a_round_and_client_are_replayed_whatever_the_seed(tmp_path: Path) -> None:
    trace = write(tmp_path, ROWS)
    for seed in (0, 1):
        assert trace.draw(seed, Purpose.ARRIVAL, 0, [1, 0]).tolist() == [0.75, 3.25]
        assert trace.draw(seed, Purpose.ARRIVAL, 1, [0, 1]).tolist() == [4.5, 0.0]


def test_recorded_latencies_give_the_same_clock_again(tmp_path: Path) -> None:
    clients, rounds = np.arange(20), range(3)
    times = [Latency().durations(5, round, clients, 4) for round in rounds]
    rows = [f"{r + 1},{i},{times[r][i].item()!r}" for r in rounds for i in clients]
    replayed = Clock(Latency(arrival=write(tmp_path, rows), compute=Constant(0.0)))
    for round in rounds:
        np.testing.assert_array_equal(replayed.report_times(0, round, clients, 4).seconds, times[round])


def test_mean_and_quantile_are_those_of_all_recorded_numbers(tmp_path: Path) -> None:
    trace = write(tmp_path, ROWS)
    assert trace.expected() == pytest.approx((4.5 + 0.75 + 3.25 + 0) / 4)
    assert trace.quantile([0.0, 0.25, 0.26, 0.99]).tolist() == [0.0, 0.0, 0.75, 4.5]


def test_file_is_read_when_the_first_number_is_asked_for_and_not_before(tmp_path: Path) -> None:
    trace = Trace(str(tmp_path / "later.csv"))
    Clock(Latency(arrival=trace))
    with pytest.raises(ConfigError, match=r"later.csv cannot be read \(.*No such file"):
        trace.lookup(0, [0])


def test_trace_that_was_read_can_be_sent_to_another_process(tmp_path: Path) -> None:
    trace = write(tmp_path, ROWS)
    trace.lookup(0, [0])
    assert pickle.loads(pickle.dumps(trace)).lookup(1, [0]).tolist() == [4.5]


def test_client_that_is_not_recorded_is_named_with_the_file_and_the_numbers_needed(tmp_path: Path) -> None:
    message = r"trace.csv is too short: round 2 needs 4 numbers, and 2 of them are not there, first that of client 5"
    with pytest.raises(ConfigError, match=message):
        write(tmp_path, ROWS).lookup(1, [0, 5, 1, 9])
    with pytest.raises(ConfigError, match="round 3 needs 1 numbers"):
        write(tmp_path, ROWS).lookup(2, [0])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,2,-0.5", "'1,2,-0.5' in line 7. Seconds are finite and 0 or more"),
        ("1,2,nan", "'1,2,nan' in line 7. Seconds are finite"),
        ("1,2,inf", "'1,2,inf' in line 7. Seconds are finite"),
        ("0,2,1", "'0,2,1' in line 7. Rounds are whole numbers from 1 on"),
        ("1.5,2,1", "'1.5,2,1' in line 7. Rounds are whole"),
        ("1,-2,1", "'1,-2,1' in line 7. Clients are whole numbers from 0 on"),
        ("1,4294967296,1", "in line 7. Clients are whole"),
        ("nan,2,1", "in line 7. Rounds are whole"),
        ("1,0,9", "'1,0,9' in line 7. This round and client stand above already"),
        ("1,2", "'1,2' in line 7. Give three numbers there"),
        ("1,2,three", "'1,2,three' in line 7. Give three numbers there"),
    ],
)
def test_bad_row_is_named_with_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        write(tmp_path, [*ROWS, row]).expected()
    assert "trace.csv has " in str(caught.value)
    assert message in str(caught.value)


def test_file_without_header_or_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"begins with '1,0,2'. Its first line must be 'round,client,seconds'"):
        write(tmp_path, ROWS, header="1,0,2").expected()
    with pytest.raises(ConfigError, match="has no row below its header"):
        write(tmp_path, []).expected()
    (tmp_path / "trace.csv").write_text("")
    with pytest.raises(ConfigError, match="begins with ''"):
        Trace(str(tmp_path / "trace.csv")).expected()
    with pytest.raises(ConfigError, match=r"Trace.file is empty"):
        Trace("")


def test_sum_of_draws_is_refused_for_a_trace_of_processing() -> None:
    with pytest.raises(ConfigError, match=r"Latency.processing is 'sum', but Latency.compute is a Trace"):
        Latency(compute=Trace("any.csv"), processing="sum")


def test_trace_of_speeds_needs_its_first_round_only(tmp_path: Path) -> None:
    latency = Latency(Constant(0.0), Constant(6.0), speed=write(tmp_path, ["1,0,2", "1,1,3", "1,2,0"]))
    assert latency.durations(0, 40, [1, 0], 1).tolist() == [2.0, 3.0]
    with pytest.raises(ConfigError, match=r"Latency.speed gives client 2 the speed 0"):
        latency.durations(0, 40, [1, 0, 2], 1)
