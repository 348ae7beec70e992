"""scikit-learn's handwritten digits: real images that come with the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from flodl.data.tensors import Tensors
from flodl.errors import DataError, nearest

__all__ = ["Digits"]

_TEST_SAMPLES = 360


class Digits(Tensors):
    """1797 images of handwritten digits: 1437 to train on, 360 to test on, a stratified split that never changes.

    Images: float32 in [0, 1], (samples, 64), or (samples, 1, 8, 8) with `flat=False`. Labels: int64, (samples,).

    Raises DataError: no such split; scikit-learn is not installed.
    """

    def __init__(self, split: str = "train", *, flat: bool = True) -> None:
        if split not in ("train", "test"):
            raise DataError(f"Digits has no split {split!r}.{nearest(split, ('train', 'test'))}")
        data, target = _read()
        test = _test_mask(target)
        chosen = test if split == "test" else ~test
        images = torch.from_numpy(data[chosen] / 16)
        labels = torch.from_numpy(target[chosen])
        super().__init__(
            images if flat else images.view(-1, 1, 8, 8), labels, classes=10, class_names=[str(d) for d in range(10)]
        )


def _read() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Pixels of 0 to 16, (1797, 64), and labels. The file itself is read: importing scikit-learn takes a hundred times longer."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise DataError("Digits come with scikit-learn, which is not installed: pip install scikit-learn")
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    try:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    except OSError:  # another release may keep it elsewhere
        from sklearn.datasets import load_digits

        data, target = load_digits(return_X_y=True)
        return data.astype(np.float32), target.astype(np.int64)
    return table[:, :-1], table[:, -1].astype(np.int64)


def _test_mask(target: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which samples are for testing: each class by its share, largest remainders first; drawn from a frozen stream."""
    counts = np.bincount(target)
    shares = counts * _TEST_SAMPLES / len(target)
    take = np.floor(shares).astype(int)
    by_remainder = np.argsort(take - shares, kind="stable")
    take[by_remainder[: _TEST_SAMPLES - take.sum()]] += 1
    random = np.random.RandomState(0)
    mask = np.zeros(len(target), dtype=bool)
    for label, k in enumerate(take):
        mask[random.permutation(np.flatnonzero(target == label))[:k]] = True
    return mask
