"""Natural: every row has a known owner (a role of a play, a domain, a user), and nothing is drawn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlit.data.partition.base import Labels, Partition, Parts
from fedlit.errors import DataError


class Natural(Partition):
    """One client per owner, in the sorted order of the owners' ids; `client_names` keeps the ids.

    Args:
        owners: whose sample it is, a whole number or a name for each row of the data set
    """

    def __init__(self, *, owners: Sequence[int] | Sequence[str] | NDArray[Any]) -> None:
        names, self._owners = np.unique(np.asarray(owners), return_inverse=True)
        self.client_names: list[int | str] = names.tolist()

    def assign(self, labels: Labels, seed: int) -> Parts:
        if len(self._owners) != len(labels.y):
            raise DataError(
                f"data.partition.owners has {len(self._owners)} entries, but the data set has {len(labels.y)} rows. "
                "Give one owner for each row."
            )
        rows = labels.rows
        owners = self._owners[rows]
        ends = np.cumsum(np.bincount(owners, minlength=len(self.client_names)))
        return Parts(np.split(rows[np.argsort(owners, kind="stable")], ends[:-1]))
