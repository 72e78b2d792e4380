"""Forward passes for evaluation: losses and the numbers of measures, for the rows of many models.

The work is a sequence of models, each with row numbers. The result of a row depends only on its model and on the rows
of its own piece, never on the users evaluated with it: a resumed run groups users in another way, and must get the same
bits.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlit.client.base import Client
from fedlit.engines.base import Rows, Store, frozen_in, threads, with_frozen
from fedlit.engines.compiler import compile_program
from fedlit.engines.device import Device
from fedlit.inputs import mapped, split
from fedlit.params import Params
from fedlit.ranks import Ranks

log = logging.getLogger("fedlit")

CHUNK = 1024
"""Rows of a pass: 40,000 rows of LeNet took 3.1 s at 256 and 5.5 s at 4,096; for dense nets it does not matter."""
COMPILED_ROWS = 64
"""Rows of a compiled pass: LeNet's activations fit into a core's cache, and the cost of a call is small beside it."""
HELD_BYTES = 64e6
"""Most bytes of models in memory at once; they may have been read from a disk."""

Models = Iterable[tuple[Mapping[str, Tensor], Tensor]]
"""Models, each with the row numbers of its evaluation; they are made on demand."""


class Piece(NamedTuple):
    """A model and at most CHUNK of its rows: the results may depend on nothing else."""

    model: Mapping[str, Tensor]
    rows: Tensor


class Forward:
    """The eager form: rows of several models are gathered and scored together, but pass the net one model at a time.

    Args:
        client: gives the net, the losses and the measures.
        rows: the data's gather function.
        device: where the net computes, and in which numbers.
        ranks: the processes of the run, which get a heartbeat after every group.
    """

    def __init__(self, client: Client, rows: Rows, device: Device | None = None, ranks: Ranks | None = None) -> None:
        self.client, self.rows = client, rows
        self.device, self.ranks = device or Device(), ranks or Ranks()
        self.most_rows = CHUNK
        """Most rows that are gathered at once."""

    def __call__(self, store: Store, models: Models) -> Params:
        """(rows,) losses and (rows, k) numbers of measures, for all models in order.

        The net must be in evaluation mode.
        """
        store = self.device.store(store)
        parts = []
        sent = ((self.device.sent(model), rows) for model, rows in models)
        for pieces in grouped(sent, self.most_rows):  # not in inference mode: the iteration may adapt a model
            with torch.inference_mode(), self.device.computing():
                parts.append(self.scores(store, pieces))
            self.ranks.heartbeat()
        return self.device.home({name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def scores(self, store: Store, pieces: Sequence[Piece]) -> Params:
        """The losses and numbers of one group."""
        x, y = self.rows(store, self.device.put(torch.cat([piece.rows for piece in pieces])))
        if len(pieces) == 1:
            return self.client.score(pieces[0].model, x, y)
        # Copies: the bits of a product may depend on the memory alignment of its input, and so on the pieces before it.
        parts = [mapped(torch.clone, part) for part in split(x, [len(piece.rows) for piece in pieces])]
        outputs = [self.client.output(piece.model, part) for piece, part in zip(pieces, parts, strict=True)]
        return self.client.scored(torch.cat(outputs), y)


def grouped(models: Models, most_rows: int) -> Iterator[list[Piece]]:
    """Groups of pieces with at most `most_rows` rows and HELD_BYTES of models, but with at least one piece."""
    group: list[Piece] = []
    count = held_bytes = 0
    for model, rows in models:
        size = sum(value.nbytes for value in model.values())
        if group and held_bytes + size > HELD_BYTES:
            yield group
            group, count, held_bytes = [], 0, 0
        held_bytes += size
        for part in torch.split(rows, CHUNK):
            if group and count + len(part) > most_rows:
                yield group
                group, count, held_bytes = [], 0, size
            group.append(Piece(model, part))
            count += len(part)
    if group:
        yield group


class CompiledForward(Forward):
    """The compiled form: passes of COMPILED_ROWS rows, called by several threads; the entry releases the GIL.

    The last pass of a piece is filled up with copies of one of its rows, whose results are dropped. The bits do not
    depend on the thread of a pass. The program is compiled on first use; if that fails, evaluation stays eager, and
    `why_not` says why.

    Args:
        client: gives the net, the losses and the measures.
        rows: the data's gather function; runs inside the program.
        threads: number of threads that call the program.
        ranks: the processes of the run.
        direct_convolution: whether the program has fedlit's convolutions instead of torch's.
    """

    def __init__(
        self, client: Client, rows: Rows, threads: int, ranks: Ranks | None = None, *, direct_convolution: bool = True
    ) -> None:
        super().__init__(client, rows, ranks=ranks)
        self.threads, self.direct_convolution = threads, direct_convolution
        self.most_rows = 16 * CHUNK  # threads wait for each other at a group's end, and rows are not gathered here
        self.why_not: str | None = None
        """Why the program is not compiled; None if it is, or was not used yet."""
        self._program: Program | None = None
        self._pool = ThreadPoolExecutor(max(1, threads - 1), "fedlit-forward", torch.set_num_threads, (1,))

    def __call__(self, store: Store, models: Models) -> Params:
        """As `Forward`, but with one thread inside torch: its idle threads would take cores from the passes."""
        with threads(1):
            return super().__call__(with_frozen(self.client.net, store), models)

    def scores(self, store: Store, pieces: Sequence[Piece]) -> Params:
        """The losses and numbers of one group."""
        filled = [piece for piece in pieces if len(piece.rows)]
        program = self._ready(store, filled[0].model) if filled else None
        if program is None or not all(program.fits(piece.model, store) for piece in filled):
            return super().scores(store, pieces)
        models = {id(piece.model): program.inputs(piece.model) for piece in filled}
        calls = [(models[id(piece.model)], part) for piece in filled for part in torch.split(piece.rows, COMPILED_ROWS)]
        results: list[Sequence[Tensor]] = [()] * len(calls)
        waiting = iter(enumerate(calls))

        def work(heartbeat: Callable[[], None]) -> None:
            tensors = program.held(store)
            for number, (model, rows) in waiting:
                results[number] = program(model, tensors, rows)
                heartbeat()

        self._in_threads(work, waiting)
        return {name: torch.cat(parts) for name, parts in zip(program.names, zip(*results, strict=True), strict=True)}

    def _in_threads(self, work: Callable[[Callable[[], None]], None], waiting: Iterator[Any]) -> None:
        """All threads take calls from `waiting`; the calling thread too, and it alone gives heartbeats."""
        jobs = [self._pool.submit(work, lambda: None) for _ in range(self.threads - 1)]
        try:
            work(self.ranks.heartbeat)
        finally:
            for _ in waiting:  # if this thread failed or was stopped, the others get no further calls
                pass
            wait(jobs)
        for job in jobs:
            job.result()

    def _ready(self, store: Store, model: Mapping[str, Tensor]) -> "Program | None":
        if self._program is None and self.why_not is None:
            log.info("compiling the evaluation, once: about 10 s")
            try:
                with self.ranks.without_timeout():
                    self._program = Program(self.client, self.rows, model, store, self.direct_convolution)
            except Exception as error:  # a net, a loss or a measure that cannot be traced may raise anything
                self.why_not = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                log.info(f"The evaluation is not compiled ({self.why_not}). It takes longer, with the same results.")
        return self._program


class Program:
    """One compiled pass, for models and data sets with tensors of the same shapes."""

    def __init__(
        self, client: Client, rows: Rows, model: Mapping[str, Tensor], store: Store, direct_convolution: bool
    ) -> None:
        self.tensors, self.stored = list(model), list(store)
        self.names: list[str] = []
        self._like = self._shapes(model, store)

        def program(*args: Tensor) -> tuple[Tensor, ...]:
            *tensors, index = args
            count = len(self.tensors)
            params = dict(zip(self.tensors, tensors, strict=False))
            data = dict(zip(self.stored, tensors[count:], strict=True))
            scored = client.score(params | frozen_in(data), *rows(data, index))
            self.names = list(scored)
            return tuple(scored.values())

        index = torch.zeros(COMPILED_ROWS, dtype=torch.int64)
        # Not in inference mode: the tracer's tensors would be of another kind.
        with torch.inference_mode(False), torch.no_grad():
            examples = [value.clone() for value in self.inputs(model)]
            self._compiled = compile_program(
                program, [*examples, *self.held(store), index], direct_convolution=direct_convolution
            )

    def _shapes(self, model: Mapping[str, Tensor], store: Store) -> list[Any]:
        shapes = [(name, value.shape, value.dtype) for name, value in model.items()]
        return shapes + [(name, value.shape, value.dtype, value.stride()) for name, value in store.items()]

    def fits(self, model: Mapping[str, Tensor], store: Store) -> bool:
        """Whether the pass was compiled for tensors of these shapes."""
        return self._shapes(model, store) == self._like

    def inputs(self, model: Mapping[str, Tensor]) -> list[Tensor]:
        """A model as contiguous copies, wherever it was kept: a product's bits may depend on the memory layout."""
        return [model[name].detach().clone(memory_format=torch.contiguous_format) for name in self.tensors]

    def held(self, store: Store) -> list[Tensor]:
        """The data as new tensor objects: threads that share an object slow each other down by its reference count."""
        return [store[name].detach() for name in self.stored]

    def __call__(self, model: Sequence[Tensor], store: Sequence[Tensor], rows: Tensor) -> Sequence[Tensor]:
        """The results of at most COMPILED_ROWS rows."""
        missing = COMPILED_ROWS - len(rows)
        if missing == 0:
            results: Sequence[Tensor] = self._compiled(*model, *store, rows)
            return results
        filled = torch.cat([rows, rows[:1].expand(missing)])
        return [part[: len(rows)] for part in self._compiled(*model, *store, filled)]
