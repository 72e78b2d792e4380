"""What trainer, client and data cannot do together: refused here, before any work, each with its reason."""

from collections.abc import Sequence

import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from fedlit.client import Client
from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError
from fedlit.server.sampling import Sampler
from fedlit.server.weights import Weighting

REFUSED_TRAINER_ARGUMENTS = {
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
) -> None:
    """Refuse what would fail, or deceive, later. The data are set up."""
    check_cohort(data, sampler, clients_per_round)
    check_weighting(client, weighting)
    check_monitors(data, callbacks)
    check_net(client, data)


def check_cohort(data: FederatedDataModule, sampler: Sampler, clients_per_round: int) -> None:
    """The sampler must be able to draw a cohort."""
    if clients_per_round > data.num_clients:
        raise ConfigError(
            f"trainer.clients_per_round is {clients_per_round}, but the data ({type(data).__name__}) have only "
            f"{data.num_clients} clients. Set it to {data.num_clients} or less, or make more clients "
            "(data.num_clients)."
        )
    sampler.select(0, 0, data.sizes.numpy(), clients_per_round)


def check_weighting(client: Client, weighting: Weighting) -> None:
    """A weighting reads only states that the algorithm keeps."""
    missing = [name for name in weighting.needs_state if name not in client.state_spec()]
    if missing:
        raise ConfigError(
            f"trainer.weights is {type(weighting).__name__}, which reads each client's '{missing[0]}', but "
            f"{type(client).__name__} keeps none. Use 'samples' or 'uniform', or an algorithm that keeps it."
        )


def check_monitors(data: FederatedDataModule, callbacks: Sequence[Callback]) -> None:
    """Nothing can be monitored on validation data that do not exist."""
    for callback in callbacks:
        if len(data.global_val) or not isinstance(callback, EarlyStopping | ModelCheckpoint):
            continue
        if str(callback.monitor).startswith("val/"):
            raise ConfigError(
                f"{type(callback).__name__} monitors '{callback.monitor}', but there is no validation data "
                "(data.val_fraction is 0). Set data.val_fraction to 0.1, or remove the callback."
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
