"""Parts of client records: a resumed run keeps its own, says what it lost, and merges nothing of others."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from fedlit.results.client_parts import ClientParts
from fedlit.results.records import read_clients
from tests.conftest import TINY, Call, files

PART = Path("run/clients/00000002-00000002.parquet")
OTHER = Path("other/clients") / PART.name


def flip_a_byte() -> None:
    content = bytearray(PART.read_bytes())
    content[60] ^= 0xFF
    PART.write_bytes(content)


def put_a_folder_there() -> None:
    PART.unlink()
    PART.mkdir()


def forget_the_parts(name: str) -> None:
    """A checkpoint as it was before fedlit knew its parts."""
    path = Path("run/checkpoints", name)
    content = torch.load(path, weights_only=True)
    del content["client_parts"]
    torch.save(content, path)


def rows_by_round(folder: str = "run") -> dict[int, int]:
    rounds = read_clients(Path(folder))["round"].to_pylist()
    return {round: rounds.count(round) for round in sorted(set(rounds))}


@pytest.fixture
def begun(call: Call) -> Call:
    """Three rounds, a part each, and those of a run with another seed."""
    assert call(f"fit {TINY} --run run").code == 0
    assert call(f"fit {TINY} --run other --seed_everything 1").code == 0
    return call


@pytest.mark.parametrize(
    "damage",
    [
        lambda: PART.write_bytes(PART.read_bytes()[:100]),
        lambda: PART.write_bytes(b""),
        flip_a_byte,
        put_a_folder_there,
        lambda: shutil.copy(OTHER, PART),
    ],
    ids=["truncated", "emptied", "flipped", "folder", "of another run"],
)
def test_a_part_that_is_not_what_the_run_wrote_costs_its_rounds_and_a_line(
    begun: Call, caplog: pytest.LogCaptureFixture, damage: Callable[[], object]
) -> None:
    damage()
    answer = begun(f"fit {TINY} --trainer.rounds 5 --resume")
    assert answer.code == 0
    assert rows_by_round() == {0: 4, 1: 4, 3: 4, 4: 4, 5: 4}
    assert f"{PART.name} is damaged or of another run, and was set aside as NAME.aside" in caplog.text
    assert PART.with_name(f"{PART.name}.aside").exists()
    assert not PART.exists()


def test_a_part_that_is_gone_costs_its_rounds_and_a_line(begun: Call, caplog: pytest.LogCaptureFixture) -> None:
    PART.unlink()
    assert begun(f"fit {TINY} --trainer.rounds 5 --resume").code == 0
    assert rows_by_round() == {0: 4, 1: 4, 3: 4, 4: 4, 5: 4}
    assert f"{PART.name} is gone. clients.parquet lacks what was in there" in caplog.text


@pytest.mark.parametrize(
    "name", ["00000001-00000002.parquet", "00000004-00000004.parquet", "00000009-00000009.parquet"]
)
def test_a_part_of_another_run_under_any_name_is_set_aside(
    begun: Call, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    shutil.copy(OTHER, PART.with_name(name))
    assert begun(f"fit {TINY} --trainer.rounds 5 --resume").code == 0
    assert rows_by_round() == dict.fromkeys(range(6), 4)
    assert f"{name} is damaged or of another run" in caplog.text
    assert PART.with_name(f"{name}.aside").read_bytes() == OTHER.read_bytes()


def test_parts_are_looked_at_before_anything_is_trained(begun: Call) -> None:
    PART.unlink()
    begun(f"fit {TINY} --trainer.rounds 5 --resume")
    lines = Path("run/log.txt").read_text().splitlines()
    last_start = max(number for number, line in enumerate(lines) if "engine: " in line)
    assert [number for number, line in enumerate(lines) if "is gone" in line] < [last_start]


def test_a_part_damaged_while_the_run_goes_on_costs_no_more_than_its_rounds(
    begun: Call, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = ClientParts.tables

    def damaged(self: ClientParts) -> object:
        PART.write_bytes(b"no")
        return tables(self)

    monkeypatch.setattr(ClientParts, "tables", damaged)
    assert begun(f"fit {TINY} --trainer.rounds 4 --resume").code == 0
    assert rows_by_round() == {0: 4, 1: 4, 3: 4, 4: 4}
    assert "was set aside" in caplog.text


def test_a_run_from_before_parts_were_known_is_resumed_with_all_of_them(
    begun: Call, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("last.ckpt", "previous.ckpt"):
        forget_the_parts(name)
    assert begun(f"fit {TINY} --trainer.rounds 5 --resume").code == 0
    assert rows_by_round() == dict.fromkeys(range(6), 4)
    assert "was set aside" not in caplog.text
    known = torch.load("run/checkpoints/last.ckpt", weights_only=True)["client_parts"]["checksums"]
    assert PART.name in known


def test_a_damaged_part_of_a_run_from_before_parts_were_known_costs_its_rounds(
    begun: Call, caplog: pytest.LogCaptureFixture
) -> None:
    forget_the_parts("last.ckpt")
    PART.write_bytes(PART.read_bytes()[:100])
    assert begun(f"fit {TINY} --trainer.rounds 5 --resume").code == 0
    assert rows_by_round() == {0: 4, 1: 4, 3: 4, 4: 4, 5: 4}
    assert "was set aside" in caplog.text


def test_a_part_that_the_newest_checkpoint_does_not_know_yet_is_made_again_without_a_word(
    begun: Call, caplog: pytest.LogCaptureFixture
) -> None:
    Path("run/checkpoints/last.ckpt").write_bytes(b"no")  # previous.ckpt knows the parts up to round 2
    assert begun(f"fit {TINY} --trainer.rounds 5 --resume").code == 0
    assert rows_by_round() == dict.fromkeys(range(6), 4)
    assert [name for name in files(Path("run/clients")) if "aside" in name] == []


def test_clients_parquet_does_not_name_the_run(begun: Call) -> None:
    assert pq.read_schema("run/clients.parquet").metadata is None
    assert pq.read_schema(PART).metadata.keys() == {b"fedlit.results.folder"}


def test_parts_are_read_and_joined_without_a_thread(begun: Call) -> None:
    code = (
        "import os, pathlib, pyarrow.compute, pyarrow.parquet\n"
        "from fedlit.results.client_parts import joined, parts_in, read_part\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "joined([read_part(part.path) for part in parts_in(pathlib.Path('run/clients'))])\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "0\n"
