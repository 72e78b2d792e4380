"""The local training of several lanes as one function of tensors, eager or compiled.

A lane has one client at a time. All that a client carries from step to step (parameters, optimiser state, the net's
buffers, carried states, the sum of its task losses) is one row of a flat matrix (lanes, D); what it only reads
(received model, duals …) is a row of another. The program runs steps t0 to t1 of every lane. Between calls, clients are
swapped by copying rows.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedlit.client.base import Client
from fedlit.client.net_parts import trained_buffers
from fedlit.client.step import Batch, Batches, Phase, StepOutput
from fedlit.engines import recurrence
from fedlit.engines.base import Rows, Store, frozen_in, frozen_tensors
from fedlit.engines.compiler import need_operators, repeat_while, unread_inputs
from fedlit.engines.dropout import KeyedDropout
from fedlit.engines.flat_layout import FlatLayout
from fedlit.engines.inductor_loops import Loops
from fedlit.engines.matmul import TURNED, are_turned, is_matrix
from fedlit.engines.recurrence import WrittenOut, has_recurrence
from fedlit.inputs import Inputs, mapped, split
from fedlit.params import Params, clone, under_prefix, with_prefix

Compiles = Literal["loop", "step"]
"""What is compiled: a loop over all steps of a call, or one step, which is called again and again."""


class Schedule(NamedTuple):
    """The batch, step number and key of every lane at every step. An idle lane has row weights 0."""

    rows: Tensor
    """(capacity, lanes, batch) row numbers."""
    row_weights: Tensor
    """(capacity, lanes, batch) 1/n for real rows, 0 for padding."""
    step: Tensor | None
    """(capacity, lanes) the client's own step number; None if no step reads it."""
    key: Tensor | None
    """(capacity, lanes) the key of the step's dropout masks; None if it draws none."""

    def at(self, t: int) -> "Schedule":
        """The schedule of step t alone."""
        optional = (None if part is None else part[t : t + 1] for part in (self.step, self.key))
        return Schedule(self.rows[t : t + 1], self.row_weights[t : t + 1], *optional)


class StepModule(nn.Module):
    """A client's step as a module's forward, so that functional_call can replace every tensor that it reads."""

    def __init__(self, client: Client, method: str) -> None:
        super().__init__()
        self.client = client
        self.method = method

    def forward(self, batch: Batches, number: Tensor | None, key: Tensor | None = None) -> StepOutput:
        with nullcontext() if key is None else KeyedDropout(key):
            return self.client.run_step(self.method, batch, 0 if number is None else number)


def turn(tensors: Params, endings: tuple[str, ...], how: Callable[[Tensor], Tensor] = Tensor.t) -> Params:
    """Transpose the matrices whose names have one of the endings: as views, or by the function `how`."""
    return {
        name: how(value) if is_matrix(value) and name.replace("/", ".").endswith(endings) else value
        for name, value in tensors.items()
    }


def channels_last(rows: Rows) -> Rows:
    """Gather pictures in oneDNN's layout; otherwise a compiled net changes the layout between its layers."""

    def gathered(store: Store, index: Tensor) -> tuple[Inputs, Tensor]:
        x, y = rows(store, index)
        return mapped(lambda one: one.contiguous(memory_format=torch.channels_last) if one.dim() == 4 else one, x), y

    return gathered


def mixes_rows(client: Client) -> bool:
    """Whether the net may use the whole batch at once, as BatchNorm does, and so must not see padding.

    A net with any buffer that is not frozen counts: a statistic of batches cannot be told from a constant. So does a
    LightningModule: its training_step takes a mean over the batch.
    """
    return client.user_module is not None or client.fewest_rows > 1 or len(trained_buffers(client.net)) > 0


class LocalProgram:
    """Steps t0 to t1 of every lane, for one client class, net, batch shape and number of lanes."""

    def __init__(
        self,
        client: Client,
        phase: Phase,
        rows: Rows,
        lanes: int,
        carried: FlatLayout,
        context: FlatLayout,
        batch_rows: int | None = None,
    ) -> None:
        self.step_module = StepModule(client, phase.step_method)
        self.optimizer = phase.optimizer or client.local_optimizer()
        self.batch_size, self.batches_per_step = batch_rows or client.batch_size, client.batches_per_step
        self.rows = rows
        self.lanes = lanes
        self.cuts_padding = mixes_rows(client)
        self.is_recurrent = has_recurrence(client.net)
        self.carried = carried
        self.context = self.context_read = context
        self.heartbeat: Callable[[], None] = lambda: None
        """Called after every step of the eager form."""
        self.draws = True
        """Whether a step may draw dropout masks; known once the program is traced."""

    def update(
        self,
        carried: Params,
        context: Params,
        frozen: Params,
        batch: Batches,
        number: Tensor | None,
        key: Tensor | None,
        lr: Tensor,
    ) -> Params:
        """One local step of one client, as a pure function; all clients share the net's frozen tensors."""
        params, memory = under_prefix("params", carried), under_prefix("memory", carried)
        state, buffers = under_prefix("state", carried), under_prefix("buffers", carried)

        def objective(at: Params, buffers_in: Params) -> tuple[Tensor, tuple[Tensor, Params, Params]]:
            replaced = with_prefix("client", with_prefix("net", frozen | at | buffers_in) | context | state)
            output = functional_call(self.step_module, replaced, (batch, number, key))
            buffers_out = {
                name: replaced[f"client.net.{name}"] for name in buffers_in
            }  # functional_call writes changes back
            return output.loss, (output.task, output.carried, buffers_out)

        # Buffers are an argument, because `grad` forbids to change captured tensors; copies, because BatchNorm writes.
        point = self.optimizer.point(params, memory)
        grads, (task, moved_state, buffers) = grad(objective, has_aux=True)(point, clone(buffers))
        params, memory = self.optimizer.step(params, grads, memory, lr)
        return {
            **with_prefix("params", params),
            **with_prefix("memory", memory),
            **with_prefix("buffers", buffers),
            **with_prefix("state", state | moved_state),
            "loss": carried["loss"] + task,
        }

    def step(
        self,
        t: Tensor,
        carried: Params,
        context: Params,
        store: Store,
        schedule: Schedule,
        lr: Tensor,
        *,
        cuts_padding: bool = False,
    ) -> Params:
        """Step t of every lane; idle lanes do not change."""
        index, weights = (part.index_select(0, t)[0] for part in (schedule.rows, schedule.row_weights))
        number, key = (None if part is None else part.index_select(0, t)[0] for part in (schedule.step, schedule.key))
        frozen = frozen_in(store)
        if self.lanes == 1:  # no vmap: it turns convolutions into grouped ones, which are twice as slow
            batches = (self.cut_batches if cuts_padding else self.batches)(store, index[0], weights[0])
            own_number, own_key = (None if part is None else part[0] for part in (number, key))
            moved = self.update(carried, context, frozen, batches, own_number, own_key, lr)
            inputs = {id(value) for value in carried.values()}  # the loop's operator refuses an input as its output
            return {name: value.clone() if id(value) in inputs else value for name, value in moved.items()}
        batches = self.batches(store, index, weights)
        lanes_of = (0, 0, None, 0, *(None if part is None else 0 for part in (number, key)), None)
        moved = vmap(self.update, in_dims=lanes_of)(carried, context, frozen, batches, number, key, lr)
        busy = weights[:, 0] > 0
        return {
            name: torch.where(busy.view(-1, *[1] * (value.dim() - 1)), value, carried[name])
            for name, value in moved.items()
        }

    def batches(self, store: Store, index: Tensor, weights: Tensor) -> Batches:
        """The batches of a step, from row numbers and weights ([lanes,] batches_per_step * batch_size)."""
        x, y = self.rows(store, index.reshape(-1))
        x, y = (mapped(lambda one: one.reshape(*index.shape, *one.shape[1:]), part) for part in (x, y))
        if self.batches_per_step == 1:
            return Batch(x, y, weights)
        parts = (split(part, self.batch_size, index.dim() - 1) for part in (x, y, weights))
        return tuple(Batch(*part) for part in zip(*parts, strict=True))

    def cut_batches(self, store: Store, index: Tensor, weights: Tensor) -> Batches:
        """The batches without padding. Only for one eager lane, because their size is not fixed."""
        padded = zip(torch.split(index, self.batch_size), torch.split(weights, self.batch_size), strict=True)
        cut = tuple(Batch(*self.rows(store, rows[real > 0]), real[real > 0]) for rows, real in padded)
        return cut[0] if len(cut) == 1 else cut

    def unpack(self, flat: Tensor, layout: FlatLayout, turned: tuple[str, ...] = ()) -> Params:
        """Flat rows as tensors with contiguous memory; a single lane has no lane axis."""
        tensors = layout.split(flat) if layout.shapes else {}
        if self.lanes == 1:
            tensors = turn({name: value[0] for name, value in tensors.items()}, turned, TURNED)
        return {name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}

    def pack(self, carried: Params) -> Tensor:
        """The carried tensors as flat rows again."""
        if self.lanes == 1:
            carried = {name: value[None] for name, value in carried.items()}
        return self.carried.join(carried)

    def turned_weights(self) -> tuple[str, ...]:
        """Endings of names: a compiled loop keeps such weights, with their optimiser state, transposed."""
        layers = dict(self.step_module.client.net.named_modules())
        if self.lanes > 1 or any(isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for layer in layers.values()):
            return ()
        return tuple(
            f".{name}.weight" if name else ".weight"
            for name, layer in layers.items()
            if isinstance(layer, nn.Linear) and are_turned(layer.weight, self.batch_size)
        )

    def eager(
        self, flat: Tensor, context: Tensor, lr: Tensor, store: Store, schedule: Schedule, t0: Tensor, t1: Tensor
    ) -> Tensor:
        """Run the steps one by one; the same numbers as the compiled form."""
        with torch.no_grad():
            carried, read = self.unpack(flat, self.carried), self.unpack(context, self.context)
            for t in torch.split(torch.arange(int(t0), int(t1), device=flat.device), 1):
                carried = self.step(t, carried, read, store, schedule, lr, cuts_padding=self.cuts_padding)
                self.heartbeat()
            return self.pack(carried)

    def traceable(
        self, store: Store, examples: Sequence[Tensor], compiles: Compiles = "loop", loops: Loops = "lean"
    ) -> Callable[..., tuple[Tensor]]:
        """The program for the compiler: over plain tensors, with the loop as one operator, or only step t0.

        Every tensor that enters the loop costs about 0.2 microseconds a step, and a small net's step takes 15. So
        tensors that no step reads (the received model in FedAvg, the step's number and key) stay outside.

        Args:
            store: the data set, and the net's frozen tensors.
            examples: tensors with the shapes of the program's inputs (see `vectorized.CompiledForm`).
            compiles: the loop, or one step; a net that mixes rows then needs full batches.
            loops: which loops and products it will have.
        """
        if self.is_recurrent:
            need_operators(recurrence.SOURCE)
        turned = self.turned_weights() if compiles == "loop" and loops == "lean" else ()
        names, reads = list(self.carried.shapes), list(self.context.shapes)
        fixed_names = [*(f"context.{name}" for name in reads), "lr", *(f"store.{name}" for name in store), *_SCHEDULE]

        def one_step(t: Tensor, carried: Sequence[Tensor], fixed: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
            data, context = under_prefix("store", fixed), under_prefix("context", fixed)
            context |= {name: fixed["lr"].new_zeros(like.shape, dtype=like.dtype) for name, like in idle.items()}
            schedule = Schedule(fixed["rows"], fixed["row_weights"], fixed.get("step"), fixed.get("key"))
            start = turn(dict(zip(names, carried, strict=True)), turned)
            with WrittenOut() if self.is_recurrent else nullcontext():
                moved = turn(self.step(t, start, turn(context, turned), data, schedule, fixed["lr"]), turned)
            return tuple(moved[name].contiguous() for name in names)

        def fixed_of(context: Tensor, rest: Sequence[Tensor]) -> dict[str, Tensor]:
            read = self.unpack(context, self.context, turned)
            return dict(zip(fixed_names, [*read.values(), *rest], strict=True))

        flat, context, *rest, t0, _ = examples
        start, fixed = self.unpack(flat, self.carried, turned), fixed_of(context, rest)
        idle: Params = {}
        unread, without_effect = unread_inputs(
            lambda t, *args: one_step(t, args[: len(names)], dict(zip(fixed, args[len(names) :], strict=True))),
            [t0, *start.values(), *fixed.values()],
        )
        skipped = frozenset(name for k, name in enumerate(reads, 1 + len(names)) if k in unread)
        # A step may read a tensor without effect on what it returns (a term without a gradient): it gets zeros.
        idle |= {name: fixed[f"context.{name}"] for k, name in enumerate(reads, 1 + len(names)) if k in without_effect}
        self.context_read = replace(self.context, skipped=skipped)
        # Only these inputs may be left out: a step that reads no data still gathers its batch.
        optional = [*(f"context.{name}" for name in reads), *with_prefix("store", frozen_tensors(store)), "step", "key"]
        kept = [name for k, name in enumerate(fixed_names, 1 + len(names)) if k not in unread or name not in optional]
        self.draws = "key" in kept

        def program(flat: Tensor, context: Tensor, *rest: Tensor) -> tuple[Tensor]:
            *tensors, t0, t1 = rest
            fixed = fixed_of(context, tensors)
            start = [*self.unpack(flat, self.carried, turned).values()]
            if compiles == "step":
                out = one_step(t0, start, {name: fixed[name] for name in kept})
            else:
                out = repeat_while(
                    lambda t, carried, inputs: one_step(t, carried, dict(zip(kept, inputs, strict=True))),
                    t0,
                    t1,
                    start,
                    [fixed[name] for name in kept],
                )
            return (self.pack(turn(dict(zip(names, out, strict=True)), turned, TURNED)),)

        return program


_SCHEDULE = Schedule._fields
