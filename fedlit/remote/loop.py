"""RemoteLoop: the ordinary loop of a run whose clients are nodes. The server trains nobody and reads no sample."""

import logging
import secrets
from dataclasses import asdict, fields, replace
from typing import Any

from pytorch_lightning import Trainer

from fedlit.client.messages import Message
from fedlit.client.row_layout import name_of
from fedlit.engines.choose import Request
from fedlit.errors import ResumeError
from fedlit.evaluation.round_evaluator import EvaluationOptions
from fedlit.remote.checks import check_federation
from fedlit.remote.evaluation import NodeRoundEvaluator
from fedlit.remote.gathering import ServerGatherer, ServerParts
from fedlit.remote.nodes import Nodes
from fedlit.remote.run_plan import RunPlan
from fedlit.remote.training import NodeTraining
from fedlit.rounds.assembly import RoundParts
from fedlit.rounds.gathering import RoundOptions
from fedlit.rounds.loop import FederatedLoop

log = logging.getLogger("fedlit")

ONE_BY_ONE = Request(engine="sequential")
"""What is recorded as the engine: each node trains one client."""


class RemoteLoop(FederatedLoop):
    """Rounds whose clients are nodes.

    Args:
        trainer: as for FederatedLoop, and so are `rounds`, `options` and `measures`.
        nodes: the clients.
        model: description of the algorithm, from which nodes make it.
    """

    def __init__(
        self,
        trainer: Trainer,
        rounds: int,
        options: RoundOptions,
        measures: EvaluationOptions | None = None,
        *,
        nodes: Nodes,
        model: Message,
    ) -> None:
        request = replace(ONE_BY_ONE, threads=options.request.threads)
        super().__init__(trainer, rounds, replace(options, request=request, states="memory"), measures)
        self.nodes = nodes
        self.model = model
        self.run_id = secrets.token_hex(8)
        """Names the run; nodes keep its rows under this name."""

    def assemble(self) -> RoundParts:
        """As in the base, but nodes train and measure."""
        parts = super().assemble()
        check_federation(self.client, self.measures, parts.told, self.trainer.precision)
        self.nodes.plan_of = lambda client: self.plan(parts, client)
        models = parts.round_evaluator.models
        kept = {item.name: getattr(parts, item.name) for item in fields(parts)}
        replaced = {
            "training": NodeTraining.of(parts.training, self.nodes, self.states, self.server.initial, parts.told),
            "round_evaluator": NodeRoundEvaluator(self.client, self.data, models, self.measures, self.nodes),
            "gatherer": ServerGatherer(self.client, parts.gatherer.population, self.options, self.profile),
        }
        return ServerParts(**(kept | replaced))

    def plan(self, parts: RoundParts, client: int) -> RunPlan:
        """What a client's node must know of this run."""
        tensors, finetune = self.client.net.state_dict(), self.measures.finetune
        return RunPlan(
            run=self.run_id,
            client=client,
            clients=self.data.num_clients,
            seed=self.options.seed,
            dtype=name_of(next(self.client.net.parameters()).dtype),
            needs=sorted(parts.training.needs),
            tells=sorted(parts.told),
            keeps_local=parts.keeps_local_models,
            threads=parts.choice.threads,
            evaluation_threads=parts.choice.evaluation_threads,
            model=self.model,
            fixed={name: value for name, value in tensors.items() if name not in self.server.model},
            finetune=asdict(finetune[0]) if finetune else None,
            finetune_from=self.measures.finetune_from,
        )

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]  # as in the base
        """Also the run's name, and the names of the nodes."""
        return super().state_dict() | {"remote": {"run": self.run_id, "names": self.nodes.names}}

    def _restore(self, state_dict: dict[str, Any]) -> None:
        super()._restore(state_dict)
        begun = state_dict["remote"]
        if begun["names"] != self.nodes.names:
            raise ResumeError(
                f"This run began with the nodes {', '.join(begun['names'])}, and now there are "
                f"{', '.join(self.nodes.names)}. Start the same nodes, under the same names."
            )
        self.run_id = begun["run"]
