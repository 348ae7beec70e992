"""Batches of samples of similar length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flodl import DataError
from flodl.data import Loader, Tensors, length_order, pad_collate


class Texts:
    def __init__(self, n: int = 500) -> None:
        self.sizes = torch.randint(1, 100, (n,), generator=torch.Generator().manual_seed(0)).tolist()

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        return {"id": index, "input_ids": [1] * self.sizes[index]}


def loader_of(dataset: Any, batch_size: int = 8, **settings: Any) -> Loader:
    return Loader(dataset, batch_size, collate=pad_collate(), workers=0, prefetch=0, **settings)


@given(n=st.integers(1, 300), batch_size=st.integers(1, 40), epoch=st.integers(0, 3), shuffle=st.booleans())
def test_it_is_a_permutation_and_a_function_of_its_arguments(
    n: int, batch_size: int, epoch: int, shuffle: bool
) -> None:
    lengths = torch.arange(n) % 17
    order = length_order(lengths, batch_size, 1, epoch, shuffle)
    assert sorted(order.tolist()) == list(range(n))
    assert torch.equal(order, length_order(lengths, batch_size, 1, epoch, shuffle))


def test_a_batch_has_similar_lengths_and_little_padding() -> None:
    texts = Texts()
    grouped, plain = loader_of(texts, group_by_length=True), loader_of(texts)

    def padding(loader: Loader) -> float:
        shapes = [b["input_ids"].numel() for b in loader.epoch(0)]
        return sum(shapes) / sum(texts.sizes) - 1

    assert padding(plain) > 0.5
    assert padding(grouped) < 0.1
    longest = [b["input_ids"].shape[1] for b in grouped.epoch(0)]
    assert longest != sorted(longest), "the batches are in order of length"
    assert longest != sorted(longest, reverse=True)


@pytest.mark.parametrize("start", [0, 8, 24, 37, 500])
def test_every_sample_once_and_resumed_anywhere(start: int) -> None:
    loader = loader_of(Texts(), group_by_length=True, seed=4)
    whole = [i for b in loader.epoch(2) for i in b["id"].tolist()]
    assert sorted(whole) == list(range(500))
    assert [i for b in loader.epoch(2, start) for i in b["id"].tolist()] == whole[start:]
    assert [i for b in loader.epoch(1) for i in b["id"].tolist()] != whole
    assert [n for _, n in loader.counted(2)] == [8] * 62 + [4]


def test_where_the_lengths_come_from() -> None:
    texts = Texts(60)
    expected = loader_of(texts, group_by_length=texts.sizes).order(0)
    assert expected is not None

    class Known(Texts):
        lengths = torch.tensor(texts.sizes)

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("read a sample for its length")

    class Pairs(Texts):
        def __getitem__(self, index: int) -> Any:
            return torch.ones(self.sizes[index], 3), 0

    mask = torch.arange(100) < torch.tensor(texts.sizes)[:, None]
    tensors = Tensors({"input_ids": mask.long(), "attention_mask": mask})
    for dataset in (texts, Pairs(60), tensors):
        assert torch.equal(loader_of(dataset, group_by_length=True).order(0), expected), dataset  # type: ignore[arg-type]
    known = Loader(Known(60), 8, group_by_length=True, collate=pad_collate())
    assert torch.equal(known.order(0), expected)  # type: ignore[arg-type]


class Whole:
    def __len__(self) -> int:
        return 4

    def fetch(self, index: torch.Tensor, /) -> Any:
        return index


@pytest.mark.parametrize(
    ("dataset", "lengths", "message"),
    [
        (Texts(4), [1, 2], r"shape \(2,\) for 4 samples"),
        (Tensors(torch.ones(4, 2)), True, "attention_mask; give the lengths"),
        (Whole(), True, "Whole gives batches only"),
        ([torch.ones(4)], True, "equally long"),
    ],
)
def test_lengths_that_are_none_are_refused(dataset: Any, lengths: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Loader(dataset, 2, group_by_length=lengths)


def test_a_sample_without_a_sequence_is_named() -> None:
    class Scalars(Texts):
        def __getitem__(self, index: int) -> Any:
            return {"id": index}

    with pytest.raises(DataError, match="sample 0 of Scalars has no sequence"):
        loader_of(Scalars(4), group_by_length=True)
