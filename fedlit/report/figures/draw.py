"""Which figures there are, what each needs, and how they come on disk."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedlit.files import writing
from fedlit.metrics.catalogue import CLOCK
from fedlit.metrics.measures import Measure
from fedlit.report.figures import bars, rounds, search_figures, servers, sweep_figures, users
from fedlit.report.figures.base import CLIENT_COLUMN, Drawn, Figure, have_all, states_of
from fedlit.report.figures.style import DPI, look, styles_of
from fedlit.results.folder import make_folder
from fedlit.results.runs import Group

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


@dataclass(frozen=True)
class Plan:
    """A figure that can be drawn of groups which have all that it needs."""

    needs: tuple[str, ...]
    """Metrics, `train/loss`, columns of records, `clients.weight`, or ANY_STATE; `{}` stands for a measure's name."""
    draw: Callable[..., Iterable[Drawn]]
    """Given groups, a style for each and, where it needs ANY_STATE or is of measures, the `state` or the `measure`."""
    measures: Literal["none", "first", "every"] = "none"
    """Whether it is drawn of the measures that runs are judged by, or of every one."""

    def of(self, states: Iterable[str], measures: Sequence[Sequence[Measure]]) -> Iterator["Plan"]:
        """Itself, or, where it is about any state or measure, one plan for each of these.

        Args:
            states: numbers that clients keep.
            measures: of each run.
        """
        if self.measures != "none":
            drawn = [one[:1] if self.measures == "first" else one for one in measures]
            for measure in dict.fromkeys(measure for one in drawn for measure in one):
                yield Plan(tuple(need.format(measure.name) for need in self.needs), partial(self.draw, measure=measure))
            return
        if ANY_STATE not in self.needs:
            yield self
            return
        for name in states:
            needs = (f"{CLIENT_COLUMN}{name}" if need == ANY_STATE else need for need in self.needs)
            yield Plan(tuple(needs), partial(self.draw, state=name))


ANY_STATE = f"{CLIENT_COLUMN}*"
"""A number that clients keep, whatever its name."""

PLANS: dict[str, Plan] = {
    "accuracy": Plan(("global/{}",), rounds.accuracy, "every"),
    "accuracy_by_time": Plan((CLOCK,), rounds.accuracy_by_time, "first"),
    "loss": Plan(("train/loss",), rounds.loss),
    "user_accuracy": Plan(("personal/{}",), rounds.user_accuracy, "first"),
    "min_max_user": Plan(("min_user/{}", "max_user/{}"), rounds.min_max_user, "first"),
    "worst_best_user": Plan(("users/{}_min", "users/{}_max"), rounds.worst_best_user, "first"),
    "coefficients_by_round": Plan(("min_user/weight", "max_user/weight"), rounds.coefficients_by_round),
    "weight_by_state": Plan(("clients.weight", ANY_STATE), users.weight_by_state),
    "weight_by_size": Plan(("clients.weight",), users.weight_by_size),
    "state_by_size": Plan((ANY_STATE,), users.state_by_size),
    "weight_by_client_group": Plan(("clients.weight",), rounds.weight_by_client_group),
    "variance": Plan(("users/{}_var",), bars.variance, "first"),
    "user_ranks": Plan(("clients.{}_global",), users.user_ranks, "first"),
    "consensus": Plan(("cloud/consensus",), rounds.consensus),
    "consensus_by_time": Plan(("cloud/consensus", CLOCK), rounds.consensus_by_time),
    "server_accuracy": Plan(("servers.{}",), servers.server_accuracy, "first"),
    "timeline": Plan(("servers.start_s", "servers.finish_s"), servers.timeline),
    "against_first_state": Plan((), sweep_figures.against_first_state),
    "swept_at_the_end": Plan((), sweep_figures.swept_at_the_end),
    "swept_by_round": Plan((), sweep_figures.swept_by_round),
    "searched": Plan((), search_figures.searched),
}


def draw_figures(
    groups: Sequence[Group],
    folder: Path,
    report: Callable[[str], None] | None = None,
    kinds: Iterable[str] | None = None,
) -> list[Figure]:
    """Draw what these runs can show as <name>.png and <name>.pdf; needs no display.

    Args:
        groups: what `group_runs` returns; a group has the same colour in all figures.
        folder: where the files go; made if it does not exist.
        report: called with the name of each figure before it is written.
        kinds: which of PLANS to draw; all unless given.
    """
    make_folder(folder, "--out DIR")
    styles = styles_of(group.label for group in groups)
    figures = []
    states = states_of(groups)
    measures = [run.measures for group in groups for run in group.runs]
    pictures: list[tuple[Picture, Path]] = []
    for plan in (plan for kind in (PLANS if kinds is None else kinds) for plan in PLANS[kind].of(states, measures)):
        able = list(have_all(groups, plan.needs))
        with look():
            for drawn in plan.draw(able, styles) if able else ():
                if report is not None:
                    report(drawn.figure.name)
                pictures.append((drawn.picture, folder / drawn.figure.name))
                figures.append(replace(drawn.figure, caption=drawn.figure.caption + left_out(groups, able, plan)))
    with look():
        save_all(pictures)
    return figures


def left_out(groups: Sequence[Group], able: Sequence[Group], plan: Plan) -> str:
    """The end of a caption: which groups are not in the figure, and why."""
    others = [group for group in groups if group not in able]
    if not others:
        return ""
    lacking = [need for need in plan.needs if len(list(have_all(others, [need]))) < len(others)]
    what = " or ".join(need.removeprefix(CLIENT_COLUMN) for need in lacking)
    return f" Without {what}, and so not shown: {', '.join(group.label for group in others)}."


def save_all(pictures: Sequence[tuple["Picture", Path]]) -> None:
    """Save them in a process for each core, since to save a picture takes far longer than to make it.

    What another process could not save is saved here, so that its error is raised here.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1  # forks are not safe elsewhere
    shares = [pictures[k::cores] for k in range(cores)]
    fork = multiprocessing.get_context("fork") if cores > 1 else multiprocessing
    processes = [fork.Process(target=_save_share, args=(share,)) for share in shares[1:] if share]
    for process in processes:
        process.start()
    for picture, path in shares[0]:
        save(picture, path)
    for process, share in zip(processes, shares[1:], strict=False):
        process.join()
        for picture, path in share if process.exitcode else ():
            save(picture, path)


def _save_share(pictures: Sequence[tuple["Picture", Path]]) -> None:
    """Save them; the exit code says whether that failed, and the parent why."""
    try:
        for picture, path in pictures:
            save(picture, path)
    except BaseException:
        os._exit(1)


def save(picture: "Picture", path: Path) -> None:
    """Write both files, each whole or not at all; the same picture gives the same bytes."""
    picture.draw_without_rendering()
    picture.set_layout_engine("none")  # laid out once, not once for each file: that is most of the time
    options: dict[str, dict[str, Any]] = {"png": {"dpi": DPI}, "pdf": {"metadata": {"CreationDate": None}}}
    for kind, format_options in options.items():
        file = path.with_name(f"{path.name}.{kind}")
        with writing(file) as draft:
            picture.savefig(draft, format=kind, **format_options)
