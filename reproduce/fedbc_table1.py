"""FedBC's Table 1 made again: global accuracy on Synthetic(0.5, 0.5), 30 clients, 10 a round, E = 1 and 5.

Its five algorithms are tuned over the paper's grids on validation accuracy (one run of a seed that is not reported),
then run with five seeds; the other algorithms run at their papers' values, as the shipped configs have them. Results
are kept in a JSON file as they come, so that it can be stopped and started again.

    python reproduce/fedbc_table1.py --results table1.json

docs/fedbc_table1.md holds what it printed, and what we make of it.
"""

import argparse
import csv
import json
import logging
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from rich.progress import track

import fedlit
from fedlit import FederatedTrainer, Softmax, Synthetic
from fedlit.commandline.configs import find_config
from fedlit.errors import DivergedError
from fedlit.run import RunFolder

ROUNDS, LAST = 200, 10
"""The paper names no number of rounds; its figures end at 200. A figure is the mean over the last ten."""
SEEDS, TUNING_SEED = range(5), 5
EPOCHS = (1, 5)
LR = [0.001, 0.01, 0.1, 0.5, 1.0]
GRIDS: dict[str, dict[str, list[float]]] = {
    "FedAvg": {"lr": LR},
    "QFedAvg": {"lr": LR, "q": [0.001, 0.01, 0.1, 1, 2, 5]},
    "FedProx": {"lr": LR, "mu": [1e-4, 1e-3, 1e-2, 0.1, 1]},
    "Scaffold": {"lr": LR},
    "FedBC": {"lr": LR, "dual_lr": [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]},
}
PAPER = {"FedAvg": "FedAvg", "QFedAvg": "q-FedAvg", "FedProx": "FedProx", "Scaffold": "Scaffold", "FedBC": "FedBC"}
OTHERS = ("FedDyn", "Ditto", "PerFedAvg", "PerFedBC", "PFedMe", "FedBCD", "FedBCDI", "FedFor", "Centralized")
ADDED = "Uniform"
"""FedAvg with equal weights, at FedAvg's tuned rate: tells how much of a gain is the weighting alone."""


def options_of(algorithm: str, epochs: int) -> dict[str, Any]:
    """What the shipped config says, with this table's local epochs; FedBCD counts steps instead."""
    config = yaml.safe_load(Path(find_config(f"synthetic_{algorithm.lower()}.yaml")).read_text())
    options = {name: value for name, value in config["model"]["init_args"].items() if name != "net"}
    if "local_steps" in options:
        del options["local_steps"]
    return options if "most_steps" in options else options | {"local_epochs": epochs}


def run(job: dict[str, Any]) -> dict[str, float | None]:
    """Mean validation and global accuracy of the last rounds; None where the run diverged."""
    added = job["algorithm"] == ADDED
    algorithm = "FedAvg" if added else job["algorithm"]
    trainer = FederatedTrainer(
        rounds=ROUNDS,
        clients_per_round=1 if algorithm == "Centralized" else 10,
        weights="uniform" if added else None,
        store_local_models=False,
        seed=job["seed"],
        enable_progress_bar=False,
    )
    client = getattr(fedlit, algorithm)(Softmax(60, 10), **options_of(algorithm, job["epochs"]) | job["options"])
    data = Synthetic(alpha=0.5, beta=0.5, num_clients=30, test_fraction=0.2, val_fraction=0.1, seed=job["data_seed"])
    try:
        trainer.fit(client, datamodule=data)
    except DivergedError:
        return {"val": None, "test": None}
    rows = trainer.loop.history.rows[-LAST:]
    return {
        key: statistics.fmean(row[f"{name}/acc"] for row in rows) for key, name in (("val", "val"), ("test", "global"))
    }


def tuning_jobs() -> Iterator[dict[str, Any]]:
    """Every point of every grid, once."""
    for algorithm, grid in GRIDS.items():
        for epochs, values in product(EPOCHS, product(*grid.values())):
            options = dict(zip(grid, values, strict=True))
            yield job(algorithm, epochs, options, TUNING_SEED)


def table_jobs(tuned: dict[tuple[str, int], dict[str, float]]) -> Iterator[dict[str, Any]]:
    """Five seeds on one data set, as the papers do, and five seeds with a data set each."""
    for algorithm, epochs, seed in product((*GRIDS, ADDED, *OTHERS), EPOCHS, SEEDS):
        options = tuned.get(("FedAvg" if algorithm == ADDED else algorithm, epochs), {})
        yield job(algorithm, epochs, options, seed)
        if algorithm in GRIDS or algorithm == ADDED:
            yield job(algorithm, epochs, options, seed, data_seed=seed)


def job(algorithm: str, epochs: int, options: dict[str, float], seed: int, data_seed: int = 0) -> dict[str, Any]:
    """One run."""
    return {"algorithm": algorithm, "epochs": epochs, "options": options, "seed": seed, "data_seed": data_seed}


def key(one: dict[str, Any]) -> str:
    """Under which its result is kept."""
    return json.dumps(one, sort_keys=True)


def work_off(jobs: list[dict[str, Any]], results: dict[str, Any], file: Path, title: str) -> None:
    """Run what has no result yet."""
    for one in track([one for one in jobs if key(one) not in results], title):
        results[key(one)] = run(one)
        RunFolder(file.parent).write_json(file, results)


def best_options(results: dict[str, Any]) -> dict[tuple[str, int], dict[str, float]]:
    """The point with the highest validation accuracy of each algorithm and E; the first of equals."""
    best: dict[tuple[str, int], tuple[float, dict[str, float]]] = {}
    for one in tuning_jobs():
        value = results[key(one)]["val"]
        at = (one["algorithm"], one["epochs"])
        if value is not None and (at not in best or value > best[at][0]):
            best[at] = (value, one["options"])
    return {at: options for at, (_, options) in best.items()}


def figure(results: dict[str, Any], jobs: list[dict[str, Any]]) -> str:
    """mean ± std (ddof 1) in percent."""
    values = [results[key(one)]["test"] for one in jobs]
    if None in values:
        return "diverged"
    return f"{100 * statistics.fmean(values):.2f} ± {100 * statistics.stdev(values):.2f}"


def markdown(results: dict[str, Any], tuned: dict[tuple[str, int], dict[str, float]]) -> str:
    """The table."""
    paper = read_paper()
    lines = [
        "| algorithm | E | options | paper | one data set, 5 runs | 5 data sets |",
        "|---|---|---|---|---|---|",
    ]
    jobs = list(table_jobs(tuned))
    for algorithm, epochs in product((*GRIDS, ADDED, *OTHERS), EPOCHS):
        own = [one for one in jobs if (one["algorithm"], one["epochs"]) == (algorithm, epochs)]
        fixed = {key(one): one for one in own if one["data_seed"] == 0}
        varied = {key(one): one for one in own if one["data_seed"] == one["seed"]}
        options = ", ".join(f"{name} {value:g}" for name, value in own[0]["options"].items()) or "as in the config"
        cells = [
            "FedAvg, uniform weights" if algorithm == ADDED else algorithm,
            str(epochs),
            options,
            paper.get((PAPER.get(algorithm, ""), epochs), "–"),
            figure(results, list(fixed.values())),
            figure(results, list(varied.values())) if len(varied) == len(SEEDS) else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def read_paper() -> dict[tuple[str, int], str]:
    """The paper's own figures, which ship with the package."""
    file = Path(fedlit.__file__).parent / "report" / "papers" / "fedbc_table1_synthetic_global.csv"
    with file.open() as text:
        return {(row["algorithm"], int(row["E"])): f"{row['mean']} ± {row['std']}" for row in csv.DictReader(text)}


def main() -> None:
    """Tune, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="JSON file that keeps every run's result")
    args = parser.parse_args()
    logging.getLogger("fedlit").setLevel(logging.WARNING)
    results = json.loads(args.results.read_text()) if args.results.exists() else {}
    work_off(list(tuning_jobs()), results, args.results, "tuning")
    tuned = best_options(results)
    work_off(list(table_jobs(tuned)), results, args.results, "running")
    print(markdown(results, tuned))


if __name__ == "__main__":
    main()
