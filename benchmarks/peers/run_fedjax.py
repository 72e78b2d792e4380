"""FedJAX: its `federated_averaging`, with a network in plain JAX that has torch's weights and layouts.

Every batch is full: FedJAX fills the last one of an epoch from the next, so that one program fits all. Here each client
does as many steps as elsewhere, hence a few rows more.
"""

from collections.abc import Sequence
from importlib import metadata
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Peer:
    """One process; XLA has its threads."""

    version = f"FedJAX {metadata.version('fedjax')}, JAX {jax.__version__}"
    processes = 1

    def __init__(self, work: Any) -> None:
        self.work, self.threads = work, work.cores
        self.key = jax.random.PRNGKey(0)
        self.clients = [Client(work, k) for k in range(len(work.clients))]
        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            jax.grad(lambda params, batch, rng: loss(work.layers, params, batch)),
            fedjax.optimizers.sgd(learning_rate=work.lr),
            fedjax.optimizers.sgd(learning_rate=1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size),
        )

    def start(self, weights: Sequence[np.ndarray]) -> None:
        """A new server."""
        self.state = self.algorithm.init([jnp.asarray(value) for value in weights])

    def round(self, cohort: Sequence[int]) -> int:
        """One round; JAX computes in the background, so wait for it."""
        self.key, *keys = jax.random.split(self.key, len(cohort) + 1)
        chosen = [(k, self.clients[k], key) for k, key in zip(cohort, keys, strict=True)]
        self.state, _ = self.algorithm.apply(self.state, chosen)
        jax.block_until_ready(self.state.params)
        return sum(self.work.steps_of(k) for k in cohort)

    def weights(self) -> list[np.ndarray]:
        """The server's."""
        return [np.asarray(value) for value in self.state.params]


class Client(fedjax.ClientDataset):  # type: ignore[misc]  # FedJAX is not installed where this is checked
    """A client's rows, with a number of steps of its own."""

    def __init__(self, work: Any, client: int) -> None:
        rows = work.clients[client]
        super().__init__({"x": work.x[rows], "y": work.y[rows]})
        self.steps = work.steps_of(client)

    def shuffle_repeat_batch(self, hparams: Any) -> Any:
        """Shuffled batches, as many as every framework does."""
        return super().shuffle_repeat_batch(hparams, num_epochs=None, num_steps=self.steps)


def loss(layers: Sequence[str], params: Sequence[jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """The mean cross-entropy of a batch."""
    logits = forward(layers, params, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def forward(layers: Sequence[str], params: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    """Logits; a layer with weights takes the next two of them."""
    left = iter(params)
    for layer in layers:
        if layer == "linear":
            x = x @ next(left).T + next(left)
        elif layer == "conv":
            x = jax.lax.conv_general_dilated(x, next(left), (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"))
            x = x + next(left)[:, None, None]
        elif layer == "pool":
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        elif layer == "relu":
            x = jax.nn.relu(x)
        else:
            x = x.reshape(len(x), -1)
    return x
