"""RemoteLoop: the ordinary loop of a run whose clients are nodes. The server trains nobody and reads no sample."""

import logging
import secrets
from dataclasses import asdict, fields, replace
from typing import Any

from pytorch_lightning import Trainer

from fedlit.client.cohort import Cohort
from fedlit.client.messages import Message
from fedlit.client.row_layout import name_of
from fedlit.engines.choose import Request
from fedlit.errors import ResumeError
from fedlit.evaluation.round_evaluator import EvaluationOptions
from fedlit.remote.checks import check_federation, left_out
from fedlit.remote.evaluation import NodeRoundEvaluator
from fedlit.remote.gathering import ServerGatherer, ServerParts
from fedlit.remote.inbox import Inbox
from fedlit.remote.nodes import Nodes
from fedlit.remote.pace import AwaitedTraining, RealPace, check_pace
from fedlit.remote.round import RemoteRound
from fedlit.remote.run_plan import RunPlan
from fedlit.remote.told_data import PARTS
from fedlit.remote.training import NodeTraining
from fedlit.results.config_file import read_config, result_settings
from fedlit.results.events import Pace, Recorded
from fedlit.results.folder import RunFolder
from fedlit.rounds.assembly import RoundParts
from fedlit.rounds.gathering import RoundOptions
from fedlit.rounds.loop import FederatedLoop
from fedlit.rounds.protocol import ServerProtocol
from fedlit.server.server import Server

log = logging.getLogger("fedlit")

ONE_BY_ONE = Request(engine="sequential")
"""What is recorded as the engine: each node trains one client."""


class RemoteLoop(FederatedLoop):
    """Rounds whose clients are nodes.

    Args:
        trainer: as for FederatedLoop, and so are `rounds`, `options` and `measures`.
        nodes: the clients.
        model: description of the algorithm, from which nodes make it.
        pace: what decides which server of a cloud steps next.
    """

    round_class, begun_by = RemoteRound, "remote"

    def __init__(
        self,
        trainer: Trainer,
        rounds: int,
        options: RoundOptions,
        measures: EvaluationOptions | None = None,
        *,
        nodes: Nodes,
        model: Message,
        pace: Pace = "clock",
    ) -> None:
        request = replace(ONE_BY_ONE, threads=options.request.threads)
        super().__init__(trainer, rounds, replace(options, request=request, states="memory"), measures)
        self.nodes = nodes
        self.model = model
        self.pace = pace
        self.run_id = secrets.token_hex(8)
        """Names the run; nodes keep its rows under this name."""

    def create_protocol(self) -> ServerProtocol:
        """As in the base; at a real pace arrivals decide."""
        protocol = super().create_protocol()
        if self.pace == "clock":
            return protocol
        check_pace(self.options)
        assert self.options.cloud is not None
        log.info("pace: real: servers step once they have the answers of their nodes")
        return RealPace(protocol.federation, self.options.cloud, self.options.seed, Inbox(self.nodes))

    def ask_server(self, server: Server, cohort: Cohort, number: int) -> None:
        """Ask the clients of a server to train, before it is known when it will step.

        What callbacks send is needed now. They are called again in the round of the step, which may be undone: what
        they keep belongs there.
        """
        assert isinstance(self.parts.training, AwaitedTraining)
        asked = replace(cohort, run_round=number, parts=dict(cohort.parts))
        with server.callbacks_restored():
            self.round.send(server, asked)
        self.parts.training.begin(server, asked)

    def assemble(self) -> RoundParts:
        """As in the base, but nodes train and measure."""
        parts = super().assemble()
        check_federation(self.client, self.measures, parts.told, self.trainer.precision)
        if (remark := left_out(self.client)) is not None:
            log.info(remark)
        self.nodes.plan_of = lambda client: self.plan(parts, client)
        models = parts.round_evaluator.models
        kept = {item.name: getattr(parts, item.name) for item in fields(parts)}
        training = NodeTraining.of(parts.training, self.nodes, self.states, self.server.initial, parts.told)
        protocol = self.federation
        if isinstance(protocol, RealPace):
            training, protocol.ask = AwaitedTraining.of_nodes(training, protocol.inbox), self.ask_server
        replaced = {
            "training": training,
            "round_evaluator": NodeRoundEvaluator(self.client, self.data, models, self.measures, self.nodes),
            "gatherer": ServerGatherer(self.client, parts.gatherer.population, self.options, self.profile),
        }
        return ServerParts(**(kept | replaced))

    def setup_data(self) -> None:
        """As in the base; events.jsonl is opened."""
        was_ready = self._ready
        super().setup_data()
        assert isinstance(self.round, RemoteRound)
        self.round.nodes = self.nodes
        if self.folder is not None and not was_ready:
            self.folder.start_events(self.recorded(self.folder), self.state.events)

    def recorded(self, folder: RunFolder) -> Recorded:
        """Which run the events belong to."""
        everyone = self.data.everyone
        sizes = {part: getattr(everyone, part).sizes.tolist() for part in PARTS}
        clients = {name: [sizes[part][k] for part in PARTS] for k, name in enumerate(self.nodes.names)}
        return Recorded(self.run_id, self.pace, clients, result_settings(read_config(folder.config)))

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
        return super().state_dict() | {"remote": {"run": self.run_id, "names": self.nodes.names, "pace": self.pace}}

    def _restore(self, state_dict: dict[str, Any]) -> None:
        begun = state_dict.get("remote", {"names": self.nodes.names, "pace": self.pace})
        if begun["names"] != self.nodes.names:
            raise ResumeError(
                f"This run began with the nodes {', '.join(begun['names'])}, and now there are "
                f"{', '.join(self.nodes.names)}. Start the same nodes, under the same names."
            )
        if begun["pace"] != self.pace:
            raise ResumeError(
                f"This run began with --pace {begun['pace']}, and now it is {self.pace}. Resume it with --pace "
                f"{begun['pace']}: its events are of one pace."
            )
        super()._restore(state_dict)  # last: what is refused must not be saved
        self.run_id = begun["run"]
