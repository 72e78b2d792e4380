"""fedlit: federated-learning experiments on PyTorch Lightning. The public names, nothing else.

They are imported when the first of them is asked for (PEP 562): torch takes seconds, which `fedlit --help` can spare.
"""
# ruff: noqa: F403, F405  # mypy sees whether the names are there

import importlib as _importlib
import importlib.util as _util
import typing as _typing
from importlib.metadata import version as _version

from fedlit import _before_torchvision as _before_torchvision

if _typing.TYPE_CHECKING:
    from fedlit._public import *

__version__ = _version("fedlit")

__all__ = [
    "Buffer",
    "Clock",
    "Cloud",
    "Complete",
    "Constant",
    "EarliestSampler",
    "Exponential",
    "Given",
    "Hinge",
    "Latency",
    "LogNormal",
    "Polynomial",
    "QuotaSampler",
    "RandomPairs",
    "Ring",
    "Trace",
    "Weibull",
    "Centralized",
    "Ditto",
    "FedBCD",
    "FedBCDI",
    "FedDyn",
    "FedFor",
    "PerFedAvg",
    "PerFedBC",
    "PFedMe",
    "QFedAvg",
    "Scaffold",
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedYogi",
    "QFFL",
    "ExpAlpha",
    "INITIAL",
    "ZEROS",
    "Personal",
    "MNIST",
    "FashionMNIST",
    "CIFAR10",
    "Fresh",
    "Imbalance",
    "LabelFlip",
    "Parts",
    "PowerLaw",
    "ClassesPerClient",
    "Diversity",
    "Dirichlet",
    "Shards",
    "IID",
    "Natural",
    "MLP",
    "RECEIVED",
    "SGD",
    "AllSampler",
    "Batch",
    "CharLSTM",
    "Client",
    "ClientStates",
    "Cohort",
    "TrainedCohort",
    "WeighedCohort",
    "DigitNet",
    "Digits",
    "Dual",
    "FedAvg",
    "FedBC",
    "FedProx",
    "FederatedDataModule",
    "FederatedLoop",
    "FederatedTrainer",
    "FixedSampler",
    "ImageFolders",
    "LeNet",
    "OfficeCaltech10",
    "Phase",
    "ResNet18",
    "ResNet20",
    "Samples",
    "ServerCallback",
    "Shakespeare",
    "ShownState",
    "SizeSampler",
    "Softmax",
    "Generated",
    "CIFAR100",
    "EMNIST",
    "FEMNIST",
    "HuggingFaceData",
    "Task",
    "Classification",
    "Regression",
    "NextToken",
    "Measure",
    "WeightsFile",
    "Synthetic",
    "TensorData",
    "Uniform",
    "UniformSampler",
    "Sampler",
    "Weighting",
    "Partition",
    "LocalOptimizer",
]


def __getattr__(name: str) -> object:
    """A public name, all of which are imported then, or a part of the package."""
    if name in __all__:
        public = _importlib.import_module("fedlit._public")
        globals().update({one: getattr(public, one) for one in __all__})
        return globals()[name]
    if not name.startswith("_") and _util.find_spec(f"fedlit.{name}") is not None:
        return _importlib.import_module(f"fedlit.{name}")
    raise AttributeError(f"module 'fedlit' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Public names that nobody has asked for are there too."""
    return sorted({*globals(), *__all__})
