"""The papers' networks.

Any torch module can be used instead; nothing here trains one.
"""

from fedlit.models.dense import MLP, Softmax
from fedlit.models.digits import DigitNet
from fedlit.models.lenet import LeNet
from fedlit.models.lora import LoRA
from fedlit.models.lstm import CharLSTM
from fedlit.models.resnet import ResNet18, ResNet20
from fedlit.models.transformer import CharTransformer

__all__ = ["MLP", "CharLSTM", "CharTransformer", "DigitNet", "LeNet", "LoRA", "ResNet18", "ResNet20", "Softmax"]
