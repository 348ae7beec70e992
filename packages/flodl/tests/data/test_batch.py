from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch

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
