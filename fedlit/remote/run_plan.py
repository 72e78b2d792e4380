"""RunPlan: what a node must know of a run before its first round."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import torch

from fedlit.client.messages import Message
from fedlit.client.row_layout import dtype_named
from fedlit.client.step import Adaptation, FinetuneFrom
from fedlit.errors import MessageError
from fedlit.params import Params


@dataclass(frozen=True)
class RunPlan:
    """What a node must know of a run."""

    run: str
    """Names the run; the node keeps its rows under this name."""
    client: int
    """The node's number among the clients; its draws are keyed by it."""
    clients: int
    seed: int
    dtype: str
    """Of the net's numbers: float32 or float64."""
    needs: list[str]
    """Risks and gradients that the algorithm, the weighting or a callback reads."""
    tells: list[str]
    """Those of them that the server reads."""
    keeps_local: bool
    """Whether the client's last model is kept, so that it can be measured."""
    threads: int
    """Threads inside an operation in training: another number may give other last digits."""
    evaluation_threads: int
    model: Message
    """The algorithm: `class_path` and `init_args`."""
    fixed: Params
    """Tensors of the net that no message brings, because nobody trains them."""
    finetune: dict[str, Any] | None = None
    finetune_from: FinetuneFrom = "personal"

    @classmethod
    def of(cls, message: Message) -> Self:
        """The inverse of `message`; MessageError if a field is missing or unknown."""
        names = {item.name for item in fields(cls)}
        if set(message) != names:
            raise MessageError(
                f"got a run from another version of fedlit (it differs in {', '.join(sorted(names ^ set(message)))}). "
                "Install the same version on server and nodes"
            )
        return cls(**message)

    def message(self) -> Message:
        """All fields as a message."""
        return asdict(self)

    @property
    def finetunings(self) -> tuple[Adaptation, ...]:
        """What `finetune` says, if it says something."""
        return () if self.finetune is None else (Adaptation(**self.finetune),)

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of the net's numbers."""
        return dtype_named(self.dtype)
