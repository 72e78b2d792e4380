"""Where the public names are. `fedlit` takes them from here when the first one is asked for."""

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
from fedlit.cohort import Cohort, TrainedCohort, WeighedCohort
from fedlit.data.base import FederatedDataModule
from fedlit.data.corruption import Imbalance, LabelFlip
from fedlit.data.digits import Digits
from fedlit.data.femnist import FEMNIST
from fedlit.data.folders import ImageFolders
from fedlit.data.generated import Generated
from fedlit.data.huggingface import HuggingFaceData
from fedlit.data.office import OfficeCaltech10
from fedlit.data.partition import IID, ClassesPerClient, Dirichlet, Diversity, Natural, Parts, PowerLaw, Shards
from fedlit.data.partition.base import Partition
from fedlit.data.pictures import CIFAR10, CIFAR100, EMNIST, MNIST, FashionMNIST, Fresh
from fedlit.data.shakespeare import Shakespeare
from fedlit.data.synthetic import Synthetic
from fedlit.data.tensor import TensorData
from fedlit.local import LocalOptimizer
from fedlit.loop import FederatedLoop
from fedlit.measure import Measure
from fedlit.models import MLP, CharLSTM, DigitNet, LeNet, ResNet18, ResNet20, Softmax
from fedlit.server.base import ServerCallback
from fedlit.server.buffer import Buffer, Hinge, Polynomial
from fedlit.server.cloud import Cloud, Complete, Given, RandomPairs, Ring
from fedlit.server.optimizers import SGD, FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedlit.server.sampling import (
    AllSampler,
    EarliestSampler,
    FixedSampler,
    QuotaSampler,
    Sampler,
    SizeSampler,
    UniformSampler,
)
from fedlit.server.weights import QFFL, ExpAlpha, Samples, Uniform, Weighting
from fedlit.states import INITIAL, RECEIVED, ZEROS, ClientStates
from fedlit.step import Batch, Personal, Phase
from fedlit.task import Classification, NextToken, Regression, Task
from fedlit.trainer import FederatedTrainer
from fedlit.weights_file import WeightsFile

__all__ = [
    "AllSampler",
    "Batch",
    "Buffer",
    "CIFAR10",
    "CIFAR100",
    "Centralized",
    "CharLSTM",
    "ClassesPerClient",
    "Classification",
    "Client",
    "ClientStates",
    "Clock",
    "Cloud",
    "Cohort",
    "TrainedCohort",
    "WeighedCohort",
    "Complete",
    "Constant",
    "DigitNet",
    "Digits",
    "Dirichlet",
    "Ditto",
    "Diversity",
    "Dual",
    "EMNIST",
    "EarliestSampler",
    "ExpAlpha",
    "Exponential",
    "FEMNIST",
    "FashionMNIST",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBC",
    "FedBCD",
    "FedBCDI",
    "FedDyn",
    "FedFor",
    "FedProx",
    "FedYogi",
    "FederatedDataModule",
    "FederatedLoop",
    "FederatedTrainer",
    "FixedSampler",
    "Fresh",
    "Generated",
    "Given",
    "Hinge",
    "HuggingFaceData",
    "IID",
    "INITIAL",
    "ImageFolders",
    "Imbalance",
    "LabelFlip",
    "Latency",
    "LeNet",
    "LocalOptimizer",
    "LogNormal",
    "MLP",
    "MNIST",
    "Measure",
    "Natural",
    "NextToken",
    "OfficeCaltech10",
    "PFedMe",
    "Partition",
    "Parts",
    "PerFedAvg",
    "PerFedBC",
    "Personal",
    "Phase",
    "Polynomial",
    "PowerLaw",
    "QFFL",
    "QFedAvg",
    "QuotaSampler",
    "RECEIVED",
    "RandomPairs",
    "Regression",
    "ResNet18",
    "ResNet20",
    "Ring",
    "SGD",
    "Sampler",
    "Samples",
    "Scaffold",
    "ServerCallback",
    "Shakespeare",
    "Shards",
    "ShownState",
    "SizeSampler",
    "Softmax",
    "Synthetic",
    "Task",
    "TensorData",
    "Trace",
    "Uniform",
    "UniformSampler",
    "Weibull",
    "Weighting",
    "WeightsFile",
    "ZEROS",
]
