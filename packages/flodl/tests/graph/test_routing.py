"""Gates and switches against hand-written PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import flodl as fl

from .parity import F64, linear, same


@pytest.mark.parametrize("router", [fl.SoftmaxRouter, fl.SigmoidRouter])
def test_gate_is_the_weighted_sum(router: type[nn.Module]) -> None:
    first, route, experts = linear(), router(4, 3).double(), [linear(4, 5) for _ in range(3)]

    def reference(x: Tensor) -> Tensor:
        x = first(x)
        weights = route(x)
        return sum(weights[:, i : i + 1] * e(x) for i, e in enumerate(experts))  # type: ignore[return-value]

    same(fl.flow(first).gate(route, experts).build(), reference)


@pytest.mark.parametrize(
    ("shape", "expert", "router"),
    [
        ((2, 3, 4), lambda x: 2 * x, lambda x: torch.softmax(x, -1)),  # a router that weights each token
        ((2, 3, 4), lambda x: 2 * x, lambda x: torch.softmax(x.mean(1), -1)),  # one that weights each sequence
        ((2, 4, 5, 5), lambda x: x**2, lambda x: torch.softmax(x.mean((2, 3)), -1)),  # images
        ((6, 4), lambda x: x.sum(-1), lambda x: torch.softmax(x, -1)),  # experts that give a number
    ],
)
def test_gate_for_outputs_of_any_shape(shape: tuple[int, ...], expert: object, router: object) -> None:
    experts = [expert, torch.zeros_like if shape != (6, 4) else (lambda x: x.mean(-1)), expert, expert]
    x = torch.randn(shape, dtype=F64, requires_grad=True)

    def reference(x: Tensor) -> Tensor:
        weights = router(x)  # type: ignore[operator]
        outputs = [e(x) for e in experts]  # type: ignore[operator]
        lead = weights.ndim - 1
        return sum(  # type: ignore[return-value]
            weights[..., i].reshape(*weights.shape[:-1], *[1] * (o.ndim - lead)) * o for i, o in enumerate(outputs)
        )

    same(fl.flow(nn.Identity()).gate(router, experts).build(), reference, x)


def test_gate_counts_its_experts() -> None:
    model = fl.flow(nn.Identity()).gate(fl.SoftmaxRouter(4, 2), [nn.Linear(4, 4)] * 3).build()
    with pytest.raises(fl.StepError, match=r"step 2 \(gate.*the router weights 2 experts, there are 3"):
        model(torch.randn(2, 4))


def test_named_values_reach_the_parts_that_take_them() -> None:
    first, a, b = linear(), linear(), nn.Bilinear(4, 4, 4, dtype=F64)

    def router(x: Tensor, h: Tensor) -> Tensor:
        return torch.softmax((x + h)[:, :2], -1)

    model = fl.flow(first).tag("h").through(nn.Tanh()).gate(router, [a, lambda x, input2: b(x, input2)])

    def reference(x: Tensor) -> Tensor:
        h = first(x)
        x = torch.tanh(h)
        w = router(x, h)
        return w[:, :1] * a(x) + w[:, 1:] * b(x, h)

    built = model.using("h", input2="h").build()
    x = torch.randn(5, 4, dtype=F64, requires_grad=True)
    torch.testing.assert_close(built(x), reference(x))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        return self.linear(x)  # type: ignore[no-any-return]


def test_switch_runs_the_chosen_branch_only() -> None:
    branches = [Counting() for _ in range(3)]
    model = fl.flow(nn.Identity()).switch(fl.FixedSelector(1), branches).build()
    x = torch.randn(5, 4, dtype=F64)
    assert torch.equal(model(x), branches[1].linear(x))
    assert [b.rows for b in branches] == [[], [5], []]
    select = fl.ArgmaxSelector(4, 3).double()
    model = fl.flow(nn.Identity()).switch(select, [b.linear for b in branches]).build()
    for _ in range(5):
        x = torch.randn(5, 4, dtype=F64, requires_grad=True)
        best = int(select.linear(x).mean(0).argmax())
        same(model, branches[best].linear, x)


def test_switch_per_sample_is_sample_by_sample_and_grouped() -> None:
    torch.manual_seed(0)
    select = fl.ArgmaxSelector(4, 4).double()
    with torch.no_grad():
        select.linear.weight[3] = -100 * select.linear.weight[:3].abs().sum(0)  # nearly never chosen
    branches = [linear(4, 6) for _ in range(4)]
    model = fl.flow(nn.Identity()).switch(select, branches, per_sample=True).build()
    x = torch.randn(20, 4, dtype=F64, requires_grad=True)
    choice = select.linear(x).argmax(1).tolist()
    assert len(set(choice)) > 2
    same(model, lambda x: torch.cat([branches[c](row) for c, row in zip(choice, x.split(1), strict=True)]), x)
    counting = [Counting() for _ in range(4)]
    fl.flow(nn.Identity()).switch(lambda x: torch.tensor([2, 0, 2, 2]), counting, per_sample=True).build()(x[:4])
    assert [c.rows for c in counting] == [[1], [], [3], []]


def test_switch_per_sample_takes_the_rows_of_named_values() -> None:
    a = linear()
    model = fl.flow(nn.Identity()).tag("h").through(a).switch(
        lambda x, h: (h[:, 0] > 0).long(), [lambda x, h: x + h, lambda x: -x], per_sample=True
    )  # fmt: skip
    x = torch.randn(9, 4, dtype=F64, requires_grad=True)
    same(model.using("h").build(), lambda x: torch.where(x[:, :1] > 0, -a(x), a(x) + x), x)


@pytest.mark.parametrize(
    ("selector", "per_sample", "message"),
    [
        (fl.FixedSelector(2), False, "chose branch 2, there are 2"),
        (lambda x: torch.tensor([0, 1, 0]), False, "chose 3 branches for one batch: use per_sample"),
        (lambda x: torch.tensor([0, 1]), True, r"once per sample: 3 samples, \(2,\) choices"),
        (lambda x: None, False, "step 2 .*a selector answers with an integer, integers.*this one with NoneType"),
        (lambda x: [0, 1, 0], True, "step 2 .*scores .batch, branches., this one with list"),
        (lambda x: -1, True, "chose branch -1, there are 2"),
        (lambda x: torch.tensor([0, 1, 5]), True, "chose branch 5, there are 2"),
        (nn.Linear(4, 1, dtype=F64), True, r"gives scores \(3, 1\) for 2 branches"),
        (fl.ArgmaxSelector(4, 5).double(), False, r"gives scores \(3, 5\) for 2 branches"),
    ],
)
def test_choices_that_make_no_sense(selector: object, per_sample: bool, message: str) -> None:
    model = fl.flow(nn.Identity()).switch(selector, [linear(), linear()], per_sample=per_sample).build()
    with pytest.raises(fl.StepError, match=message):
        model(torch.randn(3, 4, dtype=F64))


def test_nothing_to_choose_from_fails_in_build() -> None:
    with pytest.raises(fl.FlowError, match="step 2, gate.*at least one part"):
        fl.flow(nn.Identity()).gate(fl.SoftmaxRouter(4, 1), []).build()


def test_functions_without_a_signature_are_not_given_names_that_another_part_takes() -> None:
    def plus(x: Tensor, h: Tensor) -> Tensor:
        return x + h

    model = fl.flow(linear()).tag("h").gate(fl.SoftmaxRouter(4, 2).double(), [torch.tanh, plus]).using("h").build()
    assert model(torch.randn(2, 4, dtype=F64)).shape == (2, 4)
    model = fl.flow(linear()).tag("h").through(torch.mul).using(other="h").build()
    x = torch.randn(2, 4, dtype=F64)
    assert torch.equal(model(x), model.h(x) ** 2)


def test_booleans_choose_like_0_and_1() -> None:
    no, yes = linear(), linear()
    x = torch.randn(9, 4, dtype=F64, requires_grad=True)
    per_sample = fl.flow(nn.Identity()).switch(lambda x: x[:, 0] > 0, [no, yes], per_sample=True).build()
    same(per_sample, lambda x: torch.where(x[:, :1] > 0, yes(x), no(x)), x)
    for limit, chosen in ((-1e9, yes), (1e9, no)):
        as_bool = fl.flow(nn.Identity()).switch(lambda x, at=limit: bool(x.sum() > at), [no, yes]).build()
        as_tensor = fl.flow(nn.Identity()).switch(lambda x, at=limit: x.sum() > at, [no, yes]).build()
        assert torch.equal(as_bool(x), chosen(x))
        assert torch.equal(as_tensor(x), chosen(x))
