"""The data of a choice of engine: `Request`, what a user asks for, and `EngineChoice`, what `choose.py` decided."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from fedlit.engines.device import Accelerator
from fedlit.engines.inductor_loops import Loops
from fedlit.engines.program import Compiles
from fedlit.errors import ResumeError
from fedlit.metrics.formatting import counted

EngineName = Literal["auto", "sequential", "vectorized"]
Convolving = Literal["torch", "direct"]
Evaluation = Literal["eager", "compiled"]
_COMPILED: dict[Compiles, str] = {"loop": "compiled", "step": "compiled step by step"}


@dataclass(frozen=True)
class EngineChoice:
    """The engine of a run and its form; it never changes during the run."""

    engine: str
    lanes: int
    workers: int
    compiled: bool
    capacity: int
    threads: int
    """Threads inside one operation of the sequential engine's steps."""
    why: str
    evaluation_threads: int = 1
    """Threads inside one operation of an evaluation, whose batches are larger."""
    processes: int = 1
    """Processes that divide a cohort; each has these numbers of lanes, workers and threads."""
    accelerator: Literal["cpu", "gpu"] = "cpu"
    """Where clients train; with several processes each has its own GPU."""
    convolution: Convolving = "torch"
    """Which convolutions a compiled program has: torch's, or fedlit's direct ones."""
    compiles: Compiles = "loop"
    """What is compiled: the loop over a client's steps, or one step."""
    loops: Loops = "lean"
    """Which loops and matrix products a compiled program has: fedlit's (lean), or torch's."""
    evaluation: Evaluation = "eager"
    """How models are evaluated."""
    evaluation_why: str = "as it was when this run began"

    def line(self) -> str:
        """One line for the user."""
        parts = [self.engine]
        if self.engine == "vectorized":
            parts += [f"{counted(self.lanes, 'lane')} × {counted(self.workers, 'worker')}"]
            parts += [_COMPILED[self.compiles] if self.compiled else "eager"]
            parts += ["loops of torch's compiler"] if self.loops == "inductor" else []
        parts += ["direct convolutions"] if self.convolution == "direct" else []
        parts += [f"{self.processes} processes"] if self.processes > 1 else []
        parts += ["on a GPU"] if self.accelerator == "gpu" else []
        return f"engine: {', '.join(parts)} ({self.why})"


@dataclass(frozen=True)
class Request:
    """The user's options; None lets `choose` decide."""

    engine: EngineName = "auto"
    lanes: int | None = None
    workers: int | None = None
    compiled: bool | None = None
    threads: int | None = None
    accelerator: Accelerator = "cpu"
    has_gpu: bool = False
    """Whether there is a GPU for every process."""


def check_same_engine(recorded: dict[str, Any], request: Request, processes: int = 1) -> None:
    """Refuse another engine than the one a resumed run began with: it would not give the same bits.

    Another number of processes or another accelerator changes the bits anyway; then lanes and workers may change too.
    """
    again = recorded["choice"].get("processes", 1) == processes and stays(recorded, request)
    for name in ("engine", "lanes", "workers", "compiled", "threads") if again else ("engine", "compiled"):
        asked, before = getattr(request, name), recorded["choice"][name]
        if asked not in (None, "auto", before, recorded["request"].get(name)):
            raise ResumeError(
                f"trainer.{name} is {asked}, but the run to resume used {before}, and another value would not give the "
                f"same bits. Leave trainer.{name} out, or start anew in another folder (--run DIR)."
            )


def stays(recorded: dict[str, Any], request: Request) -> bool:
    """Whether a resumed run trains on the accelerator that it had, because no other is asked for."""
    recorded_accelerator = recorded["choice"].get("accelerator", "cpu")
    return request.accelerator == recorded_accelerator or (
        request.accelerator == "auto" and (recorded_accelerator == "cpu" or request.has_gpu)
    )


def resumed_request(recorded: dict[str, Any], request: Request) -> Request:
    """The request of a run that continues with other processes or on another device: the same engine and form."""
    choice = recorded["choice"]
    if not stays(recorded, request):  # the recorded form may not exist on the new accelerator
        return replace(request, engine=choice["engine"] if choice["engine"] == "sequential" else "auto")
    form = choice["compiled"] if choice["engine"] == "vectorized" else None
    return replace(request, engine=choice["engine"], compiled=form, accelerator=choice.get("accelerator", "cpu"))
