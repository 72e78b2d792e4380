"""The reference engine: a plain PyTorch loop over clients, batches and steps. Other engines are tested against it."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.local_optimizers import LocalOptimizer
from fedlit.client.net_parts import begin_training, trained_buffers
from fedlit.client.step import Batch, Batches, Phase, StepOutput, state_name
from fedlit.engines.base import BatchPlan, Engine, Solved, Store, TrainData
from fedlit.engines.dropout import KeyedDropout
from fedlit.errors import located
from fedlit.keys import Purpose, torch_seed
from fedlit.params import Params, at_least_float32, clone, copy_into, overwrite, row, stack


class SequentialEngine(Engine):
    """One client after the other, with ordinary autograd."""

    _masks: bool
    """Whether steps may draw masks."""

    def train(self, client: Client, cohort: TrainedCohort, data: TrainData, phase: Phase) -> Solved:
        """Train each client in the client's own net, which is scratch space."""
        context = client.context(cohort)
        start, start_buffers = cohort.start_of(phase.start)
        optimizer, memory = self.memory_of(client, cohort, phase, start)
        trained: list[Params] = []
        buffers: list[Params] = []
        memories: list[Params] = []
        losses: list[Tensor] = []
        carried = {state_name(name): rows.clone() for name, rows in client.carried_rows(cohort).items()}
        begin_training(client.net)
        self._masks = True
        plan = self.planner(client, cohort, data, phase)
        self.progress.begin(int((cohort.steps > 0).sum()), int(cohort.steps.sum()))
        for k in range(len(cohort.clients)):
            copy_into(client.net, row(start, k) | row(start_buffers, k))
            copy_into(client, row(context, k))
            prepared = self.prepared(plan(k))
            loss, memory_after = self._train_client(
                client, cohort, data.store, prepared, phase, k, optimizer, row(memory, k), carried
            )
            losses.append(loss)
            memories.append(memory_after)
            trained.append(clone(client.local_params))
            buffers.append(clone(trained_buffers(client.net)))
            self.progress.count(clients=int(cohort.steps[k] > 0))
        return Solved(stack(trained), stack(buffers), torch.stack(losses), stack(memories), carried)

    def _train_client(
        self,
        client: Client,
        cohort: TrainedCohort,
        store: Store,
        plan: BatchPlan,
        phase: Phase,
        k: int,
        optimizer: LocalOptimizer,
        memory: Params,
        carried: Params,
    ) -> tuple[Tensor, Params]:
        """All local steps of the cohort's k-th client; returns the mean of its task losses and the optimiser's state.

        The client's row of `carried` gets the values of its last step.
        """
        tasks: list[Tensor] = []
        net_params = client.local_params  # to look for them takes as long as to multiply by them in a small net
        keys = self.mask_keys(cohort, phase, k) if self._masks else None
        with self.drawing(
            torch_seed(self.seed, Purpose.DROPOUT, round=cohort.draw_rounds[k], client=cohort.clients[k])
        ):
            who = f"in round {cohort.run_round}, client {cohort.clients[k]}"
            for step in range(int(cohort.steps[k])):
                with located(f"{who}, local step {step + 1} ({phase.step_method})"):
                    params = clone(net_params)
                    overwrite(net_params, optimizer.point(params, memory))
                    batches = self._batches(client, store, plan, step)
                    output = self._output(client, phase, batches, step, None if keys is None else keys[step])
                    grads = gradients(output, net_params)
                    with torch.no_grad():
                        moved, memory = optimizer.step(params, grads, memory, cohort.lr)
                        overwrite(net_params, moved)
                    self._carry(client, carried, output, k)
                tasks.append(output.task)
                self.ranks.heartbeat()
                self.progress.count(steps=1)
        if not tasks:
            return next(iter(cohort.received.values())).new_full((), torch.nan), memory
        return torch.stack(tasks).mean(dtype=at_least_float32(tasks[0].dtype)), memory

    def _output(self, client: Client, phase: Phase, batches: Batches, step: int, key: np.int64 | None) -> StepOutput:
        """Run a step; its dropout masks come from the key.

        If the first step draws no dropout mask, later steps do not look for one.
        """
        if key is None or not self._masks:  # the mode that replaces torch's dropout costs a tenth of a small net's step
            return client.run_step(phase.step_method, batches, step)
        with KeyedDropout(torch.tensor(key)) as masks:
            output = client.run_step(phase.step_method, batches, step)
        self._masks = masks.calls > 0
        return output

    @contextmanager
    def drawing(self, key: int) -> Iterator[None]:
        """Seed torch's generator for one client, for layers other than dropout that draw, such as nn.RReLU."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key)  # torch.manual_seed seeds every device: 0.7 ms for each client
            yield

    def _batches(self, client: Client, store: Store, plan: BatchPlan, step: int) -> Batches:
        """The batches of a step."""
        count = client.batches_per_step
        batches = tuple(self._batch(client, store, plan, step * count + index) for index in range(count))
        return batches[0] if count == 1 else batches

    def _batch(self, client: Client, store: Store, plan: BatchPlan, step: int) -> Batch:
        """The real rows of a step's batch."""
        rows = int(plan.counts[step])
        x, y = self.rows(store, self.row_numbers(plan, step, rows))
        dtype = next(client.net.parameters()).dtype
        return Batch(x, y, torch.full((rows,), 1.0 / rows, dtype=dtype, device=y.device))

    def prepared(self, plan: BatchPlan) -> BatchPlan:
        """A client's plan in the form that its steps read."""
        return plan

    def row_numbers(self, plan: BatchPlan, batch: int, rows: int) -> Tensor:
        """Row numbers of the real rows of a batch."""
        return torch.from_numpy(plan.index[batch, :rows].copy())

    def _carry(self, client: Client, carried: Params, output: StepOutput, k: int) -> None:
        """Store the carried states: the next step reads them, and after the last step they are the client's row."""
        for name, value in output.carried.items():
            carried[state_name(name)][k] = value.detach()
            copy_into(client, {name: value.detach()})


def gradients(output: StepOutput, params: Params) -> Params:
    """The gradient of the step's loss; zeros for parameters on which the loss does not depend."""
    grads = torch.autograd.grad(output.loss, list(params.values()), allow_unused=True)
    return {
        name: torch.zeros_like(value) if grad is None else grad
        for (name, value), grad in zip(params.items(), grads, strict=True)
    }
