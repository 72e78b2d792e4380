"""The reference: a plain PyTorch loop over clients, batches and steps. It judges the other engines."""

import torch
from torch import Tensor

from fedlit.client import Client
from fedlit.cohort import Cohort
from fedlit.engines.base import BatchPlan, Engine, Store, TrainData
from fedlit.errors import located
from fedlit.keys import Purpose, torch_seed
from fedlit.local import LocalOptimizer
from fedlit.params import Params, clone, load, row, stack
from fedlit.step import Batch, Batches, Phase, StepOutput, state_name


class SequentialEngine(Engine):
    """One client after the other, with ordinary autograd."""

    def train(self, client: Client, cohort: Cohort, data: TrainData, phase: Phase) -> Cohort:
        """Train each client in the client's own net, which is scratch space."""
        context = client.context(cohort)
        start, held = cohort.start_of(phase.start)
        optimizer, memory = self.memory_of(client, cohort, phase, start)
        trained: list[Params] = []
        buffers: list[Params] = []
        memories: list[Params] = []
        losses: list[Tensor] = []
        client.net.train()
        plan = self.planner(client, cohort, data, phase)
        for k in range(len(cohort.clients)):
            load(client.net, row(start, k) | row(held, k))
            load(client, row(context, k))
            loss, left = self._train_client(client, cohort, data.store, plan(k), phase, k, optimizer, row(memory, k))
            losses.append(loss)
            memories.append(left)
            trained.append(clone(dict(client.net.named_parameters())))
            buffers.append(clone(dict(client.net.named_buffers())))
        cohort.params, cohort.buffers, cohort.losses = stack(trained), stack(buffers), torch.stack(losses)
        cohort.memory = stack(memories)
        return cohort

    def _train_client(
        self,
        client: Client,
        cohort: Cohort,
        store: Store,
        plan: BatchPlan,
        phase: Phase,
        k: int,
        optimizer: LocalOptimizer,
        memory: Params,
    ) -> tuple[Tensor, Params]:
        """All local steps of the cohort's k-th client: the mean of its task losses, and the optimiser's state."""
        tasks: list[Tensor] = []
        with torch.random.fork_rng(devices=[]):  # for layers that draw by themselves, such as nn.Dropout
            key = torch_seed(self.seed, Purpose.DROPOUT, round=cohort.key(k), client=cohort.clients[k])
            torch.default_generator.manual_seed(key)  # torch.manual_seed would ask every device: 0.7 ms a client
            who = f"in round {cohort.number}, client {cohort.clients[k]}"
            for step in range(int(cohort.steps[k])):
                with located(f"{who}, local step {step + 1} ({phase.step_method})"):
                    params = clone(client.local_params)
                    load(client.net, optimizer.point(params, memory))
                    output = client.run_step(phase.step_method, self._batches(client, store, plan, step), step)
                    grads = gradients(output, client.local_params)
                    with torch.no_grad():
                        moved, memory = optimizer.step(params, grads, memory, cohort.lr)
                        load(client.net, moved)
                    self._carry(client, cohort, output, k)
                tasks.append(output.task)
                self.ranks.pulse()
        return torch.stack(tasks).mean() if tasks else torch.full((), torch.nan), memory

    def _batches(self, client: Client, store: Store, plan: BatchPlan, step: int) -> Batches:
        """What a step is given."""
        count = client.batches_per_step
        batches = tuple(self._batch(client, store, plan, step * count + own) for own in range(count))
        return batches[0] if count == 1 else batches

    def _batch(self, client: Client, store: Store, plan: BatchPlan, step: int) -> Batch:
        """The real rows of a step's batch."""
        rows = int(plan.counts[step])
        x, y = self.rows(store, torch.from_numpy(plan.index[step, :rows].copy()))
        dtype = next(client.net.parameters()).dtype
        return Batch(x, y, torch.full((rows,), 1.0 / rows, dtype=dtype))

    def _carry(self, client: Client, cohort: Cohort, output: StepOutput, k: int) -> None:
        """A carried state is what the next step reads and, after the last step, the client's row."""
        for name, value in output.carried.items():
            cohort.state[state_name(name)][k] = value.detach()
            load(client, {name: value.detach()})


def gradients(output: StepOutput, params: Params) -> Params:
    """The gradient of the step's loss; parameters that it does not reach get zeros."""
    found = torch.autograd.grad(output.loss, list(params.values()), allow_unused=True)
    return {
        name: torch.zeros_like(value) if grad is None else grad
        for (name, value), grad in zip(params.items(), found, strict=True)
    }
