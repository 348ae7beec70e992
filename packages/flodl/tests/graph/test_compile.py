"""`torch.compile` and `torch.export` of every construct, also after a forward and with gradients."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

import flodl as fl


def times(x: Tensor, h: Tensor) -> Tensor:
    return x * h


def linear() -> nn.Module:
    return nn.Linear(8, 8)


def start() -> fl.FlowBuilder:
    return fl.flow(linear()).tag("h")


def refine() -> fl.FlowBuilder:
    return fl.flow(linear()).through(torch.tanh).tag("q")


STATIC = {
    "chain": lambda: start().also(linear()).fork(linear()).tag("f").through(times).using(h="f"),
    "split": lambda: start().split([linear(), linear()]).tag_group("g").merge("cat"),
    "for_n": lambda: start().loop_body(refine()).for_n(3),
    "gate": lambda: start().gate(fl.SoftmaxRouter(8, 3), [linear() for _ in range(3)]),
    "each": lambda: start().map(linear()).each(),
    "slices": lambda: start().map(nn.Linear(4, 4)).slices(2).batched(),
    "fixed switch": lambda: start().switch(fl.FixedSelector(1), [linear(), linear()]),
    "nested": lambda: start().through(refine().label("inner")),
}
DYNAMIC = {
    "switch": lambda: start().switch(fl.ArgmaxSelector(8, 2), [linear(), linear()]),
    "switch per_sample": lambda: start().switch(fl.ArgmaxSelector(8, 2), [linear(), linear()], per_sample=True),
    "while": lambda: start().loop_body(linear()).while_cond(fl.ThresholdHalt(0.5), 3),
    "until": lambda: start().loop_body(linear()).until_cond(fl.ThresholdHalt(0.5), 3),
    "until per_sample": lambda: start().loop_body(linear()).until_cond(fl.ThresholdHalt(2.5), 3, per_sample=True),
    "learned": lambda: start().loop_body(linear()).until_cond(fl.LearnedHalt(8), 3),
}


def gradients(model: nn.Module, y: Tensor) -> list[Tensor | None]:
    return list(torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True))


# Dynamo hides this warning in its own way, which an error filter precedes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("name", [*STATIC, *DYNAMIC])
def test_compiled_is_the_same(name: str) -> None:
    torch._dynamo.reset()
    model = {**STATIC, **DYNAMIC}[name]().build()
    x = torch.randn(6, 8)
    compiled = torch.compile(model, fullgraph=name in STATIC, backend="aot_eager")
    for _ in range(2):
        expected, got = model(x), compiled(x)
        torch.testing.assert_close(got, expected)
        for a, b in zip(gradients(model, got), gradients(model, expected), strict=True):
            if a is None or b is None:  # a part that did not run may have no gradient or zeros
                assert all(g is None or not g.any() for g in (a, b))
            else:
                torch.testing.assert_close(a, b)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", STATIC)
def test_static_flows_export(name: str) -> None:
    model = STATIC[name]().build()
    x = torch.randn(6, 8)
    model(x)
    exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), model(x))


@pytest.mark.parametrize("name", [*STATIC, *DYNAMIC])
def test_copies_after_a_forward(name: str) -> None:
    model = {**STATIC, **DYNAMIC}[name]().build()
    x = torch.randn(6, 8)
    model(x).sum().backward()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(x), model(x))
    fresh = {**STATIC, **DYNAMIC}[name]().build()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(x), model(x))
    assert model.to(torch.float64)(x.double()).dtype is torch.float64


def test_a_module_in_two_places_is_saved_and_restored_tied() -> None:
    def build() -> fl.Graph:
        shared = linear()
        return fl.flow(shared).loop_body(shared).for_n(2).gate(fl.SoftmaxRouter(8, 2), [shared, linear()]).build()

    model, other = build(), build()
    x = torch.randn(2, 8)
    assert len(list(model.parameters())) == 6
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    values = len({v.untyped_storage().data_ptr() for v in model.state_dict().values()})
    assert values == 6  # one storage for each tied set
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer))
    assert torch.equal(other(x), model(x))
    for again in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again.get_submodule("linear").weight is again.get_submodule("loop.body").weight


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_copies_after_compile_are_not_compiled() -> None:
    torch._dynamo.reset()
    model = start().also(linear()).build()
    x = torch.randn(6, 8)
    expected = model(x)
    model.compile(backend="eager")
    torch.testing.assert_close(model(x), expected)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other._compiled_call_impl is None
        assert torch.equal(other(x), expected)
    assert model._compiled_call_impl is not None
    torch._dynamo.reset()
