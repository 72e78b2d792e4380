from fedlit import _torchvision  # noqa: F401
