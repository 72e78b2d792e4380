"""Sums over each client's own training rows after a phase (`Client.summarize`), the same in every engine.

The client's method is called with pieces of its rows and returns sums over them; the sums of the pieces are added. The
model is in evaluation mode and there is no augmentation, so the result depends on neither the engine nor the pieces.
`on_phase_end` reads it as `cohort.summary`; the server never does.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedlit.client.base import Client
from fedlit.client.cohort import TrainedCohort
from fedlit.client.step import Batch, Phase
from fedlit.errors import located, require
from fedlit.evaluation.evaluator import Evaluator
from fedlit.inputs import Inputs, split
from fedlit.params import Params, row, with_prefix

PIECE = 1024
"""Most rows of a call."""


class Summary(nn.Module):
    """A client's method as a module's forward, so that functional_call can replace every tensor that it reads."""

    def __init__(self, client: Client, method: str) -> None:
        super().__init__()
        self.client = client
        self.method = method

    @property
    def name(self) -> str:
        """What errors call the method."""
        return f"{type(self.client).__name__}.{self.method}"

    def forward(self, batch: Batch) -> Params:
        return self.checked(getattr(self.client, self.method)(batch))

    def of_rows(self, tensors: Mapping[str, Tensor], x: Inputs, y: Tensor) -> Params:
        """The sums over some rows, with these tensors of the client."""
        like = next(value for value in tensors.values() if value.is_floating_point())
        batch = Batch(x, y, like.new_ones(len(y)))
        answer: Params = functional_call(self, with_prefix("client", tensors), (batch,))
        return answer

    def checked(self, answer: object) -> Params:
        """The method's answer; ConfigError unless it is a dict of tensors."""
        is_dict = isinstance(answer, dict) and all(isinstance(value, Tensor) for value in answer.values())
        require(
            is_dict and bool(answer),
            f"{self.name} must return sums over the batch's rows as a dict of tensors, {{'features': tensor}}; it "
            f"returned a {type(answer).__name__}.",
        )
        assert isinstance(answer, dict)
        return answer

    def check_shapes(self, one: Params, other: Params, where: str) -> None:
        """Refuse sums whose names or shapes depend on the rows."""
        for name in one.keys() | other.keys():
            found, expected = (tuple(sums[name].shape) if name in sums else None for sums in (other, one))
            require(
                found == expected,
                f"{self.name} returned '{name}' of shape {found} {where}, and of shape {expected} for other rows. "
                "Every client's summary must have the same names and shapes, whatever its rows are: give a class that "
                "a client does not have zeros.",
            )


def has_summary(client: Client, phase: Phase) -> bool:
    """Whether anything is summed after this phase."""
    return bool(phase.summary_method) and getattr(type(client), phase.summary_method) is not Client.summarize


def summaries(evaluator: Evaluator, cohort: TrainedCohort, phase: Phase, train: Sequence[Tensor]) -> Params:
    """Stacked: the sums over each client's training rows at the result of the phase; computed by all ranks together."""
    client, ranks = evaluator.client, evaluator.ranks
    trained = cohort.model(phase.writes) if phase.writes else cohort.params
    models, context = with_prefix("net", trained | cohort.buffers), client.context(cohort)
    summary = Summary(client, phase.summary_method)

    def summed(k: int) -> Params:
        pieces = torch.split(train[k], PIECE)
        tensors = evaluator.device.sent(row(models | context, k))
        total = _sums(evaluator, summary, tensors, pieces[0])
        for piece in pieces[1:]:
            sums = _sums(evaluator, summary, tensors, piece)
            summary.check_shapes(total, sums, f"for client {cohort.clients[k]}")
            total = {name: value + sums[name] for name, value in total.items()}
        return evaluator.device.home_one(total)

    def summed_all(places: list[int]) -> Params:
        rows: list[Params] = []
        for k in places:
            with located(f"in round {cohort.run_round}, client {cohort.clients[k]} ({phase.summary_method})"):
                rows.append(summed(k))
                summary.check_shapes(rows[0], rows[-1], f"for client {cohort.clients[k]}")
            ranks.heartbeat()
        return {name: torch.stack([sums[name] for sums in rows]) for name in rows[0]} if rows else {}

    with evaluator.evaluating():
        return ranks.split_work([len(rows) for rows in train], summed_all)


def _sums(evaluator: Evaluator, summary: Summary, tensors: Mapping[str, Tensor], rows: Tensor) -> Params:
    data, device = evaluator.data, evaluator.device
    with torch.no_grad(), device.computing():
        x, y = data.plain_rows(device.store(data.store), device.put(rows))
        return summary.of_rows(tensors, x, y)


def check_summaries(client: Client, x: Inputs, y: Tensor) -> None:
    """Try every phase's summary on these rows and on parts of them; refuse what is not a sum over rows."""
    tensors = dict(client.named_parameters()) | dict(client.named_buffers())
    sizes = [len(y) // 2, len(y) - len(y) // 2]
    halves = list(zip(split(x, sizes), torch.split(y, sizes), strict=True))
    was_training = client.net.training
    client.net.eval()
    try:
        for method in {phase.summary_method: None for phase in client.phases() if has_summary(client, phase)}:
            summary = Summary(client, method)
            with located(f"while {summary.name} was tried before the first round"), torch.no_grad():
                whole = summary.of_rows(tensors, x, y)
                parts = [summary.of_rows(tensors, *half) for half in halves]
                for part in parts:
                    summary.check_shapes(whole, part, f"for {len(y)} rows of a client cut in halves")
            _check_additive(summary.name, whole, parts)
    finally:
        client.net.train(was_training)


def _check_additive(method: str, whole: Params, parts: Sequence[Params]) -> None:
    for name, value in whole.items():
        summed = sum((part[name] for part in parts), torch.zeros_like(value))
        kind = value.dtype if value.is_floating_point() else torch.float32
        allowed = torch.finfo(kind).eps ** 0.5 * max(1.0, float(value.abs().max()))
        require(
            bool(((value - summed).abs() <= allowed).all()),
            f"{method} returned '{name}', which is not a sum over the batch's rows: on a batch it differs from the sum "
            "over its halves. A client's rows come in pieces whose sums are added: return sums and counts, and divide "
            "in on_phase_end.",
        )
