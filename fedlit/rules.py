"""What trainer, client and data cannot do together: refused here, before any work, each with its reason."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from fedlit.catalogue import RECORD_COLUMNS
from fedlit.client import Client
from fedlit.clock import Clock
from fedlit.cohort import Selection
from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError, nearest
from fedlit.history import EXTRA_METRICS, MeasuredParts, round_columns
from fedlit.keys import Purpose, generator
from fedlit.measuring import MeasureOptions
from fedlit.server.base import ServerCallback
from fedlit.server.buffer import Buffer
from fedlit.server.cloud import Cloud
from fedlit.server.optimizers import SGD, ServerOptimizer
from fedlit.server.sampling import Sampler
from fedlit.server.weights import Weighting
from fedlit.states import number_states

log = logging.getLogger("fedlit")

_ON_PROCESSORS = "clients train on processors, in processes that are all alike. Leave it out."
REFUSED_TRAINER_ARGUMENTS = {
    **dict.fromkeys(("plugins", "benchmark"), _ON_PROCESSORS),
    "deterministic": "a run always gives the same bits. Leave it out.",
    "detect_anomaly": "a client that leaves the finite numbers ends the run by name. Leave it out.",
    "inference_mode": "evaluation always runs in it. Leave it out.",
    "log_every_n_steps": "every round is logged. Leave it out.",
    "limit_test_batches": "all users are evaluated in one pass. Give eval_every instead.",
    "limit_predict_batches": "there is nothing to predict in a federated run. Leave it out.",
    "enable_model_summary": "the net is the same for all. Give Lightning's ModelSummary as a callback instead.",
    "enable_autolog_hparams": "the command line logs the whole config. Leave it out.",
    "model_registry": "checkpoints stay in the run's folder. Leave it out.",
    "barebones": "it turns off the hooks that a round needs. Leave it out.",
    "max_epochs": "one epoch is one round here. Give rounds instead.",
    "min_epochs": "one epoch is one round here. Give rounds instead.",
    "max_steps": "a run is measured in rounds. Give rounds instead.",
    "min_steps": "a run is measured in rounds. Give rounds instead.",
    "accumulate_grad_batches": "local steps are the client's. Give model.batch_size instead.",
    "gradient_clip_val": "gradients are clipped on the client. Give model.clip instead.",
    "gradient_clip_algorithm": "gradients are clipped on the client, by norm. Give model.clip instead.",
    "check_val_every_n_epoch": "evaluation goes by rounds. Give eval_every instead.",
    "val_check_interval": "evaluation goes by rounds. Give eval_every instead.",
    "limit_train_batches": "a client's work is its own. Give model.local_steps instead.",
    "limit_val_batches": "all users are evaluated in one pass. Give eval_every instead.",
    "overfit_batches": "clients train on their own data. Give model.local_steps instead.",
    "enable_checkpointing": "a run folder keeps its own (run=DIR). Give a ModelCheckpoint callback for more.",
    "fast_dev_run": "a round is the smallest run. Give rounds=1 instead.",
    "num_sanity_val_steps": "the initial model is always evaluated, as round 0. Leave it out.",
    "reload_dataloaders_every_n_epochs": "there are no data loaders: the data stay in memory. Leave it out.",
    "use_distributed_sampler": "clients are drawn by trainer.sampler. Leave it out.",
    "sync_batchnorm": "statistics are averaged by the server. Leave it out.",
}


def check_run(
    client: Client,
    data: FederatedDataModule,
    callbacks: Sequence[Callback],
    *,
    clients_per_round: int,
    sampler: Sampler,
    weighting: Weighting,
    measures: MeasureOptions,
    cloud: Cloud | None = None,
    clock: Clock | None = None,
    buffer: Buffer | None = None,
    seed: int = 0,
) -> None:
    """Refuse what would fail, or deceive, later. The data are set up."""
    check_optimizers(client)
    client.check_states()
    check_clock(client, data, callbacks, sampler, clock, seed)
    check_cloud(client, data, callbacks, sampler, cloud, clock)
    if buffer is not None:
        check_buffer(buffer, client, data, sampler, cloud, clock)
        check_discount(buffer, callbacks)
    served = check_cohort(data, sampler, clients_per_round, cloud, clock)
    client.check_clients(data.num_clients, served, sampler.cohort_size(clients_per_round, served))
    check_weighting(client, weighting)
    check_states(client)
    check_population(client, data)
    check_adaptation(client, data, measures)
    check_extra_metrics(data, measures)
    check_monitors(client, data, callbacks)
    check_net(client, data)
    if client.batch_size < client.fewest_rows:
        raise ConfigError("model.batch_size is 1, but model.net has BatchNorm, which needs 2 rows or more. Raise it.")


def check_optimizers(client: Client) -> None:
    """Lightning's place for optimisers is the server's here: an override would silently replace it."""
    if type(client).configure_optimizers is not Client.configure_optimizers:
        raise ConfigError(
            f"{type(client).__name__} overrides configure_optimizers, but the optimisers of a federated run are chosen "
            "elsewhere: the clients' by local_optimizer() and options such as lr and momentum, the server's by "
            "trainer.server_optimizer (SGD, FedAvgM, FedAdam …). Remove the override."
        )


def check_cohort(
    data: FederatedDataModule, sampler: Sampler, clients_per_round: int, cloud: Cloud | None, clock: Clock | None
) -> int:
    """The sampler must be able to draw a cohort, of every server; returns the clients of the largest."""
    groups = data.load(0, range(data.num_clients)).groups if cloud is not None else []
    parts = [np.arange(data.num_clients)] if cloud is None else cloud.clients_of(data.num_clients, groups, 0)
    for number, ids in enumerate(parts):
        if sampler.cohort_size(clients_per_round, len(ids)) > len(ids):
            whose = f"the data ({type(data).__name__}) have" if cloud is None else f"server {number} of the cloud has"
            raise ConfigError(
                f"trainer.clients_per_round is {clients_per_round}, but {whose} only {len(ids)} clients. Set it to "
                f"{len(ids)} or less, or make more clients (data.num_clients)."
            )
        known: dict[str, Any] = {"arrivals": clock.latency.arrivals(0, 0, ids)} if clock and sampler.needs_clock else {}
        sampler.select(0, 0, data.sizes.numpy()[ids], clients_per_round, **known)
    return max(len(ids) for ids in parts)


def check_clock(
    client: Client,
    data: FederatedDataModule,
    callbacks: Sequence[Callback],
    sampler: Sampler,
    clock: Clock | None,
    seed: int,
) -> None:
    """A clock must give everyone seconds, and nobody may be late or lost whose model counts."""
    if clock is None:
        if sampler.needs_clock:
            raise ConfigError(
                f"trainer.sampler is {type(sampler).__name__}, which goes by arrivals, but there is no trainer.clock. "
                "Give one."
            )
        return
    if not clock.latency.is_recorded:  # a trace is rehearsed: it may lack clients that never take part
        clock.latency.durations(seed, 0, np.arange(data.num_clients), 1)
    if clock.deadline is not None or clock.dropout:
        own = [callback for callback in callbacks if isinstance(callback, ServerCallback) and callback.needs_reports]
        if own:
            raise ConfigError(
                f"trainer.clock has a deadline or dropout, but {type(own[0]).__name__} of {type(client).__name__} "
                "counts the model of every client that trained. Leave both out, or take another algorithm."
            )


def check_cloud(
    client: Client,
    data: FederatedDataModule,
    callbacks: Sequence[Callback],
    sampler: Sampler,
    cloud: Cloud | None,
    clock: Clock | None,
) -> None:
    """Several servers need clients that stay, a state that bears mixing, and a clock that says who is first."""
    if cloud is None:
        return
    if client.pools_data or data.is_fresh:
        what = "pools everybody's data" if client.pools_data else "draws new clients every round (data.fresh)"
        raise ConfigError(f"trainer.cloud divides clients among servers, but this run {what}. Leave one of them out.")
    if cloud.together < cloud.servers and clock is None:
        raise ConfigError(
            f"trainer.cloud.first is {cloud.together} of {cloud.servers} servers, but there is no trainer.clock to say "
            "which are first. Give one, or leave first out."
        )
    same_groups = cloud.protocol == "rigorous" or cloud.servers % cloud.together == 0
    if cloud.together < cloud.servers and same_groups and clock is not None and clock.latency.is_constant:
        raise ConfigError(
            f"trainer.cloud.first is {cloud.together} of {cloud.servers} servers, but trainer.clock gives every client "
            "the same seconds: the same servers would step together for ever, and never connect with the others. Give "
            "a latency that varies, or leave first out."
        )
    if sampler.by_ids and cloud.servers > 1:
        raise ConfigError(
            f"trainer.sampler is {type(sampler).__name__}, a list of clients, but each of {cloud.servers} servers "
            "counts its own clients from 0. Take another sampler, or leave trainer.cloud out."
        )
    for callback in callbacks:
        if isinstance(callback, ServerCallback) and callback.alone and cloud.servers > 1:
            raise ConfigError(
                f"{type(client).__name__} cannot have {cloud.servers} servers: {type(callback).__name__} keeps a state "
                f"that makes no sense there, because {callback.alone}. Leave trainer.cloud out, or take another "
                "algorithm."
            )


def says_that_mixing_cancels(client: Client, optimizer: ServerOptimizer, cloud: Cloud | None) -> None:
    """A line where several servers step all the way to their own clients' mean: their runs are apart then."""
    if cloud is not None and cloud.servers > 1 and optimizer == SGD(lr=1 / client.server_lr):
        log.warning(
            "cloud: a server's step ends in the mean of its own clients, wherever it began, so that mixing cancels and "
            "servers never learn of each other. Give trainer.server_optimizer a rate below 1."
        )


def check_buffer(
    buffer: Buffer,
    client: Client,
    data: FederatedDataModule,
    sampler: Sampler,
    cloud: Cloud | None,
    clock: Clock | None,
) -> None:
    """A buffer needs one server, a clock, clients that stay, enough of them, and that whoever trains also reports."""
    name, clients = type(client).__name__, int((data.sizes > 0).sum())
    if client.pools_data or data.is_fresh:
        what = "pools everybody's data" if client.pools_data else "draws new clients every round (data.fresh)"
        raise ConfigError(f"trainer.buffer keeps clients in flight, but this run {what}. Leave one of them out.")
    if cloud is not None:
        raise ConfigError(
            "trainer.buffer is for one server, but trainer.cloud has several with their own protocol. Leave one out."
        )
    if clock is None:
        raise ConfigError(
            "trainer.buffer goes by the order of reports, but there is no trainer.clock to time them. Give one."
        )
    if clock.deadline is not None or clock.dropout:
        raise ConfigError(
            "trainer.clock has a deadline or dropout, but with trainer.buffer the server waits for nobody and every "
            "report is used, however late. Leave both out, or the buffer."
        )
    if buffer.concurrency > clients:
        raise ConfigError(
            f"trainer.buffer.concurrency is {buffer.concurrency}, but the data ({type(data).__name__}) have only "
            f"{clients} clients to train on. Set it to {clients} or less, or make more clients (data.num_clients)."
        )
    if not sampler.takes_any or sampler.cohort_size(buffer.concurrency, data.num_clients) != buffer.concurrency:
        raise ConfigError(
            f"trainer.sampler is {type(sampler).__name__}, but with trainer.buffer a client is drawn whenever one "
            "reports, among those who are not in flight. Use 'uniform', 'size' or 'earliest'."
        )
    alone = client.select(Selection([0], [0]), data.num_clients, generator(0, Purpose.COHORT))
    if len(alone.train) > 1:
        raise ConfigError(
            f"{name} lets clients train that do not report, round by round, but with trainer.buffer a client trains on "
            f"what it was sent, and reports. Turn that off in the options of {name}, or leave the buffer out."
        )


def check_discount(buffer: Buffer, callbacks: Sequence[Callback]) -> None:
    """A discount must have something to act on."""
    own = [callback for callback in callbacks if isinstance(callback, ServerCallback) and callback.replaces_average]
    discounted = bool((buffer.discounts(torch.arange(1, 1001)) != 1).any())
    if own and discounted:
        raise ConfigError(
            f"trainer.buffer.discount would have no effect: {type(own[0]).__name__} puts an average of the clients' "
            "models in the place of the reports' moves. Set trainer.buffer.discount to constant."
        )


def check_weighting(client: Client, weighting: Weighting) -> None:
    """A weighting reads only states that the algorithm keeps."""
    missing = [name for name in weighting.needs_state if name not in client.state_spec()]
    if missing:
        raise ConfigError(
            f"trainer.weights is {type(weighting).__name__}, which reads each client's '{missing[0]}', but "
            f"{type(client).__name__} keeps none. Use 'samples' or 'uniform', or an algorithm that keeps it."
        )


def check_states(client: Client) -> None:
    """A number that clients keep is a column of clients.parquet and of the dashboard, which have others too."""
    for name in number_states(client.state_spec()):
        if name in (*RECORD_COLUMNS, "own", "gain"):
            raise ConfigError(
                f"{type(client).__name__} keeps a number called '{name}' for each client, but the records of "
                "clients have a column of that name already. Give it another name in state_spec()."
            )


def check_population(client: Client, data: FederatedDataModule) -> None:
    """What is kept for a client must find the same client again."""
    kept = sorted(client.state_spec()) + sorted(client.own_tensors) + ["optimizer"] * client.keep_optimizer
    if data.is_fresh and kept:
        raise ConfigError(
            f"{type(client).__name__} keeps '{kept[0]}' for each client, but data.fresh draws new clients every round, "
            "which are never met again. Use an algorithm that keeps nothing, or leave data.fresh out."
        )


def check_adaptation(client: Client, data: FederatedDataModule, measures: MeasureOptions) -> None:
    """Personal models that are adapted need data to adapt on."""
    steps = {"model.adapt_on": client.personal_model().adaptation, "trainer.finetune_on": measures.finetune}
    for name, step in steps.items():
        if step is not None and step.on == "adapt" and not data.everyone.adapt.sizes.any():
            raise ConfigError(
                f"{name} is 'adapt', but no client has adaptation data (data.adapt_fraction is 0). Set "
                "data.adapt_fraction to 0.1, or adapt on train or test."
            )


def check_extra_metrics(data: FederatedDataModule, measures: MeasureOptions) -> None:
    """A global objective needs a population that stays."""
    if data.is_fresh and measures.extra_metrics:
        raise ConfigError(
            f"trainer.extra_metrics asks for {measures.extra_metrics[0]}, the objective over all clients' training "
            "data, but data.fresh draws new clients every round. Leave one of them out."
        )


def check_monitors(client: Client, data: FederatedDataModule, callbacks: Sequence[Callback]) -> None:
    """Nothing can be monitored that is not measured, least of all on validation data that do not exist."""
    known = round_columns(client, MeasuredParts(finetuned=True, extra=EXTRA_METRICS))
    groups = {name.split("/")[0] for name in known}
    declared = [name for callback in callbacks if isinstance(callback, ServerCallback) for name in callback.metrics]
    for callback in callbacks:
        if not isinstance(callback, EarlyStopping | ModelCheckpoint) or callback.monitor is None:
            continue
        name, asked = type(callback).__name__, callback.monitor
        if asked.startswith("val/") and len(data.global_val) == 0:
            raise ConfigError(
                f"{name} monitors '{asked}', but there is no validation data (data.val_fraction is 0). Set "
                "data.val_fraction to 0.1, or remove the callback."
            )
        if asked.split("/")[0] in groups and asked not in [*known, *declared]:
            raise ConfigError(
                f"{name} monitors '{asked}', which is not measured. {nearest(asked, known)}See docs/metrics.md."
            )


def check_net(client: Client, data: FederatedDataModule) -> None:
    """The net must take the data's samples and tell its classes apart."""
    x, _ = data.rows(data.store, torch.zeros(2, dtype=torch.int64))
    name = type(client.net).__name__
    dtype = next(client.net.parameters()).dtype
    training = client.net.training
    client.net.eval()
    try:
        with torch.no_grad():
            output = client.net(x.to(dtype) if x.is_floating_point() else x)
    except RuntimeError as error:
        raise ConfigError(
            f"model.net ({name}) cannot take samples of shape {tuple(x.shape[1:])} from {type(data).__name__}: "
            f"{str(error).splitlines()[0]}. Change the net's input size, or the data."
        ) from error
    finally:
        client.net.train(training)
    if output.dim() != 2 or output.shape[1] < data.num_classes:
        raise ConfigError(
            f"model.net ({name}) gives outputs of shape {tuple(output.shape[1:])}, but {type(data).__name__} has "
            f"{data.num_classes} classes. Give the net at least {data.num_classes} outputs."
        )
