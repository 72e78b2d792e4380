"""Checks of clock, cloud and buffer with the algorithm, the data and each other, before any work."""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from pytorch_lightning import Callback

from fedlit.client.base import Client
from fedlit.client.cohort import Selection
from fedlit.clock import Clock
from fedlit.data.base import FederatedDataModule
from fedlit.errors import ConfigError
from fedlit.keys import Purpose, generator
from fedlit.server.base import ServerCallback
from fedlit.server.buffer import Buffer
from fedlit.server.cloud import Cloud
from fedlit.server.optimizers import SGD, ServerOptimizer
from fedlit.server.sampling import Sampler

log = logging.getLogger("fedlit")


def check_clock(
    client: Client,
    data: FederatedDataModule,
    callbacks: Sequence[Callback],
    sampler: Sampler,
    clock: Clock | None,
    seed: int,
) -> None:
    """Check that the sampler has the clock it needs, and that no lost report is one that the algorithm counts on."""
    if clock is None:
        if sampler.needs_clock:
            raise ConfigError(
                f"trainer.sampler is {type(sampler).__name__}, which goes by arrivals, but there is no trainer.clock. "
                "Give one."
            )
        return
    if not clock.latency.is_recorded:  # a trace may lack clients that never take part; it is played later
        clock.latency.durations(seed, 0, np.arange(data.num_clients), 1)
    if clock.deadline is not None or clock.dropout:
        needing = [one for one in callbacks if isinstance(one, ServerCallback) and one.needs_reports]
        if needing:
            raise ConfigError(
                f"trainer.clock has a deadline or dropout, but {type(needing[0]).__name__} of {type(client).__name__} "
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
    """Several servers need clients that stay, callbacks whose state can be mixed, and a clock for their order."""
    if cloud is None:
        return
    if client.pools_data or data.is_fresh:
        what = "pools everybody's data" if client.pools_data else "draws new clients every round (data.fresh)"
        raise ConfigError(f"trainer.cloud divides clients among servers, but this run {what}. Leave one of them out.")
    if cloud.servers_per_step < cloud.servers and clock is None:
        raise ConfigError(
            f"trainer.cloud.first is {cloud.servers_per_step} of {cloud.servers} servers, but there is no "
            "trainer.clock to say which are first. Give one, or leave first out."
        )
    same_groups = cloud.protocol == "rigorous" or cloud.servers % cloud.servers_per_step == 0
    if cloud.servers_per_step < cloud.servers and same_groups and clock is not None and clock.latency.is_constant:
        raise ConfigError(
            f"trainer.cloud.first is {cloud.servers_per_step} of {cloud.servers} servers, but trainer.clock gives "
            "every client the same seconds: the same servers would step together for ever, and never connect with the "
            "others. Give a latency that varies, or leave first out."
        )
    if sampler.names_clients and cloud.servers > 1:
        raise ConfigError(
            f"trainer.sampler is {type(sampler).__name__}, a list of clients, but each of {cloud.servers} servers "
            "counts its own clients from 0. Take another sampler, or leave trainer.cloud out."
        )
    for callback in callbacks:
        reason = (callback.single_server_reason or callback.alone) if isinstance(callback, ServerCallback) else ""
        if reason and cloud.servers > 1:
            raise ConfigError(
                f"{type(client).__name__} cannot have {cloud.servers} servers: {type(callback).__name__} keeps a state "
                f"that makes no sense there, because {reason}. Leave trainer.cloud out, or take another algorithm."
            )


def warn_mixing_has_no_effect(client: Client, optimizer: ServerOptimizer, cloud: Cloud | None) -> None:
    """Warn if every server's step ends in its own clients' mean: then the servers never influence each other."""
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
    """A buffer needs one server, a clock, enough clients that stay, and that every client that trains reports."""
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
            "trainer.clock has a deadline or dropout, but with trainer.buffer the server does not wait, and every "
            "report is used, however late. Leave both out, or the buffer."
        )
    if buffer.concurrency > clients:
        raise ConfigError(
            f"trainer.buffer.concurrency is {buffer.concurrency}, but the data ({type(data).__name__}) have only "
            f"{clients} clients to train on. Set it to {clients} or less, or make more clients (data.num_clients)."
        )
    if not sampler.draws_from_subset or sampler.cohort_size(buffer.concurrency, data.num_clients) != buffer.concurrency:
        raise ConfigError(
            f"trainer.sampler is {type(sampler).__name__}, but with trainer.buffer a client is drawn whenever one "
            "reports, among those that are not in flight. Use 'uniform', 'size' or 'earliest'."
        )
    alone = client.select(Selection([0], [0]), data.num_clients, generator(0, Purpose.COHORT))
    if len(alone.train) > 1:
        raise ConfigError(
            f"{name} lets clients train that do not report, round by round, but with trainer.buffer a client trains on "
            f"what it was sent, and reports. Turn that off in the options of {name}, or leave the buffer out."
        )


def check_discount(buffer: Buffer, callbacks: Sequence[Callback]) -> None:
    """Refuse a discount that has no effect, because a callback replaces the average."""
    averaging = [one for one in callbacks if isinstance(one, ServerCallback) and one.replaces_average]
    discounted = bool((buffer.discounts(torch.arange(1, 1001)) != 1).any())
    if averaging and discounted:
        raise ConfigError(
            f"trainer.buffer.discount would have no effect: {type(averaging[0]).__name__} puts an average of the "
            "clients' models in the place of the reports' moves. Set trainer.buffer.discount to constant."
        )
