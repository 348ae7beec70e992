"""What `build(example=)` and `check` find out without values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import flodl as fl


def linear(i: int = 4, o: int = 4) -> nn.Linear:
    return nn.Linear(i, o)


def start() -> fl.FlowBuilder:
    return fl.flow(nn.Identity())


def twice(x: Tensor) -> Tensor:
    return torch.cat([x, x], dim=1)


def positive(x: Tensor) -> Tensor:
    return x[:, 0] > 0


MISFITS = {
    "branches": (
        lambda: start().switch(fl.ArgmaxSelector(4, 2), [linear(), linear(4, 5)]),
        r"step 2 \(switch.*the branches give different shapes: \(3, 4\), \(3, 5\)",
    ),
    "argmax selector": (
        lambda: start().switch(fl.ArgmaxSelector(4, 5), [linear(), linear()]),
        r"step 2 .*scores \(3, 5\) for 2 branches",
    ),
    "linear selector": (
        lambda: start().switch(linear(4, 1), [linear(), linear()]),
        r"step 2 .*scores \(3, 1\) for 2 branches",
    ),
    "fixed selector": (
        lambda: start().switch(fl.FixedSelector(2), [linear()]),
        r"step 2 .*chose branch 2, there are 1",
    ),
    "choices": (
        lambda: start().switch(lambda x: x.argmax(1), [linear()] * 4),
        "step 2 .*chose 3 branches for one batch: use per_sample",
    ),
    "choices per sample": (
        lambda: start().switch(lambda x: x.argmax(0), [linear()] * 4, per_sample=True),
        r"step 2 .*3 samples, \(4,\) choices",
    ),
    "scores per sample": (
        lambda: start().switch(lambda x: x.T @ x, [linear()] * 4, per_sample=True),
        r"step 2 .*3 samples, \(4, 4\) scores",
    ),
    "router": (lambda: start().gate(fl.SoftmaxRouter(4, 3), [linear()]), "step 2 .*weights 3 experts, there are 1"),
    "until": (
        lambda: start().loop_body(linear(4, 5)).until_cond(positive, 3),
        r"(?s)step 2 .*\n  in \w+_loop.(body|condition.linear): Linear",
    ),
    "while": (
        lambda: start().loop_body(linear(4, 5)).while_cond(positive, 3),
        r"(?s)step 2 .*\n  in \w+_loop.(body|condition.linear): Linear",
    ),
    "learned": (
        lambda: start().loop_body(twice).until_cond(fl.LearnedHalt(4), 3),
        r"(?s)step 2 .*\n  in \w+_loop.(body|condition.linear): Linear",
    ),
    "until per sample": (
        lambda: start().loop_body(twice).until_cond(positive, 3, per_sample=True),
        r"step 2 .*keeps the shape: it got \(3, 8\), gave \(3, 16\)",
    ),
    "while per sample": (
        lambda: start().loop_body(twice).while_cond(positive, 1, per_sample=True),
        r"step 2 .*keeps the shape: it got \(3, 4\), gave \(3, 8\)",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_misfits_are_found_with_an_example(case: str) -> None:
    make, message = MISFITS[case]
    make().build()
    with pytest.raises(fl.StepError, match=message):
        make().build(example=torch.randn(3, 4))


@pytest.mark.parametrize(
    ("builder", "shape"),
    [
        (start().loop_body(twice).until_cond(lambda x: x.sum() > -1e9, 5), "(3, 8)"),  # a sequence may grow
        (start().loop_body(twice).until_cond(positive, 1, per_sample=True), "(3, 8)"),
        (start().loop_body(linear(4, 5)).until_cond(positive, 1), "(3, 5)"),
        (start().switch(fl.FixedSelector(1), [linear(4, 6), linear(4, 6)], per_sample=True), "(3, 6)"),
        (start().switch(lambda x: x.mean(0), [linear(4, 6)] * 4), "(3, 6)"),
        (start().switch(positive, [linear(4, 6)] * 2, per_sample=True), "(3, 6)"),
    ],
)
def test_what_fits_is_not_refused(builder: fl.FlowBuilder, shape: str) -> None:
    x = torch.randn(3, 4)
    model = builder.build(example=x)
    assert model.check(x) == shape == str(tuple(model(x).shape))
