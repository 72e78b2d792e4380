"""A table's runs: for every cell the points of its grid, then the best of them, then the seeds of the table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlit.errors import ConfigError, RunError
from fedlit.experiments.experiment import Experiment
from fedlit.experiments.fit_arguments import parse_fit
from fedlit.experiments.jobs import Job
from fedlit.experiments.reproduce.reading import Reading, value_of
from fedlit.experiments.reproduce.table import Cell, TableFile
from fedlit.experiments.sweep.sweep import readable
from fedlit.experiments.trials import Trial, TrialLog
from fedlit.metrics.catalogue import format_value, metric
from fedlit.report.figures.searches import short_names
from fedlit.results.runs import read_run


@dataclass(frozen=True)
class Stage:
    """A step of a search: points run for so many rounds, and the best go on."""

    name: str
    rounds: int
    keep: int


class Reproduction(Experiment):
    """The runs of some cells of a table, in a folder."""

    what = "runs"
    cost: float

    def __init__(self, table: TableFile, cells: Sequence[Cell], seeds: int, rounds: int, trial_log: TrialLog) -> None:
        super().__init__(trial_log)
        self.table, self.cells, self.seeds, self.rounds = table, cells, seeds, rounds
        self.sources = list({table.source(cell).name: table.source(cell) for cell in cells}.values())
        searches = (table.search_of(cell) for cell in self.sources)
        self.searches = list({cell.name: cell for cell in searches}.values())
        self.tries = sum(count for cell in self.searches for _, count in self.counted_stages(cell))
        self.total = self.tries + seeds * len(self.sources)
        training = seeds * sum(table.seconds(cell, self.rounds_of(cell)) for cell in self.sources)
        self.cost = training + sum(self.search_cost(cell) for cell in self.searches)

    def jobs(self) -> Iterator[Job | None]:
        """Cell by cell, each after its search; while one waits for what still runs, the next goes on."""
        strands: list[Iterator[Job | None]] = []
        begun: set[str] = set()
        for cell in self.sources:
            search = self.table.search_of(cell)
            strands += [self.search(search)] if search.name not in begun else []
            strands.append(self.own_runs(cell))
            begun.add(search.name)
        while strands:
            job, strands = first_ready(strands)
            if job is not None or strands:
                yield job

    def search(self, cell: Cell) -> Iterator[Job | None]:
        """The runs that find a cell's values; None while the next depends on what still runs."""
        points: Sequence[Mapping[str, Any]] = cell.points()
        for stage in self.stages(cell):
            jobs = self.stage_jobs(cell, stage, points)
            yield from jobs
            while not all(self.is_judged(job) for job in jobs):
                yield None
            points = self.best(jobs, stage.keep)

    def own_runs(self, cell: Cell) -> Iterator[Job | None]:
        """The table's runs of a cell, once its values are known; none where no point of its grid could be run."""
        while (points := self.candidates(cell)) is None:
            yield None
        for point in points:
            yield from (self.job(cell, point, seed) for seed in range(self.seeds))

    def stages(self, cell: Cell) -> list[Stage]:
        """Of the search for a cell's values; none without a grid."""
        tuning = self.table.tuning
        if not cell.row.grid or tuning is None:
            return []
        rounds = self.rounds_of(cell)
        last = Stage("try", rounds, 1)
        short = tuning.rounds is not None and tuning.rounds < rounds and tuning.keep < len(cell.points())
        if not short:
            return [last]
        look = Stage("look", tuning.rounds or 0, tuning.keep)
        return [look, last] if tuning.keep > 1 else [look]

    def stage_jobs(self, cell: Cell, stage: Stage, points: Sequence[Mapping[str, Any]]) -> list[Job]:
        """A run of every point."""
        assert self.table.tuning is not None, "a stage belongs to a search"
        seed, every = self.table.tuning.seed, cell.points()
        return [
            self.job(cell, point, seed, f"{stage.name}{every.index(dict(point)):02d}", rounds=stage.rounds)
            for point in points
        ]

    def job(
        self, cell: Cell, point: Mapping[str, Any], seed: int, name: str | None = None, *, rounds: int | None = None
    ) -> Job:
        """One run: of the table, or, with a name, of the search before it."""
        rounds = rounds or self.rounds_of(cell)
        full_name = f"{cell.slug}-{name or f'seed{seed}'}"
        labels = short_names(list(point))
        return Job(
            full_name,
            self.folder / full_name,
            self.table.arguments(cell, point, seed, rounds),
            rounds,
            {"cell": cell.name, "searched": name is not None, **point},
            about=" ".join(f"{labels[option]}={readable(value)}" for option, value in point.items()),
            cost=self.table.seconds(cell, rounds),
        )

    def best(self, jobs: Sequence[Job], keep: int) -> list[dict[str, Any]]:
        """The points of a stage that were best by validation, the first of equals; none that failed."""
        assert self.table.tuning is not None, "a stage belongs to a search"
        finished = [job for job in jobs if self.is_finished(job)]
        sign = 1 if metric(self.table.tuning.metric).best == "min" else -1
        ranked = sorted(finished, key=lambda job: sign * (self.trial_log.trials[job.name].value or 0.0))
        return [{option: job.parameters[option] for option in self.grid_of(job)} for job in ranked[:keep]]

    def grid_of(self, job: Job) -> list[str]:
        """The options that were searched for its cell."""
        return [name for name in job.parameters if name not in ("cell", "searched")]

    def is_judged(self, job: Job) -> bool:
        """Whether it has come to an end, this way or that."""
        trial = self.trial_log.trials.get(job.name)
        return trial is not None and trial.arguments == list(job.arguments) and trial.status in ("finished", "failed")

    def candidates(self, cell: Cell) -> list[dict[str, Any]] | None:
        """The point that the search found for a cell with runs, none where all failed; None while it is not done."""
        search = self.table.search_of(cell)
        points = search.points()
        for stage in self.stages(search):
            jobs = self.stage_jobs(search, stage, points)
            if not all(self.is_judged(job) for job in jobs):
                return None
            points = self.best(jobs, stage.keep)
        return points

    def found(self, cell: Cell) -> dict[str, Any] | None:
        """The values that the search found for a cell; None while it is not done, or where all failed."""
        points = self.candidates(self.table.source(cell))
        return points[0] if points else None

    def is_whole(self) -> bool:
        """Whether all runs of the table are finished."""
        jobs = [self.seed_jobs(cell) for cell in self.sources]
        return all(jobs) and all(self.is_finished(job) for jobs_of_cell in jobs for job in jobs_of_cell)

    def is_finished(self, job: Job) -> bool:
        """Whether it came to its end as it should."""
        return self.is_judged(job) and self.trial_log.trials[job.name].status == "finished"

    def seed_jobs(self, cell: Cell) -> list[Job]:
        """The table's runs of a cell; none while its values are not known."""
        source, point = self.table.source(cell), self.found(cell)
        return [] if point is None else [self.job(source, point, seed) for seed in range(self.seeds)]

    def rate(self, trial: Trial) -> str:
        """Read a run's number; a point of a search that lacks it has failed."""
        cells = {cell.name: cell for cell in (*self.searches, *self.sources)}
        cell_reading, searched = self.table.reading_of(cells[trial.parameters["cell"]]), trial.parameters["searched"]
        reading = self.search_reading() if searched else cell_reading
        try:
            run = read_run(self.folder / trial.run)
            trial.value = value_of(run, reading)
        except RunError as error:
            trial.status, trial.reason = "failed", str(error)
            return ""
        if trial.value is None and searched:
            names = ", ".join(run.metrics)
            trial.status, trial.reason = "failed", f"It did not measure {reading.metric}. It measured {names}."
            return ""
        if trial.value is None:  # a threshold that was never reached; other cells may read the same run
            return f"no {reading.metric}"
        return f"{reading.metric} {format_value(reading.metric, trial.value)}"

    def search_reading(self) -> Reading:
        """How the runs of a search are read."""
        tuning = self.table.tuning
        assert tuning is not None, "a search has its reading"
        return Reading(tuning.metric, tuning.last, tuning.best)

    def rounds_of(self, cell: Cell) -> int:
        """Of its runs: the file's, or as many fewer as were asked for in the whole table."""
        return max(1, round(self.table.rounds_of(cell) * self.rounds / self.table.rounds))

    def counted_stages(self, cell: Cell) -> list[tuple[Stage, int]]:
        """The stages with the number of their runs."""
        count, counted = len(cell.points()), []
        for stage in self.stages(cell):
            counted.append((stage, count))
            count = min(count, stage.keep)
        return counted

    def search_cost(self, cell: Cell) -> float:
        """Seconds of the runs that find its values, one after the other."""
        return sum(count * self.table.seconds(cell, stage.rounds) for stage, count in self.counted_stages(cell))

    def check(self) -> None:
        """Refuse what fit would refuse, before any run: every row and every column is tried once."""
        tried: set[str] = set()
        for cell in self.sources:
            if tried >= {f"row {cell.row.name}", f"column {cell.column.name}"}:
                continue
            tried |= {f"row {cell.row.name}", f"column {cell.column.name}"}
            try:
                parsed = parse_fit(self.table.arguments(cell, cell.points()[0], 0, self.rounds_of(cell)))
            except ConfigError as error:
                raise ConfigError(f"{self.table.path.name}: {cell.name}: {error}") from error
            self.check_best(cell, parsed.trainer.eval_every)

    def check_best(self, source: Cell, eval_every: int) -> None:
        """The best round is one of all rounds, not of every fifth, which misses the best of them most of the time."""
        readers = [cell for cell in self.cells if self.table.source(cell).name == source.name]
        asked = [f"{cell.name} is read as" for cell in readers if self.table.reading_of(cell).best]
        tuning = self.table.tuning
        if tuning is not None and tuning.best and self.stages(self.table.search_of(source)):
            asked.append(f"the values of {source.name} are searched by")
        if not asked or eval_every == 1:
            return
        rounds = self.rounds_of(source)
        raise ConfigError(
            f"{self.table.path.name}: {asked[0]} the best round, but trainer.eval_every is {eval_every}, so "
            f"{-(-rounds // eval_every)} of {rounds} rounds would be evaluated. Set trainer.eval_every: 1, or read the "
            "mean of the last rounds."
        )


def first_ready(strands: list[Iterator[Job | None]]) -> tuple[Job | None, list[Iterator[Job | None]]]:
    """(the next job of the first strand that has one now, strands that are not at their end)."""
    left = list(strands)
    for strand in strands:
        try:
            job = next(strand)
        except StopIteration:
            left.remove(strand)
            continue
        if job is not None:
            return job, left
    return None, left
