from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from flodl import DataError
from flodl.data import batch_size_of, map_structure, to_device

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Sentence:
    tokens: torch.Tensor
    mask: torch.Tensor | None = None
    length: int = field(init=False, default=3)


def double(leaf: object) -> object:
    return leaf * 2 if isinstance(leaf, torch.Tensor) else leaf


def test_every_container_keeps_its_type_and_everything_else_its_value() -> None:
    x = torch.ones(2, 3)
    batch = {"a": (x, [x, None]), "b": OrderedDict(c=Pair(x, "text")), "d": Sentence(x), "n": 7}
    doubled = map_structure(double, batch)
    assert torch.equal(doubled["a"][0], 2 * x)
    assert torch.equal(doubled["a"][1][0], 2 * x)
    assert doubled["a"][1][1] is None
    assert type(doubled["b"]) is OrderedDict
    assert type(doubled["b"]["c"]) is Pair
    assert doubled["b"]["c"].y == "text"
    assert torch.equal(doubled["d"].tokens, 2 * x)
    assert doubled["d"].mask is None
    assert doubled["d"].length == 3
    assert doubled["n"] == 7
    assert torch.equal(batch["a"][0], torch.ones(2, 3)), "the batch given was changed"
    assert torch.equal(batch["b"]["c"].x, torch.ones(2, 3))


class Graph:
    """Moves itself, as the batches of graph libraries do."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device | str) -> Graph:
        return Graph(self.x.to(device))


def test_objects_that_know_how_move_themselves() -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    moved = to_device({"g": Graph(torch.ones(2)), "p": packed, "t": Graph}, "meta")
    assert moved["g"].x.device.type == "meta"
    assert isinstance(moved["p"], PackedSequence)
    assert moved["p"].data.device.type == "meta"
    assert moved["p"].batch_sizes.device.type == "cpu", "torch wants it there"
    assert moved["t"] is Graph


def test_the_batch_of_a_tokenizer_keeps_its_type() -> None:
    transformers = pytest.importorskip("transformers")
    batch = transformers.BatchEncoding({"input_ids": torch.ones(2, 3), "text": ["a", "b"]})
    moved = to_device(batch, "meta")
    assert type(moved) is transformers.BatchEncoding
    assert moved["input_ids"].device.type == "meta"
    assert moved["text"] == ["a", "b"]
    assert batch["input_ids"].device.type == "cpu", "the batch given was changed"


def test_moving_copies_nothing_that_is_there() -> None:
    x = torch.ones(2)
    assert to_device((x, None), "cpu")[0] is x
    assert to_device((x, None, "id"), "meta")[0].device.type == "meta"
    assert to_device((x, None, "id"), "meta")[1:] == (None, "id")


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.ones(3, 2), 3),
        ((None, torch.ones(4)), 4),
        ({"scale": torch.tensor(2.0), "x": [torch.ones(5, 1)]}, 5),
        (Sentence(torch.ones(6, 2)), 6),
        (torch.ones(0, 2), 0),
    ],
)
def test_samples_are_counted_by_the_first_dimension(batch: object, size: int) -> None:
    assert batch_size_of(batch) == size


@pytest.mark.parametrize("batch", [None, torch.tensor(1.0), {"a": "text"}, ()])
def test_a_batch_without_a_dimension_cannot_be_counted(batch: object) -> None:
    with pytest.raises(DataError, match="no tensor with a first dimension"):
        batch_size_of(batch)
