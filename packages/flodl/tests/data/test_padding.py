from __future__ import annotations

import pickle
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from flodl import DataError
from flodl.data import Loader, pad_collate


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6), pad=st.integers(-3, 3))
def test_sequences_are_padded_as_torch_does(lengths: list[int], pad: int) -> None:
    rows = [torch.arange(n * 2).view(n, 2) for n in lengths]
    assert torch.equal(pad_collate(pad)(rows), pad_sequence(rows, batch_first=True, padding_value=pad))


def test_the_dicts_of_a_tokenizer() -> None:
    samples = [
        {"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1], "labels": [5, 6, 7], "weight": 0.5, "text": "a"},
        {"input_ids": [8], "attention_mask": [1], "labels": [8], "weight": 1.0, "text": "b"},
    ]
    batch = pad_collate(1)(samples)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[5, 6, 7], [8, -100, -100]]
    assert batch["weight"].tolist() == [0.5, 1.0]
    assert batch["text"] == ["a", "b"]


Pair = namedtuple("Pair", "tokens y")


@dataclass
class Sample:
    tokens: Any
    label: Any
    extra: Any = None


def test_tuples_and_dataclasses() -> None:
    tokens, tags = [torch.tensor([1, 2]), torch.tensor([3])], [np.array([0, 1]), np.array([0])]
    x, y = pad_collate(9, labels=-1)(list(zip(tokens, tags, strict=True)))
    assert x.tolist() == [[1, 2], [3, 9]]
    assert y.tolist() == [[0, 1], [0, -1]]
    pair = pad_collate()([Pair(t, i) for i, t in enumerate(tokens)])
    assert type(pair) is Pair
    assert pair.tokens.tolist() == [[1, 2], [3, 0]]
    assert pair.y.tolist() == [0, 1]
    batch = pad_collate()([Sample(t, g) for t, g in zip(tokens, tags, strict=True)])
    assert isinstance(batch, Sample)
    assert batch.label.tolist() == [[0, 1], [0, -100]]
    assert batch.extra is None


def test_to_a_multiple() -> None:
    assert pad_collate(multiple_of=8)([torch.ones(3), torch.ones(9)]).shape == (2, 16)
    assert pad_collate(multiple_of=8)([torch.ones(8)]).shape == (1, 8)
    with pytest.raises(DataError, match="multiple of 0"):
        pad_collate(multiple_of=0)


def test_an_empty_list_takes_the_type_of_the_others() -> None:
    assert pad_collate()([[], [1, 2]]).dtype == torch.int64


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"a": [1]}, {"b": [1]}], "different keys.*'a'"),
        ([{"a": [1]}, {"a": [1], "b": [1]}], "different keys"),
        ([([1],), ([1], [2])], "different length"),
        ([torch.ones(2, 3), torch.ones(2, 4)], "Only the first dimension.*2, 4"),
        ([{"x": [[1, 2], [3]]}, {"x": [[1]]}], r"cannot be padded at \['x'\]"),
    ],
)
def test_samples_of_different_structure_are_refused(samples: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        pad_collate()(samples)


def test_it_pickles_and_makes_the_loader_take_sequences() -> None:
    collate = pickle.loads(pickle.dumps(pad_collate(7)))

    class Ragged:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return [1] * (index + 1)

    (batch,) = Loader(Ragged(), 5, shuffle=False, collate=collate).epoch(0)
    assert batch.tolist() == [[1] * (i + 1) + [7] * (4 - i) for i in range(5)]
    with pytest.raises(DataError, match="do not make a batch.*pad_collate"):
        list(Loader(Ragged(), 5).epoch(0))
