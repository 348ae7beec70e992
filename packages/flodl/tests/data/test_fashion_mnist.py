from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest
import torch

from flodl import DataError
from flodl.data import FashionMNIST
from flodl.data import fashion_mnist as module

NOWHERE = "http://127.0.0.1:9"  # the discard port: nothing listens
IMAGES, LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


@pytest.fixture(autouse=True)
def nothing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test says itself what is where."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FLODL_DATA", raising=False)
    monkeypatch.setenv("FLODL_FASHION_MNIST_URL", NOWHERE)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "_SYSTEM", tmp_path / "system")


def copy(source: Path, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    for name in (IMAGES, LABELS):
        shutil.copy(source / name, target / name)
    return target


def test_both_splits_whole(fashion_mnist_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_DATA", str(fashion_mnist_files))
    for split, n in (("train", 60_000), ("test", 10_000)):
        ds = FashionMNIST(split)
        x, y = ds[:]
        assert x.shape == (n, 1, 28, 28)
        assert x.dtype == torch.float32
        assert (x.min().item(), x.max().item()) == (0.0, 1.0)
        assert y.dtype == torch.int64
        assert y.bincount().tolist() == [n // 10] * 10
        assert ds.classes == 10
        assert ds.class_names is not None
        assert ds.class_names[9] == "Ankle boot"
    assert y[:5].tolist() == [9, 2, 1, 1, 6]  # the first test images: boot, pullover, two trousers, shirt


@pytest.mark.parametrize("place", ["data", "data/fashion-mnist", "cache/flodl/fashion-mnist", "system"])
def test_every_place_is_looked_in(
    fashion_mnist_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("FLODL_DATA", str(tmp_path / "data"))
    copy(fashion_mnist_files, tmp_path / place)
    assert len(FashionMNIST("test")) == 10_000


def test_files_without_gzip_do_too(fashion_mnist_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (IMAGES, LABELS):
        (tmp_path / name.removesuffix(".gz")).write_bytes(gzip.decompress((fashion_mnist_files / name).read_bytes()))
    monkeypatch.setenv("FLODL_DATA", str(tmp_path))
    assert len(FashionMNIST("test")) == 10_000


def test_nothing_anywhere_lists_each_place_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLODL_DATA", str(tmp_path))
    with pytest.raises(DataError) as caught:
        FashionMNIST()
    message = str(caught.value)
    assert f"{tmp_path}: no train-images-idx3-ubyte.gz" in message
    assert f"{tmp_path}/fashion-mnist: no such folder" in message
    assert f"{tmp_path}/cache/flodl/fashion-mnist: no such folder" in message
    assert f"{tmp_path}/system: no such folder" in message
    assert f"{NOWHERE}/train-images-idx3-ubyte.gz: no connection: [Errno 111] Connection refused" in message
    assert "apt install dataset-fashion-mnist" in message
    assert "FLODL_DATA" in message
    assert not (tmp_path / "cache").exists()


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def empty(content: bytes) -> bytes:
    return b""


def flipped(content: bytes) -> bytes:
    return content[:4000] + bytes([content[4000] ^ 1]) + content[4001:]


def other_labels(content: bytes) -> bytes:
    raw = bytearray(gzip.decompress(content))
    raw[100] = (raw[100] + 1) % 10
    return gzip.compress(bytes(raw))  # a valid file with one wrong label


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncated, "is truncated: its compressed data ends early"),
        (empty, "is altered: 0 bytes of SHA-256"),
        (flipped, "is altered:"),
        (other_labels, "is altered: 10008 bytes of SHA-256"),
    ],
)
def test_a_damaged_file_is_named_and_refused(
    fashion_mnist_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: object, reason: str
) -> None:
    bad = copy(fashion_mnist_files, tmp_path / "data") / LABELS
    bad.write_bytes(damage(bad.read_bytes()))  # type: ignore[operator]
    monkeypatch.setenv("FLODL_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError) as caught:
        FashionMNIST("test")
    assert f"{bad} {reason}" in str(caught.value)
    copy(fashion_mnist_files, tmp_path / "system")
    with pytest.warns(UserWarning, match=f"Not used: {bad} {reason}") as warned:
        assert len(FashionMNIST("test")) == 10_000
    assert warned[0].filename == __file__


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read(
    fashion_mnist_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = copy(fashion_mnist_files, tmp_path / "data") / IMAGES
    closed.chmod(0)
    monkeypatch.setenv("FLODL_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match=f"{closed} cannot be read: Permission denied"):
        FashionMNIST("test")


def test_a_folder_in_the_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / IMAGES).mkdir(parents=True)
    monkeypatch.setenv("FLODL_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match=f"{tmp_path}/data/{IMAGES} cannot be read: Is a directory"):
        FashionMNIST("test")


def test_a_split_that_is_misspelt() -> None:
    with pytest.raises(DataError, match=r"no split 'tests'. Did you mean 'test'"):
        FashionMNIST("tests")
