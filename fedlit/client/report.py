"""What clients report besides x_i: checked against `report_spec` once a cohort has trained."""

from torch import Tensor

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.cohort_stack import put_rows
from fedlit.client.specs import first_values
from fedlit.errors import ConfigError


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
    if first and not cohort.steps_taken.numpy().all():
        idle = ~cohort.trained
        cohort.reported_rows = put_rows(cohort.reported_rows, idle, {name: rows[idle] for name, rows in first.items()})


def first_rows(client: Client, cohort: TrainedCohort) -> dict[str, Tensor]:
    """Stacked: what clients without a local step send besides x_i."""
    kept, reported = client.state_spec(), first_values(client.report_spec())
    spec = {name: first for name, first in reported.items() if name not in kept}
    shared = client.shared(cohort.received)
    return client.initial_rows(spec, shared, {name: rows[0] for name, rows in shared.items()})
