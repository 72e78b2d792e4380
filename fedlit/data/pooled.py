"""Pooled: the training data of all clients as one client's, for comparison with training without federation."""

from collections.abc import Sequence

from torch import Tensor

from fedlit.data.base import ClientData, FederatedDataModule
from fedlit.data.ragged import Ragged


class Pooled:
    """A population of one client that holds the union of all training sets; tests stay where they are."""

    num_clients = 1

    def __init__(self, data: FederatedDataModule) -> None:
        self.data = data

    @property
    def sizes(self) -> Tensor:
        """(1,): the number of training samples of all clients; a shared sample counts for each of them."""
        return self.data.sizes.sum().reshape(1)

    def load(self, round: int, ids: Sequence[int]) -> ClientData:
        """The training data of all clients of a round."""
        everyone = self.data.load(round, range(self.data.num_clients))
        nothing, train = Ragged.empty(1), Ragged.of([everyone.train.joined])
        return ClientData(
            everyone.store,
            train,
            val=nothing,
            test=nothing,
            adapt=nothing,
            groups=[""],
            vary=everyone.vary,
            largest=int(train.sizes[0]),
        )
