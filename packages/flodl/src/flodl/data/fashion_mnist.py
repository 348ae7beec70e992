"""Fashion-MNIST: found on this machine, or downloaded, and verified either way."""

from __future__ import annotations

import gzip
import hashlib
import os
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import platformdirs
import torch

from flodl.data.download import download, keep
from flodl.data.tensors import Tensors
from flodl.errors import DataError, nearest

__all__ = ["FashionMNIST"]

_HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_SYSTEM = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package dataset-fashion-mnist puts it

# SHA-256 of the content without gzip: Debian compressed the same content again, so the .gz files differ.
_FILES = {
    "train": (
        ("train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        ("train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    ),
    "test": (
        ("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        ("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
}

_IMAGES_HEADER_BYTES, _LABELS_HEADER_BYTES = 16, 8

_CLASS_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


class FashionMNIST(Tensors):
    """Grey images of clothes in ten classes: 60,000 to train on (`split="train"`), 10,000 to test on (`"test"`).

    Images: float32 in [0, 1], (samples, 1, 28, 28). Labels: int64, (samples,). The training images take 188 MB.

    Looked for in `$FLODL_DATA` and its sub-folder fashion-mnist, the user's cache and `/usr/share/datasets/fashion-mnist`,
    then downloaded into the cache from `$FLODL_FASHION_MNIST_URL`, by default the data set's public home. Every file is
    verified each time; one that is truncated or altered is refused with a warning and the search goes on.

    Raises DataError: no such split; the data is nowhere to be had, with what was wrong in each place.
    """

    def __init__(self, split: str = "train") -> None:
        if split not in _FILES:
            raise DataError(f"FashionMNIST has no split {split!r}.{nearest(split, _FILES)}")
        images, labels = (_content(name, sha256) for name, sha256 in _FILES[split])
        pixels = np.frombuffer(images, dtype=np.uint8, offset=_IMAGES_HEADER_BYTES).reshape(-1, 1, 28, 28)
        # Not bytes scaled batch by batch, a quarter of the memory: no faster on the CPU at any usual batch size.
        x = torch.from_numpy(pixels.astype(np.float32)).div_(255)
        y = torch.from_numpy(np.frombuffer(labels, dtype=np.uint8, offset=_LABELS_HEADER_BYTES).astype(np.int64))
        super().__init__(x, y, classes=10, class_names=_CLASS_NAMES)


def _content(name: str, sha256: str) -> bytes:
    """The verified content of one file, from the first place that has it."""
    tried: list[str] = []
    refused: list[str] = []
    for folder in _folders():
        for path in (folder / f"{name}.gz", folder / name):
            try:
                return _told(_verified(path.read_bytes(), sha256, str(path)), refused)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                refused.append(f"{path} cannot be read: {error.strerror or error}")
            except DataError as error:
                refused.append(str(error))
            tried.append(refused[-1])
            break
        else:
            tried.append(f"{folder}: no {name}.gz" if folder.is_dir() else f"{folder}: no such folder")
    url = os.environ.get("FLODL_FASHION_MNIST_URL", _HOME).rstrip("/") + f"/{name}.gz"
    try:
        body = download(url)
        content = _verified(body, sha256, url)
    except DataError as error:
        listed = "\n  ".join([*tried, str(error)])
        raise DataError(
            f"Fashion-MNIST's {name} was not found:\n  {listed}\n"
            "To get it: apt install dataset-fashion-mnist; or put the four .gz files into a folder and set FLODL_DATA to it."
        ) from None
    try:
        keep(body, _cache() / f"{name}.gz")
    except OSError as error:
        warnings.warn(f"{name}.gz was downloaded but cannot be kept in {_cache()}: {error.strerror}", stacklevel=4)
    return _told(content, refused)


def _folders() -> Iterator[Path]:
    if given := os.environ.get("FLODL_DATA"):
        yield Path(given).expanduser()
        yield Path(given).expanduser() / "fashion-mnist"
    yield _cache()
    yield _SYSTEM


def _cache() -> Path:
    return platformdirs.user_cache_path("flodl", appauthor=False) / "fashion-mnist"


def _told(content: bytes, refused: list[str]) -> bytes:
    for reason in refused:
        warnings.warn(f"Not used: {reason}", stacklevel=5)
    return content


def _verified(data: bytes, sha256: str, place: str) -> bytes:
    """`data` without gzip if it is what it should be, else DataError: "{place} is truncated ..." or "... altered ..."."""
    content = data
    if data[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(data)
        except EOFError:
            raise DataError(f"{place} is truncated: its compressed data ends early, after {len(data)} bytes") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{place} is altered: {error}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(f"{place} is altered: {len(content)} bytes of SHA-256 {found[:16]}..., not {sha256[:16]}...")
    return content
