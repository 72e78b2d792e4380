"""The public names, after httpx: adding or removing one is a decision, and shows here."""

import subprocess
import sys
from types import ModuleType

import pytest

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
    "Newcomer",
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
    "CharTransformer",
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
    "LoRA",
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
    "MultiLabel",
    "Segmentation",
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
    "LocalSGD",
    "LocalAdam",
    "ExtrapolatedSGD",
    "StateSpec",
    "at_server",
    "at_both",
    "WandbRun",
    "WandbUsers",
    "check_conformance",
    "write_dashboard",
]


def test_public_names_are_exactly_these() -> None:
    assert sorted(fedlit.__all__) == sorted(PUBLIC)


def test_nothing_else_can_be_taken_from_the_package() -> None:
    names = [name for name in dir(fedlit) if not isinstance(getattr(fedlit, name), ModuleType)]
    assert sorted(name for name in names if not name.startswith("_")) == sorted([*PUBLIC, "import_all"])


def test_what_does_not_exist_is_said_as_python_says_it() -> None:
    with pytest.raises(AttributeError, match="module 'fedlit' has no attribute 'FedAvgg'"):
        _ = fedlit.FedAvgg


def test_importing_the_package_imports_no_torch() -> None:
    assert in_python("import sys, fedlit; print('torch' in sys.modules)") == "False\n"


@pytest.mark.parametrize(
    "first",
    ["pytorch_lightning", *(pytest.param(name, marks=pytest.mark.slow) for name in ("torchvision", "torchmetrics"))],
)
def test_lightning_can_be_imported_after_the_package_beside_a_cpu_torch(first: str) -> None:
    assert in_python(f"import fedlit, {first}; import torchvision; print(fedlit.clock.Uniform.__name__)") == "Uniform\n"


def in_python(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_public_class_has_a_docstring() -> None:
    classes = [value for name in PUBLIC if isinstance(value := getattr(fedlit, name), type)]
    assert [kind.__name__ for kind in classes if not kind.__doc__] == []


def test_the_version_is_that_of_the_installed_package() -> None:
    assert fedlit.__version__.split(".")[0].isdecimal()
