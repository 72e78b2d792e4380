"""pfl-research: `FederatedAveraging` on its `SimulatedBackend`, one process a core with one thread each.

The second process and those after it run this program too; the first one tells them each round.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_net import Net, laid_out


class Peer:
    """Rank 0 starts the others, before pfl is imported: that is when its processes meet."""

    threads = 1

    def __init__(self, work: Any) -> None:
        self.work, self.processes = work, min(work.cores, len(work.cohorts[0]))
        self.others = [] if "RANK" in os.environ else meet(self.processes, work.folder)
        torch.set_num_threads(1)
        import pfl.version
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.model.pytorch import PyTorchModel  # also makes torch its framework and lets the processes meet

        self.new_model = PyTorchModel
        self.version = f"pfl-research {pfl.version.__version__}, torch {torch.__version__}"
        self.x, self.y = laid_out(torch.from_numpy(work.x)), torch.from_numpy(work.y)
        self.cohort: list[int] = []
        # A process asks for as many users as there are processes and takes its own, even if the cohort is at its end.
        data = FederatedDataset(self.rows_of, lambda: self.cohort.pop(0) if self.cohort else 0)
        self.backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])

    def rows_of(self, client: int) -> Any:
        """A client's rows, shuffled when it is drawn; pfl takes them in the same order in every epoch."""
        from pfl.data.pytorch import PyTorchTensorDataset

        rows = torch.from_numpy(np.random.default_rng().permutation(self.work.clients[client]))
        return PyTorchTensorDataset((self.x[rows], self.y[rows]))

    def start(self, weights: Sequence[np.ndarray]) -> None:
        """A new model."""
        self.tell({"do": "start"})
        self.net = PflNet(self.work.layers, weights)
        central = torch.optim.SGD(self.net.parameters(), lr=1.0)
        self.model = self.new_model(self.net, torch.optim.SGD, central)

    def round(self, cohort: Sequence[int]) -> int:
        """One round, divided among the processes by pfl."""
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.hyperparam.base import NNTrainHyperParams

        self.tell({"do": "rounds", "count": 1})
        # Large clients first, as pfl's own sorted sampler has it: the processes end at about the same time.
        self.cohort = sorted(cohort, key=self.work.steps_of, reverse=True)
        training_only().run(
            NNAlgorithmParams(
                central_num_iterations=2, evaluation_frequency=3, train_cohort_size=len(cohort), val_cohort_size=0
            ),
            self.backend,
            self.model,
            NNTrainHyperParams(
                local_num_epochs=self.work.local_epochs,
                local_learning_rate=self.work.lr,
                local_batch_size=self.work.batch_size,
            ),
            send_metrics_to_platform=False,
        )
        return sum(self.work.steps_of(client) for client in cohort)

    def weights(self) -> list[np.ndarray]:
        """The server's."""
        return [p.detach().numpy() for p in self.net.parameters()]

    def tell(self, request: dict[str, Any]) -> None:
        """The other processes do the same."""
        for other in self.others:
            assert other.stdin is not None, "it was started with a pipe"
            other.stdin.write(json.dumps(request) + "\n")
            other.stdin.flush()


def training_only() -> Any:
    """`FederatedAveraging` that begins at iteration 1: the clients of iteration 0 are always evaluated as well."""
    from pfl.algorithm.federated_averaging import FederatedAveraging

    class LocalTraining(FederatedAveraging):  # type: ignore[misc]  # pfl is not installed where this is checked
        def get_next_central_contexts(self, model: Any, iteration: int, *params: Any) -> Any:
            return super().get_next_central_contexts(model, iteration + 1, *params)

    return LocalTraining()


class PflNet(Net):  # type: ignore[misc]  # found beside this file, by the interpreter that runs it
    """The workload's network, with the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What is minimised."""
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """None is asked for."""
        return {}


def meet(processes: int, folder: Path) -> list["subprocess.Popen[str]"]:
    """Start all ranks but this one, with the variables by which torch.distributed finds them."""
    if processes == 1:
        return []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"TORCHELASTIC_RUN_ID": "fedlit", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    line = [sys.executable, str(Path(__file__).with_name("serve.py")), __file__, str(folder)]
    others = []
    for rank in range(1, processes):
        env = os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        others.append(subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env, text=True))
    os.environ.update(common | {"RANK": "0", "LOCAL_RANK": "0"})
    return others
