"""Shakespeare by role: a client is a role; x is 80 characters of its text, y the next one, or the next of each.

A window (80 characters and the next) begins at every character of a role's text, and none is stored: the store has each
character once, and a row number is the position of a window in it. The network sees the numbers of the characters.

Windows overlap: neighbours share 79 of their 80 characters. `split: shuffled` therefore tests on text that was also
trained on, only at other offsets; `split: tail` tests on the end of what each role says, and only the first 80 windows
of the test reach back into training text. LEAF's own split_data.py also tests on the end, and drops the 79 windows
before it. Validation windows are drawn among the training windows in both cases; `split: ordered` validates on the text
just before that of the test instead, so that what is chosen by validation does not profit from known text.

Caldas et al., LEAF: a benchmark for federated settings (2018). FedBC: 138 roles of at least 20 samples, 80/20; which
roles of LEAF's these were is not known.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedlit import keys
from fedlit.data.base import FederatedDataModule, Store
from fedlit.data.files.shakespeare import ALPHABET, LAYOUT, WINDOW, Texts, read_shakespeare
from fedlit.data.partition.base import Parts, RowNumbers
from fedlit.errors import DataError, require
from fedlit.files import data_root
from fedlit.keys import Purpose


class Shakespeare(FederatedDataModule):
    """Shakespeare by role: guess the next character. Defaults: FedBC's number of roles.

    With `every_position` it is guessed after each of the 80 characters (model.task: next_token).

    `client_names` has the role of each client in alphabetical order, `groups` its play; both are filled by `setup`.

    Args:
        root: folder of the data sets, which has shakespeare/roles.json; FEDLIT_DATA or ./data when not given
        num_clients: N: number of roles, drawn by the seed; null for all that have enough samples
        min_samples: fewest samples of a role that may be drawn
        max_samples_per_client: most samples of a role, drawn by the seed before its split; all when not given
        half: the first or the second half of the roles, divided by the seed: one to pre-train a net, the other to go on
            with it; all roles when not given
        every_position: y is the next character after each of the 80, instead of after the last one
        common: options of every data set (FederatedDataModule): test_fraction, val_fraction, split, seed ...
    """

    def __init__(
        self,
        root: str | None = None,
        *,
        num_clients: int | None = 138,
        min_samples: int = 20,
        max_samples_per_client: int | None = None,
        half: Literal["first", "second"] | None = None,
        every_position: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        require(
            num_clients is None or num_clients >= 1,
            f"data.num_clients is {num_clients}. Set it to 1 or more, or to null for all roles.",
        )
        require(min_samples >= 1, f"data.min_samples is {min_samples}. Set it to 1 or more.")
        require(
            max_samples_per_client is None or max_samples_per_client >= 1,
            f"data.max_samples_per_client is {max_samples_per_client}. Set it to 1 or more, or leave it out.",
        )
        require(half in (None, "first", "second"), f"data.half is '{half}'. Give first or second, or leave it out.")
        self.root = data_root(root)
        self.roles_wanted = num_clients  # the property `num_clients` counts the clients that were built
        self.min_samples = min_samples
        self.max_samples_per_client = max_samples_per_client
        self.half = half
        self.every_position = every_position
        self.client_names: list[str] = []

    def build(self) -> tuple[Store, Parts]:
        texts = read_shakespeare(self.root)
        roles = self._choose(texts)
        self.client_names = [texts.roles[role] for role in roles]
        windows = [self._draw(texts, role) for role in roles]
        return {"x": torch.from_numpy(texts.symbols)}, Parts(windows, groups=[texts.plays[role] for role in roles])

    def _choose(self, texts: Texts) -> list[int]:
        """The roles that become clients, by their numbers in `texts`."""
        sizes = texts.sizes
        by_name = sorted(range(len(texts.roles)), key=texts.roles.__getitem__)
        eligible = self._half_of([role for role in by_name if sizes[role] >= self.min_samples])
        wanted = len(eligible) if self.roles_wanted is None else self.roles_wanted
        if not 1 <= wanted <= len(eligible):
            where = f" and are in the {self.half} half" if self.half else ""
            raise DataError(
                f"data.num_clients is {'null (all)' if self.roles_wanted is None else wanted}, but {len(eligible)} of "
                f"the {len(by_name)} roles in {self.root / LAYOUT.folder} have {self.min_samples} samples or more"
                f"{where}. Lower data.num_clients or data.min_samples."
            )
        drawn = keys.generator(self.seed, Purpose.DATA).choice(len(eligible), wanted, replace=False)
        return [eligible[k] for k in np.sort(drawn)]

    def _half_of(self, roles: list[int]) -> list[int]:
        """One half of these roles, in their order, or all of them."""
        if self.half is None:
            return roles
        order = keys.generator(self.seed, Purpose.DATA, index=2).permutation(len(roles))
        middle = (len(roles) + 1) // 2
        chosen = order[:middle] if self.half == "first" else order[middle:]
        return [roles[k] for k in np.sort(chosen)]

    def _draw(self, texts: Texts, role: int) -> RowNumbers:
        """The windows of a role in the order of its text; the draw does not depend on the other roles."""
        positions = texts.positions(role)
        if self.max_samples_per_client is None or len(positions) <= self.max_samples_per_client:
            return positions
        generator = keys.generator(self.seed, Purpose.DATA, client=role, index=1)
        return np.sort(generator.choice(positions, self.max_samples_per_client, replace=False))

    def rows(self, store: Store, index: Tensor) -> tuple[Tensor, Tensor]:
        """x (rows, 80): numbers of characters; y (rows,): the next one, or (rows, 80) with `every_position`."""
        windows = store["x"].unfold(0, WINDOW + 1, 1)  # a view: windows take no memory until they are gathered
        gathered = windows.index_select(0, index).to(torch.int64)
        return gathered[:, :WINDOW], gathered[:, 1:] if self.every_position else gathered[:, WINDOW]

    def labels(self, store: Store, index: Tensor) -> Tensor:
        """The character after each window."""
        return store["x"].index_select(0, index + WINDOW).to(torch.int64)

    def count_rows(self, store: Store) -> int:
        """The number of windows: the last one needs 80 characters and the next."""
        return len(store["x"]) - WINDOW

    def count_classes(self, store: Store) -> int:
        return len(ALPHABET)
