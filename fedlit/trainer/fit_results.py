"""The results of a trainer after a run: a summary that prints, rounds and users as arrays, users' models."""

import io
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np
from pytorch_lightning import LightningDataModule, LightningModule
from rich.console import Console
from torch import nn

from fedlit.client.base import Client
from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError, nearest, require
from fedlit.evaluation.evaluator import Evaluator
from fedlit.metrics.formatting import counted
from fedlit.params import copy_into
from fedlit.rounds.loop import FederatedLoop
from fedlit.trainer.summary import git_commit, result_table, summarise, versions

EMPTY = "trainer.{} is empty before fit. Call trainer.fit(client, datamodule=…) first."


class Summary(dict[str, Any]):
    """The content of summary.json; printed, it is the table at the end of a run."""

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=100)
        console.print(result_table(self))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().rstrip()


def described_newcomers(client: Client, data: FederatedDataModule) -> str:
    """How many clients were held back, and what each of them gets."""
    assert data.newcomer_data is not None
    held_back = data.newcomer_data.num_clients - data.num_clients
    return f"{counted(held_back, 'client')}; each gets {client.newcomer().describe()}"


class Columns(Mapping[str, np.ndarray]):
    """Arrays of the same length by name, such as `trainer.history["global/acc"]`; NaN where nothing was measured.

    Args:
        columns: name -> values.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {name: np.asarray(values) for name, values in columns.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise KeyError(f"'{name}' was not measured. {nearest(name, self._columns)}There is {', '.join(self)}.")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        rows = len(next(iter(self._columns.values()), ()))
        return f"{rows} rows of {', '.join(self)}. Give a name for its array, or call to_pandas()."

    def to_pandas(self) -> Any:
        """A pandas DataFrame; pandas is not installed with fedlit."""
        try:
            import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError as error:
            raise ConfigError("to_pandas() needs pandas, which is not installed: pip install pandas.") from error
        return pandas.DataFrame(self._columns)


class FitResults:
    """The part of FederatedTrainer that is read after `fit`."""

    loop: FederatedLoop
    seed: int
    rounds_to: Sequence[float]
    max_epochs: int | None
    should_stop: bool
    _adopted: dict[str, Any] | None = None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM ended the run before its last round; it can be resumed."""
        return self.loop.stopped and self.loop.rounds_done < (self.max_epochs or 0)

    @property
    def summary(self) -> Summary:
        """Final and best values, the engine, versions: the content of summary.json."""
        if self._adopted is not None:
            return Summary(self._adopted)
        loop = self._fitted("summary")
        data = loop.data
        return Summary(
            {
                "rounds": loop.rounds_done,
                "finished": loop.rounds_done >= (self.max_epochs or 0) or (self.should_stop and not loop.stopped),
                **summarise(loop.history, loop.best, loop.rounds_done, self.rounds_to),
                "algorithm": type(loop.client).__name__,
                "data": type(data).__name__,
                "seed": self.seed,
                **({} if loop.choice is None else asdict(loop.choice)),
                "seconds": round(sum(row.get("time/round_s", 0.0) for row in loop.history.rows), 3),
                "personal": loop.client.personal_model().describe(),
                **({"finetuned": loop.measures.describe_finetuning()} if loop.measures.finetune else {}),
                **({} if data.newcomer_data is None else {"newcomers": described_newcomers(loop.client, data)}),
                "partition_hash": data.partition_hash,
                "versions": versions(),
                "git_commit": git_commit(),
            }
        )

    @property
    def history(self) -> Columns:
        """Every metric by round, and `round` itself: the content of metrics.csv."""
        history = self.loop.history
        if not history.rows:
            raise ConfigError(EMPTY.format("history"))
        values = {name: [row.get(name, np.nan) for row in history.rows] for name in history.columns}
        return Columns({"round": history.rounds, **values})

    @property
    def users(self) -> Columns:
        """One row for each user, from the last evaluated round: the rows of clients.parquet."""
        records = self._fitted("users").state.last_records
        if records is None:
            raise ConfigError(
                "trainer.users is empty: no round was evaluated here. The run was finished before, or it ran "
                "in other processes. fedlit.results.runs.read_run(folder).clients has them."
            )
        return Columns(records)

    @property
    def newcomers(self) -> Columns:
        """One row for each client that was held back (`data.newcomers`), from the last measurement."""
        loop = self._fitted("newcomers")
        records = loop.state.last_newcomers
        if records is None:
            raise ConfigError(
                "trainer.newcomers is empty: "
                + (
                    "data.newcomers is 0, so no client was held back. Set it to 0.2, for example."
                    if loop.data.newcomer_data is None
                    else "newcomers were not measured in this process. They are measured "
                    "after the last of all rounds, and before by trainer.newcomers_every. "
                    "fedlit.results.runs.read_run(folder).newcomers has the records of a run."
                )
            )
        return Columns(records)

    def personal_model(self, client: int) -> nn.Module:
        """A copy of the net with a client's personal model, adapted where the algorithm says so (docs/metrics.md).

        Args:
            client: its number, from 0 on.
        """
        loop = self._fitted("personal_model")
        require(
            0 <= client < loop.data.num_clients,
            f"trainer.personal_model({client}): there are {loop.data.num_clients} clients, counted from 0.",
        )
        net = deepcopy(loop.client.net)
        copy_into(net, loop.round_evaluator.personal_model(client))
        return net.eval()

    def results(self) -> dict[str, Any]:
        """The run's results for a process that only waited for the ranks, as plain data."""
        return {
            "summary": dict(self.summary),
            "history": self.loop.history.state_dict(),
            "interrupted": self.interrupted,
        }

    def adopt(self, results: dict[str, Any]) -> None:
        """Take over the results of another process."""
        self._adopted = results["summary"]
        self.loop.history.load_state_dict(results["history"])
        self.loop.state.rounds_done = results["summary"]["rounds"]
        self.loop.stop_request.asked = results["interrupted"]

    # ---- Lightning's other verbs -------------------------------------------------------------------------------------

    def test(
        self, model: LightningModule | None = None, datamodule: LightningDataModule | None = None, **others: Any
    ) -> list[Mapping[str, float]]:
        """Evaluate the client's present net on the data's test parts: global/* and users/*.

        Client and data are those of `fit` unless given.
        """
        return [self._measured("test", model, datamodule, others)]

    def validate(
        self, model: LightningModule | None = None, datamodule: LightningDataModule | None = None, **others: Any
    ) -> list[Mapping[str, float]]:
        """Evaluate the client's present net on the data's validation part: val/*."""
        measured = self._measured("validate", model, datamodule, others)
        metrics = {name: value for name, value in measured.items() if name.startswith("val/")}
        require(
            bool(metrics), "trainer.validate: the data have no validation part. Give the data a val_fraction above 0."
        )
        return [metrics]

    def predict(self, *args: Any, **others: Any) -> NoReturn:
        """Refused: call a net instead."""
        raise ConfigError(
            "FederatedTrainer does not predict: call a net. client.net(x) is the global model, and "
            "trainer.personal_model(3)(x) is that of client 3."
        )

    def _measured(
        self,
        verb: str,
        model: LightningModule | None,
        datamodule: LightningDataModule | None,
        others: dict[str, Any],
    ) -> dict[str, float]:
        require(
            not any(value is not None for value in others.values()),
            f"trainer.{verb} takes a client and a datamodule here, not {', '.join(others)}. For a finished run, "
            "`fedlit evaluate RUN` measures its models.",
        )
        client, data = model or self.loop.trainer.lightning_module, datamodule or self._given_data()
        require(
            isinstance(client, Client) and isinstance(data, FederatedDataModule),
            f"trainer.{verb} needs a fedlit Client and a FederatedDataModule: give both, or call fit first.",
        )
        assert isinstance(client, Client)
        assert isinstance(data, FederatedDataModule)
        data.prepare_data()
        data.setup("test")
        data.cast(next(client.net.parameters()).dtype)
        evaluator = Evaluator(client, data)
        with evaluator.evaluating():
            return evaluator.global_model(client.net.state_dict())[0]

    def _given_data(self) -> object:
        return getattr(self, "datamodule", None)

    def _fitted(self, asked: str) -> FederatedLoop:
        """The loop after fit."""
        if self.loop.trainer.lightning_module is None:
            raise ConfigError(EMPTY.format(asked))
        return self.loop
