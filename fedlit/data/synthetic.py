"""Synthetic(α, β): softmax data whose models (α) and inputs (β) differ from client to client.

Li et al., Federated Optimization in Heterogeneous Networks (FedProx, 2020), and its public generator; also the
synthetic data of FedBC (30, 70 or 100 clients) and of pFedMe (100 clients, sizes times 5).

    sizes      n_i = size_factor (floor(lognormal(size_mean, size_sigma)) + size_min)
    model      u_i ~ N(0, α)     W_i entries ~ N(u_i, 1)     c_i entries ~ N(u_i, 1)        the same u_i in both
    inputs     B_i ~ N(0, β)     v_i entries ~ N(B_i, 1)     x ~ N(v_i, diag(j^-1.2)), j = 1 .. num_features
    labels     y = argmax(W_i^T x + c_i)

Readings: α and β are standard deviations, as in the public code, although the papers print N(0, α) as if they were
variances (`as_variance` takes them so). `iid`: one W and c with entries ~ N(0, 1), and v = 0, for all clients;
α and β then have no effect. Labels are computed in float64, x is kept as float32.

α has no effect on the data: u_i adds the same amount to the score of every class, so no label depends on it. The
clients' models differ by the unit variance of W_i and c_i, for any α. The papers do not say so.

The draws come from NumPy's old RandomState and not from fedlit.keys, and the sizes come first, because that gives
the sizes of the papers' code: FedBC's with seed 1, pFedMe's printed range with seed 0. Then come u, B and v of all
clients, then W, c and x client by client: the public generator's order, so the same seed gives its samples (but for
`iid`, where its code also draws models that it does not use).
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray

from fedlit.data.base import FederatedDataModule, Store
from fedlit.data.partition.base import Parts, RowNumbers
from fedlit.errors import require

Floats = NDArray[np.float64]

_LOWEST = {
    "alpha": 0,
    "beta": 0,
    "num_clients": 1,
    "num_features": 1,
    "num_classes": 2,
    "size_sigma": 0,
    "size_min": 0,
    "size_factor": 1,
}
_MOST_VALUES = 10**9  # of x in all: 4 GB, and twice that while they are drawn


class Synthetic(FederatedDataModule):
    """Synthetic(α, β): a softmax model and a Gaussian input for each client. Defaults: FedBC's, and 0.1 for validation.

    Args:
        alpha: α: standard deviation of u_i, the mean of a client's model; labels do not depend on it (see docs/data.md)
        beta: β: how much the clients' inputs differ (standard deviation of B_i)
        num_clients: N: number of clients
        num_features: length of x
        num_classes: number of classes
        size_mean: mean of the logarithm of a client's size
        size_sigma: standard deviation of the logarithm of a client's size
        size_min: samples that every client has in addition to those of the lognormal draw
        size_factor: multiplies all sizes; 5 in pFedMe
        iid: one model and one input distribution for all clients, whatever alpha and beta
        as_variance: take alpha and beta as variances, not standard deviations
        common: options of every data set (FederatedDataModule): test_fraction, val_fraction, seed ...
    """

    def __init__(
        self,
        *,
        alpha: float = 0.5,
        beta: float = 0.5,
        num_clients: int = 30,
        num_features: int = 60,
        num_classes: int = 10,
        size_mean: float = 4.0,
        size_sigma: float = 2.0,
        size_min: int = 50,
        size_factor: int = 1,
        iid: bool = False,
        as_variance: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.recipe = Recipe(
            alpha=alpha,
            beta=beta,
            num_clients=num_clients,
            num_features=num_features,
            num_classes=num_classes,
            size_mean=size_mean,
            size_sigma=size_sigma,
            size_min=size_min,
            size_factor=size_factor,
            iid=iid,
            as_variance=as_variance,
        )

    def build(self) -> tuple[Store, Parts]:
        random = RandomState(self.seed)
        sizes = draw_sizes(self.recipe, random)
        clients = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
        samples = (shared_samples if self.recipe.iid else own_samples)(self.recipe, sizes, random)
        x, y = (np.concatenate(part) for part in zip(*samples, strict=True))
        return {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, Parts(clients)

    def count_classes(self, store: Store) -> int:
        return self.recipe.num_classes


@dataclass(frozen=True)
class Recipe:
    """The options of `Synthetic`; the data module's own `num_clients` counts the clients that were built."""

    alpha: float
    beta: float
    num_clients: int
    num_features: int
    num_classes: int
    size_mean: float
    size_sigma: float
    size_min: int
    size_factor: int
    iid: bool
    as_variance: bool

    def __post_init__(self) -> None:
        options: dict[str, Any] = asdict(self)
        for name, lowest in _LOWEST.items():
            value = options[name]
            require(lowest <= value < math.inf, f"data.{name} is {value}. Set it to a number of {lowest} or more.")
        require(math.isfinite(self.size_mean), f"data.size_mean is {self.size_mean}. Set it to a finite number.")


def draw_sizes(recipe: Recipe, random: RandomState) -> RowNumbers:
    """(clients,): n_i; sizes that would not fit in memory are refused while they are floats, before they overflow."""
    drawn = random.lognormal(recipe.size_mean, recipe.size_sigma, recipe.num_clients)
    rows = recipe.size_factor * (drawn.sum() + recipe.num_clients * recipe.size_min)
    require(
        rows * recipe.num_features <= _MOST_VALUES,
        f"data.size_mean {recipe.size_mean} and data.size_sigma {recipe.size_sigma} make about {rows:.3g} samples of "
        f"{recipe.num_features} features, more than fit in memory. Lower them, data.size_factor or data.num_clients.",
    )
    return recipe.size_factor * (drawn.astype(np.int64) + recipe.size_min)


Samples = tuple[NDArray[np.float32], RowNumbers]


def own_samples(recipe: Recipe, sizes: RowNumbers, random: RandomState) -> Iterator[Samples]:
    """(x, y) of each client, from its own model and input mean."""
    n, features, classes = recipe.num_clients, recipe.num_features, recipe.num_classes
    u = random.normal(0, deviation(recipe.alpha, recipe), n)
    b = random.normal(0, deviation(recipe.beta, recipe), n)
    v = random.normal(b[:, None], 1, (n, features))
    for i, size in enumerate(sizes):
        w = random.normal(u[i], 1, (features, classes))
        c = random.normal(u[i], 1, classes)
        yield draw_samples(w, c, v[i], size, random)


def shared_samples(recipe: Recipe, sizes: RowNumbers, random: RandomState) -> Iterator[Samples]:
    """(x, y) of each client, from one model and one input distribution."""
    w = random.normal(0, 1, (recipe.num_features, recipe.num_classes))
    c = random.normal(0, 1, recipe.num_classes)
    for size in sizes:
        yield draw_samples(w, c, np.zeros(recipe.num_features), size, random)


def deviation(value: float, recipe: Recipe) -> float:
    """α or β as a standard deviation."""
    return math.sqrt(value) if recipe.as_variance else value


def draw_samples(w: Floats, c: Floats, v: Floats, size: int, random: RandomState) -> Samples:
    """x ~ N(v, diag(j^-1.2)): the covariance is diagonal, so independent normals do; y = argmax(W^T x + c)."""
    scale = np.sqrt(np.arange(1, len(v) + 1) ** -1.2)
    x = random.standard_normal((size, len(v))) * scale + v
    return x.astype(np.float32), np.argmax(x @ w + c, axis=1)
