from __future__ import annotations

import hashlib
import sys
from types import SimpleNamespace

import pytest
import sklearn.datasets  # noqa: F401  it sets KMP_ environment variables, which no test may change
import torch

from flodl import DataError
from flodl.data import Digits


def test_shapes_ranges_and_classes() -> None:
    train, test = Digits("train"), Digits("test")
    assert (len(train), len(test)) == (1437, 360)
    for ds in (train, test):
        x, y = ds[:]
        assert x.shape == (len(ds), 64)
        assert x.dtype == torch.float32
        assert (x.min().item(), x.max().item()) == (0.0, 1.0)
        assert y.dtype == torch.int64
        assert y.unique().tolist() == list(range(10))
        assert ds.classes == 10
        assert ds.class_names == tuple("0123456789")
    images = Digits("test", flat=False)[:][0]
    assert images.shape == (360, 1, 8, 8)
    assert torch.equal(images.flatten(1), test[:][0])


def test_the_split_is_stratified_and_never_changes() -> None:
    assert Digits("test")[:][1].bincount().tolist() == [36, 37, 35, 37, 36, 36, 36, 36, 35, 36]
    digest = hashlib.sha256()
    for split in ("train", "test"):
        x, y = Digits(split)[:]
        digest.update((x * 16).to(torch.uint8).numpy().tobytes() + y.to(torch.uint8).numpy().tobytes())
    assert digest.hexdigest() == GOLDEN


GOLDEN = "e61e2e1a9ee6a4c86fca9f135cb1dc4fe106e57069d697e56271f9a6ce0f9558"


def test_no_image_is_in_both() -> None:
    both = torch.cat([Digits("train")[:][0], Digits("test")[:][0]])
    assert len(both.unique(dim=0)) == 1797


def test_a_split_that_is_misspelt() -> None:
    with pytest.raises(DataError, match=r"no split 'tset'. Did you mean 'test'"):
        Digits("tset")


def test_without_scikit_learn_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # what import finds for a package that is not there
    with pytest.raises(DataError, match="pip install scikit-learn"):
        Digits()


def test_where_scikit_learn_keeps_its_file_elsewhere_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    test = Digits("test")
    elsewhere = SimpleNamespace(submodule_search_locations=["elsewhere"])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: elsewhere)
    for a, b in zip(test[:], Digits("test")[:], strict=True):
        assert torch.equal(a, b)
