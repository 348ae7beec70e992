"""Batches: datasets, their order, and the loader."""

from flodl.data.batch import Batch, batch_size_of, map_structure, to_device
from flodl.data.dataset import BatchDataset, as_dataset
from flodl.data.digits import Digits
from flodl.data.fashion_mnist import FashionMNIST
from flodl.data.fingerprint import fingerprint
from flodl.data.loader import Loader
from flodl.data.order import Position, epoch_order, length_order
from flodl.data.padding import pad_collate
from flodl.data.source import Batches
from flodl.data.tensors import IGNORE_INDEX, Tensors

__all__ = [
    "IGNORE_INDEX",
    "Batch",
    "BatchDataset",
    "Batches",
    "Digits",
    "FashionMNIST",
    "Loader",
    "Position",
    "Tensors",
    "as_dataset",
    "batch_size_of",
    "epoch_order",
    "fingerprint",
    "length_order",
    "map_structure",
    "pad_collate",
    "to_device",
]
