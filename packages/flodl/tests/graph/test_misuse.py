"""What makes no sense is said at once, with the step, the thing and a remedy."""

from __future__ import annotations

import sys

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


MISUSE = {
    "a module for branches": (lambda: fl.flow(linear()).split(linear()), r"step 2, split\(Linear\): several.*list"),
    "no branches": (lambda: fl.flow(linear()).split(None), r"step 2, split\(NoneType\): several parts are needed"),
    "a module for experts": (
        lambda: fl.flow(linear()).gate(fl.SoftmaxRouter(4, 1), linear()),
        r"step 2, gate\(Linear\): several parts are needed: give a list",
    ),
    "a module for choices": (
        lambda: fl.flow(linear()).switch(fl.FixedSelector(0), linear()),
        r"step 2, switch\(Linear\): several parts are needed",
    ),
    "tag 3": (lambda: fl.flow(linear()).tag(3), r"step 1, flow\(Linear\): tag takes a name, not 3: give text"),
    "tag None": (lambda: fl.flow(linear()).tag(None), "tag takes a name, not None"),
    "internal 3": (lambda: fl.flow(linear()).internal(3), "internal takes a name, not 3"),
    "group 3": (lambda: fl.flow(linear()).split([linear()]).tag_group(3), r"step 2, split.*tag_group takes a name"),
    "label 3": (lambda: fl.flow(linear()).label(3), "label takes a name, not 3"),
    "input 3": (lambda: fl.flow(linear()).input("a", 3), "input takes a name, not 3"),
    "using 3": (lambda: fl.flow(linear()).using(h=3), "using takes a name, not 3"),
    "over 3": (lambda: fl.flow(linear()).map(linear()).over(3), r"step 2, map\(Linear\): over takes a name, not 3"),
    "names that nobody gets": (
        lambda: fl.flow(linear()).tag("h").split([linear()]).merge("add").using("h"),
        r"step 3, merge\(\): this merge takes no named values: merge with a callable",
    ),
    "a list of modules": (
        lambda: fl.flow(linear()).through(nn.ModuleList([linear()])),
        r"step 2, through\(ModuleList\): ModuleList has no forward: .*nn.Sequential",
    ),
    "a bare module": (lambda: fl.flow(linear()).through(nn.Module()), r"step 2.*Module has no forward"),
    "a list among experts": (
        lambda: fl.flow(linear()).gate(fl.SoftmaxRouter(4, 2), [linear(), nn.ModuleList()]),
        "step 2.*ModuleList has no forward",
    ),
    "dim a": (lambda: fl.flow(linear()).split([linear()]).merge("cat", dim="a"), "step 3.*dim='a'.*give an integer"),
    "True times": (lambda: fl.flow(linear()).loop_body(linear()).for_n(True), "step 2.*at least once, not True times"),
    "None times": (
        lambda: fl.flow(linear()).loop_body(linear()).while_cond(fl.ThresholdHalt(1), None),
        "step 2.*at least once, not None times: give a whole number",
    ),
    "True slices": (lambda: fl.flow(linear()).map(linear()).slices(True), "at least one slice, not True"),
    "emits a name": (
        lambda: fl.flow(linear()).loop_body(linear(), emits="quality").for_n(2),
        r"step 2, loop_body\(Linear\): emits='quality': give a list of names",
    ),
    "emits nothing": (lambda: fl.flow(linear()).loop_body(linear(), emits=None), "step 2.*emits=None: give a list"),
    "emits a number": (lambda: fl.flow(linear()).loop_body(linear(), emits=[3]), "step 2.*emits=.3.: give a list"),
    "using without a taker": (
        lambda: fl.flow(linear()).tag("h").through(linear()).using("h"),
        r"step 2, through\(Linear\): .*rename it with .using\(argument=\"tag\"\), or give the part a parameter",
    ),
    "using without a taker among several": (
        lambda: fl.flow(linear()).tag("h").gate(fl.SoftmaxRouter(4, 1), [linear()]).using("h"),
        r"step 2, gate.*none of its parts takes.*rename it with .using\(argument=\"tag\"\)",
    ),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_said_with_a_remedy(case: str) -> None:
    make, message = MISUSE[case]
    with pytest.raises(fl.FlowError, match=message):
        make().build()


def test_flows_that_are_nested_too_deep() -> None:
    nested = fl.flow(linear())
    for _ in range(sys.getrecursionlimit()):
        nested = fl.flow(nested)
    with pytest.raises(fl.FlowError, match="nested too deep.*make one flow of the steps"):
        nested.build()


def test_modules_in_any_collection_are_branches() -> None:
    a, b = linear(), linear()
    x = torch.randn(3, 4)
    for parts in ((a, b), nn.ModuleList([a, b]), iter([a, b])):
        assert torch.equal(fl.flow(nn.Identity()).split(parts).merge("add").build()(x), a(x) + b(x))


@pytest.mark.parametrize("path", [3, None])
def test_a_path_that_is_no_text_is_not_the_whole_model(path: object) -> None:
    model = fl.flow(linear()).build()
    methods = (model.freeze, model.thaw, model.subgraph, model.validate_path, model.observe, model.collect, model.trend)
    for method in (*methods, model.tagged, model.traces, model.release, model.trends, lambda p: model.record(p, 1.0)):
        with pytest.raises(fl.FlowError, match=f"a path is text such as 'encoder.scan', not {path}"):
            method(path)  # type: ignore[operator]
    assert not model.is_frozen()
