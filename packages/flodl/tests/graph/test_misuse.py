"""What makes no sense is said at once, with the step, the thing and a remedy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import flodl as fl


def linear() -> nn.Linear:
    return nn.Linear(4, 4)


def test_a_label_that_is_a_word_of_python() -> None:
    inner = fl.flow(linear()).label("in")
    with pytest.raises(fl.FlowError, match="label 'in' is a word of Python.*use 'in_'"):
        fl.flow(linear()).through(inner).build()


def test_automatic_names_give_way_to_labels() -> None:
    first, second = linear(), linear()
    inner = fl.flow(second).label("linear")
    for part in (inner, inner.build()):
        model = fl.flow(first).through(part).build()
        assert model.linear_2 is first
        assert model.linear.linear is second
    merged = fl.flow(nn.Bilinear(4, 4, 4)).using(input2="b").input("b").split([linear()] * 2).merge(
        fl.flow(nn.Identity()).label("bilinear").through(lambda x, y: x + y).using("y").input("y").build()
    )  # fmt: skip
    assert isinstance(merged.build().bilinear_2, nn.Bilinear)
    x = torch.randn(3, 4)
    assert torch.equal(model(x), second(first(x)))


def test_a_flow_that_contains_itself() -> None:
    loop = fl.flow(linear()).label("a")
    loop.gate(fl.SoftmaxRouter(4, 2), [linear(), fl.flow(loop)])
    with pytest.raises(fl.FlowError, match=r"step 1, flow\(a\): a flow cannot contain itself; copy\(\)"):
        loop.build()
    twice = fl.flow(torch.neg)
    x = torch.randn(3, 4)
    assert torch.equal(twice.through(twice.copy()).build()(x), x)
