"""Combinations of trainer, client and data that make no sense: refused before any work, each with its reason."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from fedlit.client.base import Client
from fedlit.client.net_parts import check_trained_part
from fedlit.client.specs import check_places, check_reported, number_states
from fedlit.client.step import Adaptation, AdaptOn, FinetuneFrom
from fedlit.clock import Clock
from fedlit.data.base import FederatedDataModule
from fedlit.data.newcomers import check_not_fresh
from fedlit.engines.backbone import check_backbone
from fedlit.errors import ConfigError, nearest, require
from fedlit.evaluation.round_evaluator import EvaluationOptions
from fedlit.evaluation.round_metrics import EXTRA_METRICS, MetricGroups, round_columns
from fedlit.keys import Purpose, generator
from fedlit.metrics.catalogue import record_columns
from fedlit.server.base import ServerCallback
from fedlit.server.buffer import Buffer
from fedlit.server.cloud import Cloud
from fedlit.server.sampling import Sampler, check_selection
from fedlit.server.weights import Weighting
from fedlit.trainer.net_checks import check_first_steps, check_net, check_trained
from fedlit.trainer.protocol_checks import check_buffer, check_clock, check_cloud, check_discount

REFUSED_TRAINER_ARGUMENTS = {
    "plugins": "number formats and processes follow from precision, devices and strategy. Leave it out.",
    "benchmark": "operations would be chosen by their timing, and two runs would differ. Leave it out.",
    "deterministic": "a run always gives the same bits. Leave it out.",
    "detect_anomaly": "a client whose loss or model is not finite ends the run, and the error names it. Leave it out.",
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


def refuse_lightning_arguments(arguments: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments of Lightning's trainer that make no sense here, each with its reason, and unknown ones."""
    for name in arguments:
        reason = REFUSED_TRAINER_ARGUMENTS.get(name)
        if reason is not None:
            raise ConfigError(f"trainer.{name} makes no sense in a federated run: {reason}")
        raise ConfigError(
            f"FederatedTrainer has no argument '{name}'. {nearest(name, [*known, *REFUSED_TRAINER_ARGUMENTS])}"
            "help(FederatedTrainer) explains all."
        )


def checked_parts(model: object, datamodule: object) -> tuple[Client, FederatedDataModule]:
    """The client and the data, or a clear error."""
    if not isinstance(model, Client):
        raise ConfigError(f"FederatedTrainer.fit got a {type(model).__name__}; give it a fedlit Client such as FedAvg.")
    if not isinstance(datamodule, FederatedDataModule):
        raise ConfigError(
            f"FederatedTrainer.fit got {type(datamodule).__name__} as datamodule; give it a FederatedDataModule such "
            "as Synthetic, or wrap your arrays in TensorData(x, y, client)."
        )
    return model, datamodule


def check_run(
    client: Client,
    data: FederatedDataModule,
    callbacks: Sequence[Callback],
    *,
    clients_per_round: int,
    sampler: Sampler,
    weighting: Weighting,
    measures: EvaluationOptions,
    cloud: Cloud | None = None,
    clock: Clock | None = None,
    buffer: Buffer | None = None,
    seed: int = 0,
) -> None:
    """Refuse combinations that would fail, or give wrong results, later. The data must be set up."""
    check_optimizers(client)
    check_phases(client)
    client.check_states()
    check_clock(client, data, callbacks, sampler, clock, seed)
    check_cloud(client, data, callbacks, sampler, cloud, clock)
    if buffer is not None:
        check_buffer(buffer, client, data, sampler, cloud, clock)
        check_discount(buffer, callbacks)
    served = check_cohort(client, data, sampler, clients_per_round, cloud, clock)
    client.check_clients(data.num_clients, served, sampler.cohort_size(clients_per_round, served))
    check_weighting(client, weighting)
    check_states(client)
    check_population(client, data)
    check_adaptation(client, data, measures)
    check_newcomers(data, measures)
    check_extra_metrics(data, measures)
    check_monitors(client, data, callbacks)
    check_trained(client)
    check_net(client, data)
    check_backbone(client, data)
    if client.batch_size < client.fewest_rows:
        raise ConfigError("model.batch_size is 1, but model.net has BatchNorm, which needs 2 rows or more. Raise it.")
    check_first_steps(client, data)


def check_optimizers(client: Client) -> None:
    """Refuse an override of configure_optimizers: Lightning's hook makes the server's optimiser here."""
    if type(client).configure_optimizers is not Client.configure_optimizers:
        raise ConfigError(
            f"{type(client).__name__} overrides configure_optimizers, but the optimisers of a federated run are chosen "
            "elsewhere: the clients' by local_optimizer() and options such as lr and momentum, the server's by "
            "trainer.server_optimizer (SGD, FedAvgM, FedAdam …). Remove the override."
        )


def check_phases(client: Client) -> None:
    """Refuse phases of which none trains the model that clients send."""
    sent = [phase for phase in client.phases() if not phase.writes]
    if not sent or sent[0].start == "trained":
        raise ConfigError(
            f"{type(client).__name__}.phases() never trains the model that clients send to the server: give one phase "
            "that does not write a state (`writes`), and let it start from 'received' or from a state of "
            "state_spec(). Phases that start from 'trained' come after it."
        )


def check_cohort(
    client: Client,
    data: FederatedDataModule,
    sampler: Sampler,
    clients_per_round: int,
    cloud: Cloud | None,
    clock: Clock | None,
) -> int:
    """Try sampler and client on every server's clients; returns the number of clients of the largest server."""
    groups = data.load(0, range(data.num_clients)).groups if cloud is not None else []
    parts = [np.arange(data.num_clients)] if cloud is None else cloud.clients_of(data.num_clients, groups, 0)
    for number, ids in enumerate(parts):
        if sampler.cohort_size(clients_per_round, len(ids)) > len(ids):
            whose = f"the data ({type(data).__name__}) have" if cloud is None else f"server {number} of the cloud has"
            lower = f", or lower data.newcomers ({data.newcomers:g})" if data.newcomers else ""
            raise ConfigError(
                f"trainer.clients_per_round is {clients_per_round}, but {whose} only {len(ids)} clients"
                f"{' beside the newcomers' * bool(lower)}. Set it to {len(ids)} or less, or make more clients "
                f"(data.num_clients){lower}."
            )
        known: dict[str, Any] = {"arrivals": clock.latency.arrivals(0, 0, ids)} if clock and sampler.needs_clock else {}
        drawn = sampler.select(0, 0, data.sizes.numpy()[ids], clients_per_round, **known)
        check_selection(drawn, len(ids), f"trainer.sampler ({type(sampler).__name__})")
        chosen = client.select(drawn, len(ids), generator(0, Purpose.COHORT, index=1))
        check_selection(chosen, len(ids), f"{type(client).__name__}.select")
    return max(len(ids) for ids in parts)


def check_weighting(client: Client, weighting: Weighting) -> None:
    """Refuse a weighting that reads states which the algorithm does not keep."""
    missing = [name for name in weighting.needs_state if name not in client.state_spec()]
    if missing:
        raise ConfigError(
            f"trainer.weights is {type(weighting).__name__}, which reads each client's '{missing[0]}', but "
            f"{type(client).__name__} keeps none. Use 'samples' or 'uniform', or an algorithm that keeps it."
        )


def check_states(client: Client) -> None:
    """Refuse a state that lives where it cannot, or has the name of another column of clients.parquet."""
    name, kept = type(client).__name__, client.state_spec()
    check_places(name, kept, {*client.carried_states(), *(phase.writes for phase in client.phases())})
    check_reported(name, kept, client.sent_spec(), client.report_spec())
    for name in number_states(client.first_values()):
        if name in (*record_columns(client.measures), "own", "gain"):
            raise ConfigError(
                f"{type(client).__name__} keeps a number called '{name}' for each client, but the records of "
                "clients have a column of that name already. Give it another name in state_spec()."
            )


def check_population(client: Client, data: FederatedDataModule) -> None:
    """Refuse an algorithm that keeps something for each client if clients never come back."""
    kept = sorted(client.state_spec()) + sorted(client.local_tensors) + ["optimizer"] * client.keep_optimizer
    if data.is_fresh and kept:
        raise ConfigError(
            f"{type(client).__name__} keeps '{kept[0]}' for each client, but data.fresh draws new clients every round, "
            "which never take part again. Use an algorithm that keeps nothing, or leave data.fresh out."
        )


def evaluation_options(
    extra_metrics: Sequence[str],
    seed: int,
    *,
    lr: float | Sequence[float] | None,
    on: AdaptOn,
    epochs: int | Sequence[int] | None,
    part: str | None,
    start: FinetuneFrom | None,
    newcomers_every: int | None,
    eval_every: int,
) -> EvaluationOptions:
    """What is measured in addition; ConfigError for options of fine-tuning that are out of range or lack the rate."""
    rates, counts = values_of(lr), values_of(epochs)
    for name, values, least in (("lr", rates, 0), ("epochs", counts, 1)):
        require(len(values) > 0, f"trainer.finetune_{name} is an empty list. Give a value, or leave it out.")
        require(len(set(values)) == len(values), f"trainer.finetune_{name} is {values}; give each value once.")
        wrong = [value for value in values if value is not None and not value >= least]
        require(not wrong, f"trainer.finetune_{name} is {', '.join(map(str, wrong))}; give {least} or more.")
    for name, value in (("epochs", epochs), ("part", part), ("from", start)):
        require(
            value is None or lr is not None,
            f"trainer.finetune_{name} is {value}, but trainer.finetune_lr is not given, so nothing is fine-tuned. Give "
            f"the rate, such as 0.01, or leave finetune_{name} out.",
        )
    require(
        newcomers_every is None or (newcomers_every >= 1 and newcomers_every % eval_every == 0),
        f"trainer.newcomers_every is {newcomers_every}, but newcomers are measured in evaluated rounds, and "
        f"trainer.eval_every is {eval_every}. Give a multiple of it, or leave it out to measure after the last round.",
    )
    finetune = tuple(Adaptation(rate, on, count, part) for rate in rates for count in counts if rate is not None)
    return EvaluationOptions(extra_metrics, finetune, start or "personal", seed, newcomers_every)


def values_of(value: Any) -> list[Any]:
    """The values of an option that is one value, or several."""
    return [*value] if isinstance(value, Sequence) else [value]


def check_adaptation(client: Client, data: FederatedDataModule, measures: EvaluationOptions) -> None:
    """Refuse to adapt personal models on adaptation data that do not exist."""
    first = measures.finetune[0] if measures.finetune else None
    if first is not None:
        check_trained_part(client.net, first.part, "trainer.finetune_part")
    require(
        len(measures.finetune) < 2 or bool(data.everyone.val.sizes.any()),
        "trainer.finetune_lr or trainer.finetune_epochs has several values, of which validation takes the best, but no "
        "user has validation samples. Set data.val_fraction to 0.1, or give one value.",
    )
    steps = {"model.adapt_on": client.personal_model().adaptation, "trainer.finetune_on": first}
    for name, step in steps.items():
        if step is not None and step.on == "adapt" and not data.everyone.adapt.sizes.any():
            raise ConfigError(
                f"{name} is 'adapt', but no client has adaptation data (data.adapt_fraction is 0). Set "
                "data.adapt_fraction to 0.1, or adapt on train or test."
            )


def check_newcomers(data: FederatedDataModule, measures: EvaluationOptions) -> None:
    """Refuse newcomers who cannot be measured, and to ask for them if nobody is held back."""
    check_not_fresh(data)
    require(
        data.newcomer_data is None or bool(data.newcomer_data.everyone.test.sizes.any()),
        f"data.newcomers is {data.newcomers}, but no client that is held back has test samples. Set data.test_fraction "
        "to 0.2, or data.eval_clients to a larger number.",
    )
    require(
        measures.newcomers_every is None or data.newcomer_data is not None,
        f"trainer.newcomers_every is {measures.newcomers_every}, but data.newcomers is 0, so no client is held back. "
        "Set data.newcomers to 0.2, for example, or leave newcomers_every out.",
    )


def check_extra_metrics(data: FederatedDataModule, measures: EvaluationOptions) -> None:
    """Refuse a global objective over a population that changes every round."""
    if data.is_fresh and measures.extra_metrics:
        raise ConfigError(
            f"trainer.extra_metrics asks for {measures.extra_metrics[0]}, the objective over all clients' training "
            "data, but data.fresh draws new clients every round. Leave one of them out."
        )


def check_monitors(client: Client, data: FederatedDataModule, callbacks: Sequence[Callback]) -> None:
    """Refuse callbacks that monitor a metric which is not measured."""
    known = round_columns(
        client, MetricGroups(finetuned=True, newcomers=True, finetuned_newcomers=True, extra=EXTRA_METRICS)
    )
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
