"""`fedlit cloud`: trains as `fedlit fit` does, with coordinator, servers and clients as processes on this machine."""

from functools import partial

from fedlit.cli.fit import conclude, logged_to
from fedlit.config.cloud_cli import CloudCLI, PartCLI
from fedlit.config.files import resolve_configs
from fedlit.errors import require
from fedlit.results.folder import RunFolder
from fedlit.rounds.nodes.coordinator import CoordinatorLoop
from fedlit.rounds.nodes.plan import Plan, check_counts, check_options, divide, members_of
from fedlit.rounds.nodes.supervisor import Supervisor
from fedlit.trainer.trainer import quiet_lightning
from fedlit.trainer.wandb.session import tracked


def cloud(arguments: list[str]) -> int:
    """Start the processes, train, end them; ends with a small table and the run folder's path."""
    quiet_lightning()
    resolved = resolve_configs(arguments)
    cli = CloudCLI(resolved)
    trainer, folder = cli.trainer, cli.trainer.folder
    assert isinstance(folder, RunFolder)
    plan = make_plan(cli)
    with tracked(trainer, artifact=cli.config.wandb_artifact), logged_to(folder):
        supervisor = Supervisor(plan, partial(build_part, resolved), cli.config.port)
        try:
            supervisor.start()
            trainer.use_loop(partial(CoordinatorLoop, supervisor=supervisor))
            trainer.fit(cli.model, datamodule=cli.datamodule)
        finally:
            supervisor.close()
    return conclude(trainer)


def build_part(arguments: list[str]) -> PartCLI:
    """What each of the other processes reads from the same command line."""
    quiet_lightning()
    return PartCLI(arguments)


def make_plan(cli: CloudCLI) -> Plan:
    """Who is which process, checked before any is started. The data are built: their files are then there for all."""
    config, options, data = cli.config, cli.trainer.loop.options, cli.datamodule
    require(
        config.pace != "real" or not config.resume,
        "--resume continues a run to the same numbers, but --pace real follows the real times, which differ. Give "
        "--pace replay, or start anew with --overwrite.",
    )
    data.prepare_data()
    data.setup("fit")
    check_options(cli.model, data, options, config.pace)
    members = members_of(data, options)
    workers = check_counts(config.servers, config.clients, members)
    return Plan(divide(members, workers), config.pace, config.timeout)
