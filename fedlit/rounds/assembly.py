"""From the trainer's arguments to the parts that play a round.

Lightning restores a checkpoint before the data are set up. So the servers of a `RunState` are created when Lightning
asks for optimisers, and `RoundParts` are assembled later, when the data can be read.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.net_parts import trained
from fedlit.client.states import ClientStates
from fedlit.client.states_location import Need, on_disk, why_not_on_disk
from fedlit.data.base import FederatedDataModule
from fedlit.data.pooled import Pooled
from fedlit.engines.backbone import installed
from fedlit.engines.base import Engine
from fedlit.engines.choose import EngineChoice, Resources, choose, make_engine, make_forward, resumed_request
from fedlit.engines.device import Device
from fedlit.engines.distributed import DistributedEngine
from fedlit.engines.forward import CHUNK
from fedlit.engines.ladder import Ladder
from fedlit.engines.progress import TrainingProgress
from fedlit.evaluation.adaptation import Adapter
from fedlit.evaluation.evaluator import Evaluator
from fedlit.evaluation.round_evaluator import EvaluationOptions, RoundEvaluator, rows_to_measure
from fedlit.evaluation.round_metrics import round_columns
from fedlit.evaluation.user_models import UserModels
from fedlit.params import Params, at_least_float32
from fedlit.ranks import Profile, Ranks
from fedlit.results.folder import RunFolder
from fedlit.rounds.buffered import BufferedProtocol
from fedlit.rounds.cloud import CloudProtocol
from fedlit.rounds.federation import Federation
from fedlit.rounds.flat import FlatProtocol
from fedlit.rounds.gathering import Gatherer, RoundOptions
from fedlit.rounds.local_training import LocalTraining, kept_rows
from fedlit.rounds.newcomers import Newcomers
from fedlit.rounds.protocol import Event, ServerProtocol
from fedlit.rounds.run_state import RunState
from fedlit.server.base import ServerCallback
from fedlit.server.optimizers import SGD
from fedlit.server.server import BuildOptimizer, Server
from fedlit.server.weights import Weighting

log = logging.getLogger("fedlit")

LOCAL_MODELS_BYTES = 1e9
"""`store_local_models: auto` keeps every client's last model up to this much memory."""


def create_protocol(
    client: Client,
    data: FederatedDataModule,
    build_optimizer: BuildOptimizer,
    callbacks: Sequence[ServerCallback],
    states: ClientStates,
    options: RoundOptions,
) -> ServerProtocol:
    """Create the servers of a run, with the net's weights as z^0, and the protocol that decides which steps next."""
    everyone = Pooled(data).sizes if client.pools_data else data.sizes
    create = partial(Server, client.net, build_optimizer, states=states)
    if options.cloud is not None:
        groups = data.load(0, range(len(everyone))).groups
        members = options.cloud.clients_of(len(everyone), groups, options.seed)
        return CloudProtocol(Federation.of(members, everyone, create, callbacks), options.cloud, options.seed)
    federation = Federation.of([np.arange(len(everyone))], everyone, create, callbacks)
    return FlatProtocol(federation) if options.buffer is None else BufferedProtocol(federation, options.buffer)


@dataclass(frozen=True)
class RoundParts:
    """The parts that play the rounds of a run."""

    client: Client
    protocol: ServerProtocol
    gatherer: Gatherer
    weighting: Weighting
    training: LocalTraining
    round_evaluator: RoundEvaluator
    device: Device
    choice: EngineChoice
    columns: list[str]
    """The columns of metrics.csv."""
    keeps_local_models: bool
    newcomers: Newcomers | None
    """Measures the clients that were held back; None if there are none."""
    told: frozenset[str]
    """The risks and gradients that the weighting or a callback reads, so that clients send them."""

    @property
    def told_numbers(self) -> int:
        """How many numbers they are for each client."""
        return sum(self.client.model_numbers if name == "grad_received" else 1 for name in self.told)

    def rows_of(self, cohort: TrainedCohort) -> Params:
        """Stacked: all rows of a cohort that are stored; with nodes, those that live at the server."""
        return kept_rows(self.client, cohort, keeps_local=self.keeps_local_models)


@dataclass(frozen=True)
class Assembly:
    """Assembles the parts of a run from the trainer's arguments."""

    client: Client
    data: FederatedDataModule
    options: RoundOptions
    measures: EvaluationOptions
    weighting: Weighting
    state: RunState
    ranks: Ranks
    device: Device
    progress: TrainingProgress
    folder: RunFolder | None
    rounds: int
    profile: Profile
    closing: ExitStack
    """What is undone when the run ends."""

    def assemble(self) -> RoundParts:
        """The parts of a run, once its servers and its data exist; the engine is chosen here."""
        client, data, state = self.client, self.data, self.state
        client.prepare()
        data.cast(at_least_float32(next(client.net.parameters()).dtype))
        self.closing.enter_context(installed(client, data, self.folder.checkpoints if self.folder else None))
        keeps_local = self._keeps_local_models()
        population: FederatedDataModule | Pooled = Pooled(data) if client.pools_data else data
        gatherer = Gatherer(client, population, self.options, self.profile)
        self._place_states(gatherer, keeps_local)
        is_resumed = state.choice is not None
        choice = self._recorded_choice(gatherer, population)
        device = self.device.settled(
            choice.accelerator, client, [server.optimizer for server in state.protocol.servers]
        )
        state.best.measure = client.task.first
        round_evaluator = self._round_evaluator(choice, device, keeps_local)
        make = partial(self._engine, device)
        ladder = partial(Ladder, choice, make, self.ranks, state.record_choice, is_resumed=is_resumed)
        engine = ladder() if choice.compiled else make(choice)
        return RoundParts(
            client=client,
            protocol=state.protocol,
            gatherer=gatherer,
            weighting=self.weighting,
            training=LocalTraining(client, population, gatherer, engine, round_evaluator.evaluator, self._needs()),
            round_evaluator=round_evaluator,
            device=device,
            choice=choice,
            columns=self._columns(round_evaluator),
            keeps_local_models=keeps_local,
            newcomers=self._newcomers(engine, round_evaluator.evaluator),
            told=self._told(),
        )

    def _newcomers(self, engine: Engine, users: Evaluator) -> Newcomers | None:
        """What measures the newcomers, with the engine of the run; None if nobody was held back."""
        data = self.data.newcomer_data
        if data is None:
            return None
        gatherer = Gatherer(self.client, data, self.options, self.profile)
        evaluator = Evaluator(self.client, data, self.ranks, users.device, users.forward)
        training = LocalTraining(self.client, data, gatherer, engine, evaluator, self.client.needs)
        adapter = Adapter(evaluator, self.options.seed)
        return Newcomers(self.client, data, self.data, gatherer, training, adapter, self.measures)

    def _recorded_choice(self, gatherer: Gatherer, population: FederatedDataModule | Pooled) -> EngineChoice:
        """The engine that checkpoints record; all ranks use the first rank's choice, unless a resumed run has one."""
        state = self.state
        if state.choice is None:
            with self.device.client_at_home(self.client):
                chosen = asdict(self._choose(gatherer, population))
                state.choice = EngineChoice(**self.ranks.broadcast(chosen))
        log.info(state.choice.line())
        log.info(self._resources.line(state.choice))
        return state.choice

    def _round_evaluator(self, choice: EngineChoice, device: Device, keeps_local: bool) -> RoundEvaluator:
        """What measures the global model and the users' models."""
        client, data, state = self.client, self.data, self.state
        forward = make_forward(choice, client, data.plain_rows, device, self.ranks)
        models = UserModels.of(
            client,
            lambda user: state.protocol.federation.server_of(user).model,
            state.clients,
            state.server.initial,
            keeps_local=keeps_local,
        )
        return RoundEvaluator(client, data, models, self.measures, self.ranks, device, forward)

    def _engine(self, device: Device, choice: EngineChoice) -> Engine:
        """The engine of a choice, distributed if the run has several processes."""
        engine = make_engine(choice, self.options.seed, self.data.rows, device)
        engine.progress = self.progress
        return DistributedEngine(engine, self.ranks) if self.ranks.size > 1 else engine

    def _needs(self) -> frozenset[str]:
        """The risks and gradients that the client, the weighting or a callback reads."""
        return self.client.needs | self._told()

    def _told(self) -> frozenset[str]:
        """Those of them that the server reads."""
        return self.weighting.needs.union(*(callback.needs for callback in self.state.server.callbacks))

    def _columns(self, round_evaluator: RoundEvaluator) -> list[str]:
        """The columns of metrics.csv."""
        return [
            *round_columns(self.client, round_evaluator.parts),
            *(["time/sim_s"] if self.options.clock is not None else []),
            *self.state.protocol.metrics(),
            *(name for callback in self.state.server.callbacks for name in callback.metrics),
        ]

    def _keeps_local_models(self) -> bool:
        """Whether every client's last model is kept; if not, a log line says why."""
        data, asked = self.data, self.options.store_local_models
        tensors = trained(self.client.net).values()
        needed = data.num_clients * sum(value.numel() * value.element_size() for value in tensors)
        fits = needed <= LOCAL_MODELS_BYTES if asked == "auto" else asked
        if not fits:
            why = f"{needed / 1e9:.1f} GB" if asked == "auto" else "store_local_models is false"
            log.info(f"The clients' models are not kept ({why}), so local/* and personal/* are not measured.")
        # A fresh client never takes part again; the one client that holds all data is not a user.
        return fits and not data.is_fresh and not self.client.pools_data

    def _place_states(self, gatherer: Gatherer, keeps_local: bool) -> None:
        """Keep the rows of clients in memory or on disk; a resumed run's rows are moved if they are elsewhere."""
        asked, ranks, states = self.options.states, self.ranks, self.state.clients
        shared = ranks.broadcast(self.folder.checkpoints if self.folder is not None else None)
        folder = Path(shared) if shared is not None else None
        is_on_disk, line, expected = False, None, 0
        if asked != "memory":
            need = self._need(folder, gatherer, keeps_local)
            is_on_disk, line = ranks.broadcast(on_disk(asked, need))
            expected = need.clients if need.is_small else 0
        if line is not None:
            log.info(line)
        if is_on_disk and folder is not None:
            states.keep_on_disk(folder, ranks)
        else:
            states.keep_in_memory(expected)

    def _need(self, folder: Path | None, gatherer: Gatherer, keeps_local: bool) -> Need:
        """Memory that rows would need: the size of a first cohort's rows, times the clients that may take part."""
        servers, ranks = self.state.protocol.servers, self.ranks
        [cohort] = gatherer.untimed(servers[:1])
        rows = kept_rows(self.client, TrainedCohort.begin(cohort), keeps_local=keeps_local)
        kept = sum(value.numel() * value.element_size() for value in rows.values())
        participations = self.rounds * len(cohort.clients) * len(servers)
        return Need(
            clients=min(participations, self.data.num_clients),
            row_bytes=kept / max(1, len(cohort.clients)),
            processes=ranks.here,
            why_not_on_disk=why_not_on_disk(folder, ranks.size // ranks.here),
        )

    def _choose(self, gatherer: Gatherer, population: FederatedDataModule | Pooled) -> EngineChoice:
        """Choose the engine for a first cohort's work; a resumed run keeps the form of its engine."""
        client, data, ranks, options = self.client, self.data, self.ranks, self.options
        begun_with, protocol = self.state.begun_with, self.state.protocol
        cohorts = gatherer.untimed(protocol.servers)
        trained = protocol.trained_at_once(cohorts)
        if trained < ranks.size:
            log.info(
                f"{ranks.size - trained} of {ranks.size} processes are idle: only {trained} clients train in a round."
            )
        evaluations = 1 + self.rounds // options.eval_every
        return choose(
            options.request if begun_with is None else resumed_request(begun_with, options.request),
            client,
            client.planned_steps(population.sizes.numpy()),
            trained,
            self.rounds,
            data.sample,
            shares=gatherer.work_shares(cohorts),
            evaluated_rows=CHUNK,
            measured_rows=rows_to_measure(data, evaluations, trained * options.eval_every),
            resources=self._resources,
            device=self.device,
        )

    @property
    def _resources(self) -> Resources:
        return Resources(self.ranks.size, self.ranks.here, self.options.request.threads)


def simulate_clock(client: Client, data: FederatedDataModule, options: RoundOptions, rounds: int) -> Iterator[Event]:
    """The events of so many rounds of a run with these options, without training. The data must be set up.

    The times are those of the real run if a client's work does not depend on what was trained, as in all algorithms of
    fedlit.
    """
    protocol = create_protocol(client, data, SGD().build, [], ClientStates(), options)
    gatherer = Gatherer(client, Pooled(data) if client.pools_data else data, options)
    for number in range(1, rounds + 1):
        event = protocol.next_event(gatherer)
        yield event
        protocol.finish(event, number)
