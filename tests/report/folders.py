"""Run folders with numbers that a test chose, written by the code that writes real ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlit.files import write_json
from fedlit.results.folder import RunFolder
from fedlit.results.runs import Group, Run, group_runs, read_run

Numbers = Mapping[str, Sequence[float | None]]


def write_run(
    path: Path,
    metrics: Numbers,
    *,
    algorithm: str = "FedAvg",
    seed: int = 0,
    data: str = "Synthetic",
    data_seed: int = 0,
    model: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
    clients: Mapping[str, Sequence[Any]] | None = None,
    summary: Mapping[str, Any] | None = None,
    partition: str = "same",
) -> Path:
    """A finished run whose metrics have these values in rounds 1, 2, …; None was not measured."""
    files = RunFolder(path)
    own_data = {**(data_options or {}), "seed": data_seed}
    config = {
        "seed_everything": seed,
        "trainer": {"clients_per_round": 2, **(trainer or {})},
        "model": {"class_path": f"fedlit.{algorithm}", "init_args": dict(model or {})},
        "data": {"class_path": f"fedlit.{data}", "init_args": own_data},
    }
    files.create(config)
    files.start_metrics(list(metrics), [])
    rounds = max(map(len, metrics.values()))
    for number in range(rounds):
        row = {name: values[number] for name, values in metrics.items()}
        files.append_metrics(number + 1, {name: value for name, value in row.items() if value is not None})
    if clients is not None:
        files.append_clients(rounds, clients)
        files.finish_clients()
    files.close()
    write_json(files.summary, {"finished": True, "rounds": rounds, **(summary or {})})
    write_json(files.partition, {"hash": partition})
    return path


def seeds(folder: Path, name: str, values: Sequence[float], **options: Any) -> list[Run]:
    """One run for each value of a metric, with the seeds 0, 1, …, each one round long."""
    label = options.get("algorithm", "FedAvg").lower()
    paths = [
        write_run(folder / f"{label}-{seed}", {name: [value]}, seed=seed, **options)
        for seed, value in enumerate(values)
    ]
    return [read_run(path) for path in paths]


def one_group(runs: Sequence[Run]) -> Group:
    """The only group of these runs."""
    (group,) = group_runs(runs)
    return group
