"""Laws of the server callbacks: whose take part, in which order, and who replaces whom."""

import logging

import pytest
from pytorch_lightning import Callback

from fedlit import ServerCallback
from fedlit.server.base import merge_callbacks

HOOKS = {
    "on_cohort_start": 3,
    "on_cohort_trained": 3,
    "on_pseudo_gradient": 3,
    "on_server_step_end": 3,
    "on_users_measured": 4,
    "on_round_metrics": 4,
}
"""How many arguments each hook takes: trainer, client, cohort, and the records or metrics where there are some."""


class Dual(ServerCallback):
    role = "dual"


class Control(ServerCallback):
    role = "control"


def test_algorithms_callbacks_come_before_the_users() -> None:
    own, users = [Dual(), Control()], [ServerCallback(), Callback()]
    assert merge_callbacks(own, users) == own + users


def test_users_callback_replaces_the_algorithms_of_the_same_role() -> None:
    own, users = [Dual(), Control()], [Dual()]
    assert merge_callbacks(own, users) == [own[1], users[0]]


def test_replacement_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        merge_callbacks([Dual(), Control()], [Dual()])
    (line,) = caplog.messages
    assert "'dual' instead of Dual" in line


def test_nothing_is_told_where_nothing_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedlit"):
        merge_callbacks([Dual()], [Control(), ServerCallback(), Callback()])
    assert caplog.messages == []


def test_callbacks_without_a_role_replace_nobody() -> None:
    own, users = [ServerCallback()], [ServerCallback()]
    assert merge_callbacks(own, users) == own + users


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_that_is_not_overridden_does_nothing(hook: str) -> None:
    arguments = [None] * HOOKS[hook]
    assert getattr(ServerCallback(), hook)(*arguments) is None
