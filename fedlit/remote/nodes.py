"""Nodes: the clients of a run as the server sees them. Client k is the node with the k-th name."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from fedlit.client.messages import Message
from fedlit.errors import ProcessError, require
from fedlit.remote.link import Link
from fedlit.remote.run_plan import RunPlan
from fedlit.results.events import Asked

log = logging.getLogger("fedlit")


class Nodes:
    """The nodes of a run.

    Args:
        link: carries messages to them.
        names: of all nodes, in the order of the clients' numbers.
    """

    def __init__(self, link: Link, names: Sequence[str]) -> None:
        self.link = link
        self.names = list(names)
        self.plan_of: Callable[[int], RunPlan]
        """Client -> what its node must know of the run; set when the run begins."""
        self.absent: dict[str, str] = {}
        """Nodes that did not answer last time, and why."""
        self.asked: dict[str, Asked] = {}
        """train, evaluate or score -> the clients that were asked for it last."""
        self._told: set[int] = set()
        """Clients whose nodes were told the run."""
        self._reasons: dict[str, str] = {}
        """What the link says of nodes that have not answered the present request."""
        self._after_s: dict[int, float] = {}
        """Client -> seconds until its answer to the present request."""

    def ask(self, kind: str, requests: Mapping[int, Message]) -> dict[int, Message]:
        """Client -> its node's answer, in the order of the requests; who did not answer is logged and left out.

        A node is told the run with its first request, and again if it does not know it, because it was started again.
        """
        if not requests:
            return {}
        messages = self.addressed(kind, requests)
        self._reasons, self._after_s = {}, {}
        answers = self._exchange(self._with_plans(messages, messages.keys() - self._told))
        self._told |= answers.keys()
        strangers = [client for client, answer in answers.items() if "unknown_run" in answer]
        if strangers:
            answers |= self._exchange(self._with_plans({client: messages[client] for client in strangers}, strangers))
        came = {client: answer for client, answer in answers.items() if not answer.keys() & {"unknown_run", "failed"}}
        why = {client: answer.get("failed", "does not know the run") for client, answer in answers.items()}
        why = {client: self._reasons.get(self.names[client], "did not answer") for client in requests} | why
        missing = {client: why[client] for client in requests if client not in came}
        self.note(requests, missing)
        self.asked[kind] = Asked({client: after for client, after in self._after_s.items() if client in came}, missing)
        return {client: came[client] for client in requests if client in came}

    def addressed(self, kind: str, requests: Mapping[int, Message]) -> dict[int, Message]:
        """The requests as messages of this run."""
        run = self.plan_of(next(iter(requests))).run
        return {client: {**request, "kind": kind, "run": run} for client, request in requests.items()}

    def _with_plans(self, messages: Mapping[int, Message], new: Collection[int]) -> dict[int, Message]:
        """The messages, with the plan of the run for these clients."""
        plans = {client: {"plan": self.plan_of(client).message()} for client in new}
        return {client: message | plans.get(client, {}) for client, message in messages.items()}

    def _exchange(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        answers = self.link.ask({self.names[client]: message for client, message in messages.items()})
        self._reasons |= answers.missing
        number_of = {self.names[client]: client for client in messages}
        for name, seconds in answers.after_s.items():
            self._after_s.pop(number_of[name], None)  # who is asked twice answers last
            self._after_s[number_of[name]] = seconds
        return {client: answers.came[self.names[client]] for client in messages if self.names[client] in answers.came}

    def note(self, asked: Iterable[int], missing: Mapping[int, str]) -> None:
        """Log who of these clients is absent now and was not before; the others are there again."""
        for client, why in missing.items():
            if self.absent.get(self.names[client]) != why:
                log.warning(f"{self.names[client]} {why}: the round goes on without it.")
            self.absent[self.names[client]] = why
        for client in asked:
            if client not in missing:
                self.absent.pop(self.names[client], None)

    def leave_out(self, client: int, why: str) -> None:
        """Log that the answer of a client that has trained is not used."""
        log.warning(f"{self.names[client]} {why}. The round goes on without it.")
        asked = self.asked["train"]
        others = {other: seconds for other, seconds in asked.answered.items() if other != client}
        self.asked["train"] = Asked(others, {**asked.missing, client: why})

    def require_some(self, came: Sequence[int], what: str) -> None:
        """ProcessError if nobody is left: the round is undone, and the run can be continued."""
        if not came:
            why = "; ".join(f"{name} {reason}" for name, reason in self.absent.items()) or "no answer fits"
            raise ProcessError(
                f"No node has sent {what} ({why}). The round is undone; continue with --resume once nodes are there "
                "again."
            )


_HELLOS = 2
"""How often a node is asked at first: an answer may be lost on the way, and nothing has begun yet."""


def meet(link: Link, names: Sequence[str]) -> dict[str, Message]:
    """What each of these nodes says of its data, by its name in sorted order; ProcessError if one is silent."""
    doubled = sorted({name for name in names if list(names).count(name) > 1})
    require(not doubled, f"Two nodes have the name '{''.join(doubled[:1])}'. Give every node a name of its own.")
    came: dict[str, Message] = {}
    missing: dict[str, str] = {}
    for _ in range(_HELLOS):
        answers = link.ask({name: {"kind": "hello"} for name in sorted(names) if name not in came})
        came, missing = came | dict(answers.came), dict(answers.missing)
        if not missing:
            break
    failed = missing | {name: one["failed"] for name, one in came.items() if "failed" in one}
    if failed:
        name, why = next(iter(failed.items()))
        raise ProcessError(f"{name} {why}, so the run cannot begin.")
    for name, answer in came.items():
        require(
            answer["name"] == name,
            f"The node with the key of {name} was started as --name {str(answer['name'])[:50]}. Start it with --name "
            f"{name}, or give it its own key.",
        )
    return {name: came[name] for name in sorted(names)}
