"""StateBuffers: the received model and the states of a client as buffers, and the step that reads them.

The sequential engine sets these buffers, client by client; the vectorized engine maps over them.
"""

import torch
from torch import Tensor

from fedlit.client.cohort import Cohort
from fedlit.client.lightning_client import LightningClient
from fedlit.client.net_parts import trained_params
from fedlit.client.specs import (
    INITIAL,
    RECEIVED,
    FirstValues,
    ModelRow,
    StateSpec,
    check_first_values,
    check_state_names,
    first_values,
)
from fedlit.client.step import Batches, StepOutput, TensorGroup, buffer_name, parse_step_output
from fedlit.client.step_errors import changed_in_place, check_step_output, explain_step_error
from fedlit.errors import ConfigError
from fedlit.params import Params, expand, with_prefix


class StateBuffers(LightningClient):
    """The part of `Client` that holds what a step reads, and runs the step."""

    batches_per_step: int = 1
    """Above 1, a step gets a tuple of that many independent batches."""

    def state_spec(self) -> StateSpec:
        """Rows kept per client with their initial value: a number, a tensor, or RECEIVED, INITIAL, ZEROS for a model.

        They live with the client, unless the value is wrapped in `at_server` or `at_both`.
        """
        return {}

    def sent_spec(self) -> StateSpec:
        """What the server sends besides z, declared as in `state_spec`; a callback fills it in `cohort.sent`."""
        return {}

    def report_spec(self) -> StateSpec:
        """What a client sends besides x_i: a number, a tensor, or ZEROS for a whole model.

        The value is what it sends without a local step. `on_phase_end` fills it in `cohort.reported_rows`. A name of
        `state_spec` means that state as it is after training, which nobody has to fill.
        """
        return {}

    def first_values(self) -> FirstValues:
        """`state_spec` without the places where states live."""
        return first_values(self.state_spec())

    def carried_states(self) -> tuple[str, ...]:
        """States that a step changes and returns, for the next step to read."""
        return ()

    def sent(self, name: str) -> Params:
        """What the server sent under this name (`sent_spec`)."""
        return self.kept(name)

    def kept(self, name: str) -> Params:
        """A whole-model state (`state_spec`) as a parameter dict."""
        group = getattr(self, name)
        if not isinstance(group, TensorGroup):
            what = f"a tensor of shape {tuple(group.shape)}" if group.dim() else "one number"
            raise ConfigError(f"'{name}' of {type(self).__name__} is {what}, not a whole model. Write self.{name}.")
        return group.read()

    # ---- what engines and loop call ----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Register the received model and the state rows as buffers of this client (once)."""
        if self.is_prepared:
            return
        self.check_states()
        params = {name: value.detach() for name, value in trained_params(self.net).items()}
        self.received = TensorGroup(params)
        like = next(iter(params.values()))
        for name, initial in (self.first_values() | first_values(self.sent_spec())).items():
            if isinstance(initial, ModelRow):
                self.add_module(name, TensorGroup(params))
            else:
                self.register_buffer(name, _tensor(initial, like).clone(), persistent=False)

    @property
    def is_prepared(self) -> bool:
        """Whether the states are attributes of this client."""
        return "received" in self._modules

    def check_states(self) -> None:
        """Refuse states whose names or first values cannot be, before they become attributes."""
        if self.is_prepared:
            return
        specs = {spec: getattr(self, spec)() for spec in ("state_spec", "sent_spec", "report_spec")}
        check_first_values(type(self).__name__, specs)
        attributes = {*dir(type(self)), *vars(self), *self._parameters, *self._buffers, *self._modules}
        kept, sent = self.first_values(), first_values(self.sent_spec())
        check_state_names(type(self).__name__, kept, sent, self.carried_states(), attributes)

    def initial_rows(self, spec: FirstValues, received: Params, initial: Params) -> dict[str, Tensor]:
        """Stacked: the first values of a spec, for clients that received these models; `initial` is z^0."""
        if not spec:
            return {}
        like = next(iter(received.values()))
        count = like.shape[0]
        rows: dict[str, Tensor] = {}
        for name, value in spec.items():
            if not isinstance(value, ModelRow):
                first = _tensor(value, like)
                rows[name] = first.expand(count, *first.shape).clone()
            elif value is RECEIVED:
                rows |= with_prefix(name, received)
            else:
                model = (
                    initial if value is INITIAL else {key: torch.zeros_like(param) for key, param in initial.items()}
                )
                rows |= with_prefix(name, expand(model, count))
        return rows

    def context(self, cohort: Cohort) -> dict[str, Tensor]:
        """Stacked: what a step reads besides the parameters, under the names of this client's buffers."""
        rows = with_prefix("received", cohort.received) | cohort.sent | cohort.state
        return {buffer_name(name): value for name, value in rows.items()}

    def carried_rows(self, cohort: Cohort) -> dict[str, Tensor]:
        """Stacked: the rows that a step may change, under the names of this client's buffers."""
        names = self.carried_states()
        return {buffer_name(name): rows for name, rows in cohort.state.items() if name.partition(".")[0] in names}

    def run_step(self, method: str, batch: Batches, batch_idx: int | Tensor) -> StepOutput:
        """Call the step and return its output in one form; ConfigError if it changed a tensor that it may only read."""
        before, step = self._read_only_tensors(), f"{type(self).__name__}.{method}"
        self._is_stepping = True
        try:
            output = getattr(self, method)(batch, batch_idx)
        except Exception as error:
            mistake = explain_step_error(error, step, self.batches_per_step, self.net)
            if mistake is None:
                raise
            raise mistake from error
        finally:
            self._is_stepping = False
        for name, (tensor, version) in self._read_only_tensors().items():
            if before[name][0] is not tensor or before[name][1] != version:
                raise ConfigError(changed_in_place(step, f"'{name}'"))
        check_step_output(output, step, self.carried_states())
        return parse_step_output(output)

    def _read_only_tensors(self) -> dict[str, tuple[Tensor, int]]:
        """Tensors that a step may only read, each with torch's counter of in-place changes: cheap to compare."""
        tensors = {name: value for name, value in self._buffers.items() if value is not None}
        for group, module in self._modules.items():
            if isinstance(module, TensorGroup):
                tensors |= with_prefix("global_params" if group == "received" else group, module.read())
        return {name: (value, value._version) for name, value in tensors.items()}


def _tensor(first: float | Tensor, like: Tensor) -> Tensor:
    """A number or tensor as a tensor of this type."""
    return torch.as_tensor(first, dtype=like.dtype, device=like.device).detach()
