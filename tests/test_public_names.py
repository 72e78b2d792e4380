"""The public names, after httpx: adding or removing one is a decision, and shows here."""

from types import ModuleType

import fedlit

PUBLIC = [
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
    "Synthetic",
    "TensorData",
    "Uniform",
    "UniformSampler",
]


def test_public_names_are_exactly_these() -> None:
    assert fedlit.__all__ == PUBLIC


def test_nothing_else_can_be_taken_from_the_package() -> None:
    names = [name for name, value in vars(fedlit).items() if not isinstance(value, ModuleType)]
    assert sorted(name for name in names if not name.startswith("_")) == sorted(PUBLIC)


def test_every_public_class_has_a_docstring() -> None:
    classes = [value for name in PUBLIC if isinstance(value := getattr(fedlit, name), type)]
    assert [kind.__name__ for kind in classes if not kind.__doc__] == []


def test_the_version_is_that_of_the_installed_package() -> None:
    assert fedlit.__version__.split(".")[0].isdecimal()
