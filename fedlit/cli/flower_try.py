"""`fedlit flower try`: a whole federation on this machine, with every client of a config as a node."""

import time

from fedlit.cli.data_export import export_clients, names_of_clients
from fedlit.cli.flower_run import show_timings, train
from fedlit.config.files import resolve_configs
from fedlit.config.flower_cli import FlowerCLI, check_count, check_options, federation_parser, pace_of
from fedlit.errors import require
from fedlit.flower.superlink import submitted
from fedlit.flower.trial import trial
from fedlit.results.folder import RunFolder
from fedlit.trainer.trainer import quiet_lightning

_NODES_WITHIN_S = 120.0


def main(arguments: list[str]) -> int:
    """A SuperLink, and for each client a SuperNode and a worker, all of which end with this command."""
    began = time.monotonic()
    options, others = federation_parser("try", main.__doc__).parse_known_args(arguments)
    check_options(options)
    nodes = options.nodes
    quiet_lightning()
    with trial(nodes) as place:
        cli = FlowerCLI(resolve_configs(others))
        check_count(cli, nodes)
        pace = pace_of(options, cli)
        files = export_clients(cli.datamodule, cli.config.seed_everything, place.data)
        require(
            len(files) == nodes,
            f"--nodes is {nodes}, but the data have {len(files)} clients, and each is a node. Give --nodes "
            f"{len(files)}, or change the number of clients, for example with --data.num_clients {nodes}.",
        )
        folder = cli.trainer.folder
        assert isinstance(folder, RunFolder)
        names, rows = names_of_clients(cli.datamodule), folder.path / "nodes"
        listening = place.start_nodes(names, rows, secure=not options.insecure)
        with submitted(place.programs, listening, place.folder, options.deadline) as link:
            link.timings.began = began
            code = train(cli, link, link.wait_for_nodes(nodes, _NODES_WITHIN_S, place.programs.check), pace)
            if options.timings:
                show_timings(link, place.processes())
            return code
