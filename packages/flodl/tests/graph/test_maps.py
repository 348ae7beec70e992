"""Maps against hand-written PyTorch, batched against element by element."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import flodl as fl

from .parity import F64, linear, same


@pytest.mark.parametrize("batched", [False, True])
def test_each_row(batched: bool) -> None:
    body = nn.Sequential(linear(4, 6), nn.LayerNorm(6, dtype=F64), nn.GELU())
    builder = fl.flow(nn.Identity()).map(body).each()
    model = (builder.batched() if batched else builder).build()
    same(model, lambda x: torch.cat([body(row) for row in x.split(1)]))


@pytest.mark.parametrize("batched", [False, True])
def test_over_a_tag(batched: bool) -> None:
    a, b, body = linear(), linear(), linear()
    builder = fl.flow(a).tag("t").through(b).map(body).over("t")
    same((builder.batched() if batched else builder).build(), lambda x: body(a(x)))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("shape", [(5, 6), (3, 2, 6)])
def test_slices(batched: bool, shape: tuple[int, ...]) -> None:
    body = linear(2, 3)
    builder = fl.flow(nn.Identity()).map(body).slices(3)
    x = torch.randn(shape, dtype=F64, requires_grad=True)
    same(
        (builder.batched() if batched else builder).build(),
        lambda x: torch.cat([body(x[..., :2]), body(x[..., 2:4]), body(x[..., 4:])], -1),
        x,
    )


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("over", ["rows", "slices"])
def test_named_values_go_with_their_element(batched: bool, over: str) -> None:
    def body(x: Tensor, scale: Tensor) -> Tensor:
        return x * scale

    builder = fl.flow(nn.Identity()).input("scale").map(body)
    builder = builder.each() if over == "rows" else builder.slices(2)
    model = (builder.batched() if batched else builder).using("scale").build()
    x, scale = torch.randn(5, 4, dtype=F64), torch.rand(5, 1, dtype=F64)
    assert torch.equal(model(x, scale), x * scale)


def test_wrong_maps() -> None:
    with pytest.raises(fl.FlowError, match="step 2, map.*over what"):
        fl.flow(linear()).map(linear()).build()
    with pytest.raises(fl.FlowError, match="at least one slice"):
        fl.flow(linear()).map(linear()).slices(0).build()
    with pytest.raises(fl.FlowError, match="unknown tag 'tt'. Did you mean 't'"):
        fl.flow(linear()).tag("t").map(linear()).over("tt").build()
    with pytest.raises(fl.StepError, match="4 features cannot be cut into 3 equal slices"):
        fl.flow(linear()).map(linear()).slices(3).build()(torch.randn(2, 4, dtype=F64))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("slices", [0, 2])
def test_tensors_in_containers_follow_their_elements(slices: int, batched: bool) -> None:
    def body(x: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
        return x * pair[0] + pair[1]

    builder = fl.flow(nn.Identity()).input("pair").map(body)
    builder = builder.slices(slices) if slices else builder.each()
    model = (builder.batched() if batched else builder).using("pair").build()
    x, scale = torch.randn(5, 4, dtype=F64), torch.randn(5, 1, dtype=F64)
    assert torch.equal(model(x, (scale, torch.ones(()))), x * scale + 1)
