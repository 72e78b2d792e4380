"""Memory does not grow with rounds, and data are held once."""

import numpy as np
import pytest
from pytorch_lightning import LightningModule, Trainer

from benchmarks.measure import forget_peak, peak_rss_mb
from fedlit import FedBC, FederatedTrainer, ServerCallback, Softmax, Synthetic, TensorData


class ResidentMemory(ServerCallback):
    """Resident memory in MB after each round, as the kernel counts it."""

    def __init__(self) -> None:
        self.mb: dict[int, float] = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with open("/proc/self/statm") as statm:
            self.mb[trainer.current_epoch + 1] = int(statm.read().split()[1]) * 4096 / 1e6


@pytest.mark.slow
def test_500_rounds_need_no_more_memory_than_50(tmp_path) -> None:
    memory = ResidentMemory()
    trainer = FederatedTrainer(
        rounds=500, engine="vectorized", run=tmp_path / "run", callbacks=[memory], enable_progress_bar=False
    )
    trainer.fit(FedBC(Softmax(60, 10), dual_lr=0.01, momentum=0.5), datamodule=Synthetic())
    print(f"\nresident: {memory.mb[50]:.0f} MB after 50 rounds, {memory.mb[500]:.0f} MB after 500")
    assert memory.mb[500] <= 1.05 * memory.mb[50]


def test_own_arrays_are_tested_without_a_copy_of_them() -> None:
    x = np.ones((40_000, 1_000), np.float32)  # 160 MB
    forget_peak()
    before = peak_rss_mb()
    TensorData(x, np.zeros(40_000, int), np.arange(40_000) % 10)
    assert peak_rss_mb() - before < 0.5 * x.nbytes / 2**20
