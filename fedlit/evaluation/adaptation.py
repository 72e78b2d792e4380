"""Adaptation before a measurement: plain SGD on f_i with some of a user's own data, then forgotten.

    x <- x - lr grad f_i(x; B)        for every mini-batch B, in evaluation mode

Per-FedAvg's personal model is the case of one step on the first batch. Fine-tuning for several epochs is the other one:
its batches are drawn from (seed, round, user), so no draw depends on who is measured beside a user. Evaluation mode
means that dropout is off and that BatchNorm uses the statistics of the model, which stay as they are.

In several epochs many users take their steps together. Who is in a group depends on the data alone, so a resumed run,
and a run of several processes, has the same groups and the same bits.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedlit.client.net_parts import parameters_of, trained
from fedlit.client.step import Adaptation
from fedlit.client.tasks import LOSSES
from fedlit.data.ragged import Ragged
from fedlit.engines.base import BatchPlan, plan_batches
from fedlit.engines.forward import CHUNK, HELD_BYTES
from fedlit.evaluation.evaluator import Evaluator, pooled_value
from fedlit.inputs import Inputs, mapped
from fedlit.keys import Purpose, generator
from fedlit.metrics.measures import Measure
from fedlit.metrics.user_scores import OwnScores
from fedlit.params import Params, per_client, row, stack

log = logging.getLogger("fedlit")

Model = Mapping[str, Tensor]


@dataclass(frozen=True)
class GroupStep:
    """A mini-batch of each user of a group."""

    index: Tensor
    """(users, batch) row numbers; the last ones of a batch may be padding."""
    counts: Tensor
    """(users,) how many of them are real."""

    @classmethod
    def of(cls, plans: Sequence[BatchPlan], number: int) -> "GroupStep":
        """The batches with this number, of the users who have so many; these are the first of the group."""
        active = [plan for plan in plans if number < len(plan.counts)]
        index = np.stack([plan.index[number] for plan in active])
        return cls(torch.from_numpy(index), torch.tensor([int(plan.counts[number]) for plan in active]))


class Adapter:
    """Adapts users' models.

    Args:
        evaluator: has the client and the data, and computes gradients.
        seed: of the run, in the key of shuffled batches.
    """

    def __init__(self, evaluator: Evaluator, seed: int) -> None:
        self.evaluator, self.seed = evaluator, seed
        self.client, self.data = evaluator.client, evaluator.data
        self.why_not_stacked: str | None = None
        """Why users take their steps one after the other; None if they do not, or did not try yet."""
        self._is_tried = False

    def adapted(self, model: Model, user: int, steps: Iterable[Adaptation], round: int = 0) -> Model:
        """A user's model after these adaptations, one after the other."""
        for step in steps:
            for rows in self._batches(user, step, round):
                slope = self.evaluator.gradient(model, rows)
                model = dict(model) | {name: model[name] - step.lr * slope[name] for name in self._moved(step)}
        return model

    def groups(self, users: Sequence[int], steps: Sequence[Adaptation]) -> list[list[int]]:
        """The users, in groups that are adapted together; each alone if there are no epochs."""
        last = self._epochs_of(steps)
        if last is None:
            return [[user] for user in users]
        sizes, width = self._rows_of(last).sizes, self._width(last)
        ordered = sorted(users, key=lambda user: (-sizes[user], user))
        return [ordered[start : start + width] for start in range(0, len(ordered), width)]

    def cost(self, user: int, steps: Sequence[Adaptation]) -> int:
        """About how many rows the epochs pass through the net: processes get about equal sums."""
        last = self._epochs_of(steps)
        return 0 if last is None else int(self._rows_of(last).sizes[user]) * (last.epochs or 0)

    def group(
        self, users: Sequence[int], model_of: Callable[[int], Model], steps: Sequence[Adaptation], round: int
    ) -> Iterator[Model]:
        """The adapted models of one of the `groups`, in its order."""
        last = self._epochs_of(steps)
        if last is None or len(users) == 1 or not self._rows_of(last).sizes[users[0]]:
            yield from (self.adapted(model_of(user), user, steps, round) for user in users)
            return
        models = [self.adapted(model_of(user), user, steps[:-1], round) for user in users]
        if self._can_stack(models, users, last, round):
            yield from self._stacked(models, users, last, round)
        else:
            yield from (self.adapted(model, user, [last], round) for model, user in zip(models, users, strict=True))

    def measured(
        self, users: Sequence[int], model_of: Callable[[int], Model], steps: Sequence[Adaptation], round: int
    ) -> dict[int, OwnScores]:
        """User -> scores on its own test, of its model after these adaptations; processes share the users."""
        groups = self.groups(users, steps)
        if not groups:
            return {}
        scored = self._scored(groups, self.data.everyone.test, model_of, steps, round)
        return self.evaluator.own_scores([user for group in groups for user in group], scored)

    def validated(
        self, model_of: Callable[[int], Model], steps: Sequence[Adaptation], round: int, measure: Measure
    ) -> tuple[float, float]:
        """A measure and the mean loss of all users' adapted models, each on its own validation rows, pooled."""
        rows = self.data.everyone.val
        scored = self._scored(self.groups(rows.sizes.nonzero()[0].tolist(), steps), rows, model_of, steps, round)
        return pooled_value(measure, scored), float(scored[LOSSES].double().mean())

    def _scored(
        self,
        groups: Sequence[Sequence[int]],
        rows: Ragged,
        model_of: Callable[[int], Model],
        steps: Sequence[Adaptation],
        round: int,
    ) -> Params:
        """Losses and summands of each user's adapted model on its part of these rows, one user after the other."""
        costs = [sum(int(rows.sizes[user]) + self.cost(user, steps) for user in group) for group in groups]

        def rows_of(numbers: list[int]) -> Params:
            return self.evaluator.rows_of_each(
                (model, rows[user])
                for number in numbers
                for user, model in zip(groups[number], self.group(groups[number], model_of, steps, round), strict=True)
            )

        lengths = [sum(int(rows.sizes[user]) for user in group) for group in groups]
        return self.evaluator.ranks.split_work(costs, rows_of, lengths)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def _epochs_of(self, steps: Sequence[Adaptation]) -> Adaptation | None:
        """The last adaptation, if it takes whole epochs; only fine-tuning does."""
        return steps[-1] if steps and steps[-1].epochs is not None else None

    def _rows_of(self, step: Adaptation) -> Ragged:
        rows: Ragged = getattr(self.data.everyone, step.on)
        return rows

    def _moved(self, step: Adaptation) -> list[str]:
        """Names of the parameters that change."""
        return parameters_of(self.client.net, step.part)

    def _batch_size(self, step: Adaptation) -> int:
        """Rows of a batch with its padding: `batch_size`, or less if no user ever fills it."""
        return max(1, min(self.client.batch_size, int(self._rows_of(step).sizes.max())))

    def _width(self, step: Adaptation) -> int:
        """Users of a group: so many that neither their batches nor their models take much memory."""
        model = sum(value.nbytes for value in trained(self.client.net).values())
        return max(1, min(CHUNK // self._batch_size(step), int(HELD_BYTES / max(1, model))))

    def _batches(self, user: int, step: Adaptation, round: int) -> list[Tensor]:
        """The rows of each of a user's batches."""
        rows = self._rows_of(step)[user]
        if len(rows) == 0:
            return []
        if step.epochs is None:
            return [rows[: self.client.batch_size]]
        plan = self._plan(user, step, round)
        return [torch.from_numpy(index[:count].copy()) for index, count in zip(plan.index, plan.counts, strict=True)]

    def _plan(self, user: int, step: Adaptation, round: int) -> BatchPlan:
        """Shuffled passes over a user's rows; every row is in one batch of each pass."""
        rows, size = self._rows_of(step)[user], self._batch_size(step)
        per_epoch = -(-len(rows) // size)
        drawn = generator(self.seed, Purpose.FINETUNE, round=round, client=user)
        return plan_batches(drawn, rows.numpy(), per_epoch * (step.epochs or 0), size, per_epoch)

    # ---- many users at once ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _stacked(self, models: Sequence[Model], users: Sequence[int], step: Adaptation, round: int) -> list[Params]:
        """The models of a group, whose users with the most rows come first, after all steps of each."""
        plans = [self._plan(user, step, round) for user in users]
        fixed = stack(models)
        moved = {name: fixed.pop(name) for name in self._moved(step)}
        for number in range(len(plans[0].counts)):
            batches = GroupStep.of(plans, number)
            active = len(batches.counts)  # who is finished stays as it is
            at = {name: value[:active] for name, value in moved.items()}
            slope = self._slopes(at, {name: value[:active] for name, value in fixed.items()}, batches)
            for name, value in at.items():
                value -= step.lr * slope[name]
            self.evaluator.ranks.heartbeat()
        return [row(fixed | moved, k) for k in range(len(users))]

    def _slopes(self, at: Params, fixed: Params, batches: GroupStep) -> Params:
        """Stacked: each user's gradient of f_i on its batch, in evaluation mode, for the parameters `at`."""
        client, device = self.client, self.evaluator.device
        store = device.store(self.data.store)
        size = batches.index.shape[1]
        is_real = torch.arange(size) < batches.counts[:, None]

        def loss(at: Params, fixed: Params, x: Inputs, y: Tensor, is_real: Tensor) -> Tensor:
            return (client.row_losses(client.output(at | fixed, x), y) * is_real).sum()

        with self.evaluator.evaluating(), device.computing():
            x, y = self.data.plain_rows(store, device.put(batches.index.reshape(-1)))
            x, y = (mapped(lambda one: one.view(-1, size, *one.shape[1:]), part) for part in (x, y))
            sums = vmap(grad(loss))(dict(device.sent(at)), dict(device.sent(fixed)), x, y, device.put(is_real))
        slopes = {name: value / per_client(batches.counts, value) for name, value in device.home(sums).items()}
        return {name: value + client.l2 * at[name] for name, value in slopes.items()} if client.l2 else slopes

    def _can_stack(self, models: Sequence[Model], users: Sequence[int], step: Adaptation, round: int) -> bool:
        """Whether the net's gradient can be mapped over models; tried once, on the first group's first batches."""
        if not self._is_tried:
            self._is_tried = True
            fixed = stack(models[:2])
            at = {name: fixed.pop(name) for name in self._moved(step)}
            plans = [self._plan(user, step, round) for user in users[:2]]
            batches = GroupStep.of(plans, 0)
            at, fixed = ({name: value[: len(batches.counts)] for name, value in part.items()} for part in (at, fixed))
            try:
                self._slopes(at, fixed, batches)
            except Exception as error:  # a net that reads the value of a tensor cannot be mapped over models
                self.why_not_stacked = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                log.info(f"Users are fine-tuned one after the other ({self.why_not_stacked}). It takes longer.")
        return self.why_not_stacked is None
