"""`fedlit flower`: what is refused before anything starts, and one real federation on this machine."""

import csv
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from fedlit.cli import flower_node, flower_run
from fedlit.cli.data_export import export
from fedlit.cli.flower import flower
from fedlit.errors import ConfigError
from fedlit.flower import programs

NEEDS_FLOWER = pytest.mark.skipif(
    find_spec("flwr") is None, reason=f'Flower is not installed: pip install "flwr~={programs.FLOWER}.0"'
)
SMALL = ["--config", "synthetic_fedbc", "--wandb", "disabled"]


def test_flower_that_is_missing_or_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"Flower is not installed. Install it: pip install \"fedlit\[flower\]\""):
        flower(["try", "--nodes", "2", *SMALL])
    (tmp_path / "flower-superlink").touch()
    monkeypatch.setattr(programs, "version", lambda name: "1.22.0")
    with pytest.raises(ConfigError, match="Flower 1.22.0 is installed, but this fedlit needs 1.41"):
        flower(["try", "--nodes", "2", *SMALL])


def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="There is no command 'flower tri'. Did you mean 'try'"):
        flower(["tri"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--nodes", "0"], "--nodes is 0"),
        (["--nodes", "3", "--deadline", "2"], "--deadline is 2 s, but Flower alone may take 5 s"),
        (["--nodes", "3", "--listen", "9092"], "--listen is 9092; give an address and a port"),
        (["--nodes", "3"], "--keys is missing: nodes and server must know each other"),
        (["--nodes", "3", "--keys", "nothing"], "has no ca.crt, server.crt, server.key"),
        (["--nodes", "3", "--insecure"], "trainer.clients_per_round is 10, but --nodes is 3"),
        (
            ["--nodes", "30", "--insecure", "--pace", "real"],
            "--pace real lets real arrivals decide .* no trainer.cloud",
        ),
        (
            ["--nodes", "30", "--insecure", "--trainer.clock.dropout", "0.1", "--trainer.cloud.servers", "3"],
            "trainer.clock has a deadline or dropout, which are simulated.*or give --pace clock",
        ),
    ],
)
def test_options_of_run_are_refused_with_what_to_do(
    options: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=why):
        flower_run.main([*options, *SMALL])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--name", "../a", "--insecure"], "it names a folder"),
        (["--name", "a"], "--ca is missing"),
        (["--name", "a", "--ca", "none.crt", "--key", "k"], "--ca is none.crt, but there is no such file"),
    ],
)
def test_options_of_a_node_are_refused_with_what_to_do(options: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        flower_node.main(["--data", "own.npz", "--server", "here:1", *options])


def test_export_writes_a_file_for_each_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export([*SMALL, "--data.num_clients", "12", "--out", str(tmp_path / "out")]) == 0
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == [f"client-{client:02d}.npz" for client in range(12)]
    assert "12 files" in capsys.readouterr().out


@NEEDS_FLOWER
def test_private_keys_are_readable_by_their_user_alone_and_never_replaced(tmp_path: Path) -> None:
    from fedlit.cli import flower_keys  # it needs what Flower brings

    words = ["--out", str(tmp_path / "keys"), "--host", "10.0.0.7", "--nodes", "clinic-a"]
    assert flower_keys.main(words) == 0
    for name in ("ca.key", "server.key", "nodes/clinic-a"):
        assert (tmp_path / "keys" / name).stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="holds keys already"):
        flower_keys.main(words)


# ---- a real federation -----------------------------------------------------------------------------------------------

RUN = [
    *("--config", "synthetic_fedbc", "--wandb", "disabled", "--data.num_clients", "2", "--trainer.rounds", "2"),
    *("--trainer.clients_per_round", "2", "--trainer.eval_every", "2", "--model.start_from", "local"),
]


def start(*words: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from fedlit_start import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=500)


def metrics(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in csv.DictReader(file)]


def model(folder: Path) -> dict[str, torch.Tensor]:
    loops = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["loops"]
    found: dict[str, torch.Tensor] = loops["fit_loop"]["federation"]["servers"][0]["model"]
    return found


@NEEDS_FLOWER
@pytest.mark.timeout(600)
@pytest.mark.parametrize("security", [["--insecure"], pytest.param([], marks=pytest.mark.slow)])
def test_a_real_federation_has_the_bits_of_the_simulation(security: list[str], tmp_path: Path) -> None:
    """A SuperLink, two SuperNodes and two workers; two rounds with both clients. The slow one has TLS and keys."""
    assert version("flwr").startswith(f"{programs.FLOWER}.")
    real = start("flower", "try", "--nodes", "2", *security, *RUN, "--run", str(tmp_path / "real"))
    assert real.returncode == 0, real.stdout + real.stderr
    simulated = start("fit", *RUN, "--trainer.engine", "sequential", "--run", str(tmp_path / "simulated"))
    assert simulated.returncode == 0, simulated.stderr
    assert metrics(tmp_path / "real") == metrics(tmp_path / "simulated")
    ours, theirs = model(tmp_path / "real"), model(tmp_path / "simulated")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
