"""Batches by index: datasets, their order, and the loader."""

from flodl.data.batch import Batch, batch_size_of, map_structure, to_device
from flodl.data.dataset import BatchDataset, as_dataset
from flodl.data.digits import Digits
from flodl.data.fashion_mnist import FashionMNIST
from flodl.data.loader import Loader
from flodl.data.order import Position, epoch_order
from flodl.data.tensors import IGNORE_INDEX, Tensors

__all__ = [
    "IGNORE_INDEX",
    "Batch",
    "BatchDataset",
    "Digits",
    "FashionMNIST",
    "Loader",
    "Position",
    "Tensors",
    "as_dataset",
    "batch_size_of",
    "epoch_order",
    "map_structure",
    "to_device",
]
