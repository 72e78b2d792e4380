"""What clients keep, and report besides x_i: checked against what is declared once a cohort has trained."""

from collections.abc import Mapping

from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.cohort_stack import put_rows
from fedlit.client.specs import first_values
from fedlit.client.step import buffer_name
from fedlit.errors import ConfigError
from fedlit.params import Params, row


def complete_report(client: Client, cohort: TrainedCohort) -> None:
    """Give clients that took no step the first values of `report_spec`; ConfigError unless all rows are there."""
    first = first_rows(client, cohort)
    for name in sorted(first.keys() ^ cohort.reported_rows.keys()):
        declared = f"report_spec() declares '{name}', but on_phase_end does not fill it"
        filled = f"on_phase_end fills cohort.reported_rows['{name}'], but report_spec() does not declare it"
        raise ConfigError(
            f"Round {cohort.run_round}: {type(client).__name__}.{declared if name in first else filled}. Let both name "
            "the same rows; those of a whole model are called name.parameter, without the tensors that stay with the "
            "client."
        )
    shapes = {name: tuple(rows.shape) for name, rows in first.items()}
    _check_shapes(cohort.reported_rows, shapes, f"Round {cohort.run_round}: cohort.reported_rows", "report_spec()")
    if first and not cohort.steps_taken.numpy().all():
        idle = ~cohort.trained
        cohort.reported_rows = put_rows(cohort.reported_rows, idle, {name: rows[idle] for name, rows in first.items()})


def first_rows(client: Client, cohort: TrainedCohort) -> dict[str, Tensor]:
    """Stacked: what clients without a local step send besides x_i."""
    kept, reported = client.state_spec(), first_values(client.report_spec())
    spec = {name: first for name, first in reported.items() if name not in kept}
    rows = client.initial_rows(spec, cohort.received, row(cohort.received, 0))
    return {name: value for name, value in rows.items() if name.partition(".")[2] not in client.local_tensors}


def check_kept(client: Client, cohort: TrainedCohort) -> None:
    """ConfigError unless the cohort's states are those of `state_spec`, a row of the declared shape for each client."""
    if not cohort.state:
        return
    declared, count = dict(client.named_buffers()), len(cohort.clients)
    shapes = {
        name: (count, *declared[buffer_name(name)].shape) for name in cohort.state if buffer_name(name) in declared
    }
    unknown = sorted(cohort.state.keys() - shapes.keys())
    if unknown:
        raise ConfigError(
            f"Round {cohort.run_round}: cohort.state['{unknown[0]}'] was filled, but {type(client).__name__}."
            "state_spec() does not declare it. Declare it there, or correct the name."
        )
    _check_shapes(cohort.state, shapes, f"Round {cohort.run_round}: cohort.state", "state_spec()")


def _check_shapes(rows: Params, shapes: Mapping[str, tuple[int, ...]], where: str, spec: str) -> None:
    for name, shape in shapes.items():
        value: object = rows[name]
        if isinstance(value, Tensor) and value.shape == shape:
            continue
        found = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ConfigError(
            f"{where}['{name}'] is {found}, but {spec} declares {shape[1:] or 'one number'} for each of {shape[0]} "
            f"clients: give a tensor of shape {shape}. A shape cannot depend on the client; fill up what is shorter, "
            "and say in another state how much of it counts."
        )
