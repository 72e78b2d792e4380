"""FedJAX: its `federated_averaging`, with a network in plain JAX.

Every batch is full: FedJAX fills the last one of an epoch from the next, so that one program fits all. Here each client
does as many steps as elsewhere, hence a few rows more. JAX is set as it is fastest here; docs/peers.md says how much
each setting gives.
"""

import os
from collections.abc import Sequence
from importlib import metadata
from typing import Any

XLA_FLAGS = "--xla_cpu_use_thunk_runtime=false --xla_force_host_platform_device_count={devices}"
"""The older CPU runtime, and the devices that `pmap` divides clients among; read when JAX first computes."""
os.environ["JAX_PMAP_NO_RANK_REDUCTION"] = "0"  # FedJAX's pmap expects it; read when JAX is imported

import fedjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

FILTERS_LAST = (2, 3, 1, 0)
"""Of torch's filters (out, in, height, width) to (height, width, in, out)."""


class Peer:
    """One process; XLA has its threads."""

    version = f"FedJAX {metadata.version('fedjax')}, JAX {jax.__version__}"
    processes = 1

    def __init__(self, work: Any) -> None:
        self.work, self.threads = work, work.cores
        convolves = "conv" in work.layers  # then a step is long enough to be worth a device of its own for each client
        os.environ["XLA_FLAGS"] = XLA_FLAGS.format(devices=work.cores if convolves else 1)
        fedjax.set_for_each_client_backend("pmap" if convolves else "jit")
        jax.config.update("jax_cpu_enable_async_dispatch", convolves)  # a small step is quicker where it is called
        self.key = jax.random.PRNGKey(0)
        x = work.x.transpose(0, 2, 3, 1).copy() if convolves else work.x
        self.clients = [Client(work, x, k) for k in range(len(work.clients))]
        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            jax.grad(lambda params, batch, rng: loss(work.layers, params, batch)),
            fedjax.optimizers.sgd(learning_rate=work.lr),
            fedjax.optimizers.sgd(learning_rate=1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size),
        )

    def start(self, weights: Sequence[np.ndarray]) -> None:
        """A new server."""
        self.state = self.algorithm.init([jnp.asarray(channels_last(value)) for value in weights])

    def round(self, cohort: Sequence[int]) -> int:
        """One round; JAX computes in the background, so wait for it."""
        self.key, *keys = jax.random.split(self.key, len(cohort) + 1)
        chosen = [(k, self.clients[k], key) for k, key in zip(cohort, keys, strict=True)]
        self.state, _ = self.algorithm.apply(self.state, chosen)
        jax.block_until_ready(self.state.params)
        return sum(self.work.steps_of(k) for k in cohort)

    def weights(self) -> list[np.ndarray]:
        """The server's, in torch's layout."""
        return [channels_first(np.asarray(value)) for value in self.state.params]


class Client(fedjax.ClientDataset):  # type: ignore[misc]  # FedJAX is not installed where this is checked
    """A client's rows, with a number of steps of its own."""

    def __init__(self, work: Any, x: np.ndarray, client: int) -> None:
        rows = work.clients[client]
        super().__init__({"x": x[rows], "y": work.y[rows]})
        self.steps = work.steps_of(client)

    def shuffle_repeat_batch(self, hparams: Any) -> Any:
        """Shuffled batches, as many as every framework does."""
        return super().shuffle_repeat_batch(hparams, num_epochs=None, num_steps=self.steps)


def loss(layers: Sequence[str], params: Sequence[jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """The mean cross-entropy of a batch."""
    logits = forward(layers, params, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def forward(layers: Sequence[str], params: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    """Logits; a layer with weights takes the next two of them. Pictures have their channels last."""
    left = iter(params)
    for layer in layers:
        if layer == "linear":
            x = x @ next(left).T + next(left)
        elif layer == "conv":
            x = jax.lax.conv_general_dilated(x, next(left), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = x + next(left)
        elif layer == "pool":
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        elif layer == "relu":
            x = jax.nn.relu(x)
        else:  # the next layer's weights expect torch's order
            x = (x.transpose(0, 3, 1, 2) if x.ndim == 4 else x).reshape(len(x), -1)
    return x


def channels_last(weights: np.ndarray) -> np.ndarray:
    """Filters as XLA's CPU takes them fastest; other weights as they are."""
    return weights.transpose(FILTERS_LAST) if weights.ndim == 4 else weights


def channels_first(weights: np.ndarray) -> np.ndarray:
    """Back to torch's layout."""
    return weights.transpose(np.argsort(FILTERS_LAST)) if weights.ndim == 4 else weights
