"""fedlit: federated-learning experiments on PyTorch Lightning. The public names, nothing else."""

from importlib.metadata import version as _version

from fedlit import _torchvision as _torchvision  # isort: skip  # first: Lightning needs it beside a CPU torch

from fedlit.algorithms.centralized import Centralized
from fedlit.algorithms.ditto import Ditto
from fedlit.algorithms.fedavg import FedAvg
from fedlit.algorithms.fedbc import Dual, FedBC
from fedlit.algorithms.fedbcd import FedBCD
from fedlit.algorithms.fedbcdi import FedBCDI
from fedlit.algorithms.feddyn import FedDyn
from fedlit.algorithms.fedfor import FedFor
from fedlit.algorithms.fedprox import FedProx
from fedlit.algorithms.perfedavg import PerFedAvg
from fedlit.algorithms.perfedbc import PerFedBC
from fedlit.algorithms.pfedme import PFedMe
from fedlit.algorithms.qfedavg import QFedAvg
from fedlit.algorithms.scaffold import Scaffold
from fedlit.catalogue import ShownState
from fedlit.client import Client
from fedlit.clock import Clock, Constant, Exponential, Latency, LogNormal, Trace, Weibull
from fedlit.cohort import Cohort
from fedlit.data.base import FederatedDataModule
from fedlit.data.corruption import Imbalance, LabelFlip
from fedlit.data.digits import Digits
from fedlit.data.folders import ImageFolders
from fedlit.data.generated import Generated
from fedlit.data.office import OfficeCaltech10
from fedlit.data.partition import IID, ClassesPerClient, Dirichlet, Diversity, Natural, Parts, PowerLaw, Shards
from fedlit.data.pictures import CIFAR10, MNIST, FashionMNIST, Fresh
from fedlit.data.shakespeare import Shakespeare
from fedlit.data.synthetic import Synthetic
from fedlit.data.tensor import TensorData
from fedlit.loop import FederatedLoop
from fedlit.models import MLP, CharLSTM, DigitNet, LeNet, ResNet18, ResNet20, Softmax
from fedlit.server.base import ServerCallback
from fedlit.server.buffer import Buffer, Hinge, Polynomial
from fedlit.server.cloud import Cloud, Complete, Given, RandomPairs, Ring
from fedlit.server.optimizers import SGD, FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedlit.server.sampling import AllSampler, EarliestSampler, FixedSampler, QuotaSampler, SizeSampler, UniformSampler
from fedlit.server.weights import QFFL, ExpAlpha, Samples, Uniform
from fedlit.states import INITIAL, RECEIVED, ZEROS, ClientStates
from fedlit.step import Batch, Personal, Phase
from fedlit.trainer import FederatedTrainer

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
