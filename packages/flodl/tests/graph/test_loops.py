"""Loops against hand-written PyTorch, halting per sample against each sample alone, traces."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import flodl as fl

from .parity import F64, linear, same


def body() -> nn.Module:
    return nn.Sequential(linear(), nn.Tanh())


def above(x: Tensor) -> Tensor:
    return x.norm(dim=1) > 1.2


def test_for_n() -> None:
    first, b = linear(), body()

    def reference(x: Tensor) -> Tensor:
        x = first(x)
        for _ in range(5):
            x = b(x)
        return x

    same(fl.flow(first).loop_body(b).for_n(5).build(), reference)


def test_while_asks_before_and_until_after_for_the_whole_batch() -> None:
    b = body()
    x = torch.randn(5, 4, dtype=F64, requires_grad=True)

    def go_on(x: Tensor) -> Tensor:
        return x.norm(dim=1) > 0.6

    def while_(x: Tensor) -> Tensor:
        for _ in range(50):
            if not go_on(x).any():
                break
            x = b(x)
        return x

    def until(x: Tensor) -> Tensor:
        for _ in range(50):
            x = b(x)
            if (~go_on(x)).all():
                break
        return x

    with torch.no_grad():
        b[0].weight.mul_(0.9)
        b[0].bias.zero_()
    same(fl.flow(nn.Identity()).loop_body(b).while_cond(go_on, 50).build(), while_, x)
    same(fl.flow(nn.Identity()).loop_body(b).until_cond(lambda x: ~go_on(x), 50).build(), until, x)
    small = torch.full((2, 4), 0.1, dtype=F64)
    assert torch.equal(fl.flow(nn.Identity()).loop_body(b).while_cond(go_on, 50).build()(small), small)
    assert torch.equal(fl.flow(nn.Identity()).loop_body(b).until_cond(lambda x: ~go_on(x), 50).build()(small), b(small))


@pytest.mark.parametrize("kind", ["while", "until"])
def test_per_sample_is_each_sample_alone(kind: str) -> None:
    torch.manual_seed(0)
    b = linear()
    with torch.no_grad():
        b.weight.copy_(1.3 * torch.eye(4) + 0.05 * torch.randn(4, 4))
        b.bias.fill_(0.01)
    x = (torch.randn(12, 4, dtype=F64) * torch.logspace(-3, 1, 12, dtype=F64)[:, None]).requires_grad_()

    def build(per_sample: bool) -> fl.Graph:
        loop = fl.flow(nn.Identity()).loop_body(b)
        if kind == "while":
            return loop.while_cond(lambda x: ~above(x), 40, per_sample=per_sample).build()
        return loop.until_cond(above, 40, per_sample=per_sample).build()

    alone = build(False)
    same(build(True), lambda x: torch.cat([alone(row) for row in x.split(1)]), x)
    iterations = {int(torch.log(above_at.norm() / row.norm()) / 0.2) for row, above_at in zip(x, alone(x), strict=True)}
    assert len(iterations) > 3  # the samples do halt at different iterations


def test_a_halted_sample_that_would_overflow_leaves_the_gradients_finite() -> None:
    model = fl.flow(nn.Identity()).loop_body(lambda x: x * x).until_cond(above, 30, per_sample=True).build()
    x = torch.tensor([[3.0, 3, 3, 3], [0.99, 0.99, 0.99, 0.99]], dtype=F64, requires_grad=True)
    model(x).sum().backward()
    assert torch.isfinite(x.grad).all()  # type: ignore[arg-type]


def test_named_values_reach_body_and_condition_and_follow_their_samples() -> None:
    first = linear()

    def step(x: Tensor, h: Tensor) -> Tensor:
        return x + h

    def halt(x: Tensor, limit: Tensor) -> Tensor:
        return x.norm(dim=1) > limit

    builder = fl.flow(first).tag("h").input("limit").loop_body(step)
    model = builder.until_cond(halt, 20, per_sample=True).using("h", "limit").build()
    x, limit = torch.randn(6, 4, dtype=F64), torch.linspace(1, 9, 6, dtype=F64)
    together = model(x, limit)
    alone = torch.cat([model(x[i : i + 1], limit[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(together, alone)
    with pytest.raises(
        fl.StepError, match=r"step 2 \(loop_body\(step, halt\)\).*'limit' \(3,\) has no row for each of the 6"
    ):
        model(x, limit[:3])


def test_threshold_halt() -> None:
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    assert fl.ThresholdHalt(1.0)(x).tolist() == [True, False]
    assert fl.ThresholdHalt(1.0, above=False)(x).tolist() == [False, True]


def graves(body: nn.Module, halt: fl.LearnedHalt, x: Tensor, max: int) -> tuple[Tensor, Tensor]:
    """Adaptive computation time for one sample `x: (1, features)`, as the paper writes it."""
    states, ps = [], []
    for _ in range(max):
        x = body(x)
        states.append(x)
        ps.append(halt(x)[0])
        if sum(ps) >= 1 - halt.epsilon:  # type: ignore[operator]
            break
    remainder = 1 - sum(ps[:-1])
    weights = [*ps[:-1], remainder]
    return sum(w * s for w, s in zip(weights, states, strict=True)), len(states) + remainder  # type: ignore[return-value]


def test_learned_halt_is_adaptive_computation_time() -> None:
    torch.manual_seed(1)
    b, halt = body(), fl.LearnedHalt(4).double()
    with torch.no_grad():
        halt.linear.weight.mul_(4)
        halt.linear.bias.fill_(-1.0)
    model = fl.flow(nn.Identity()).loop_body(b).until_cond(halt, 6).build()
    x = (3 * torch.randn(8, 4, dtype=F64)).requires_grad_()
    same(model, lambda x: torch.cat([graves(b, halt, row, 6)[0] for row in x.split(1)]), x)
    model(x)
    expected = torch.stack([torch.as_tensor(graves(b, halt, row, 6)[1]) for row in x.split(1)])
    assert halt.ponder_cost is not None
    torch.testing.assert_close(halt.ponder_cost, expected.reshape(8))
    assert len(set(halt.ponder_cost.detach().floor().tolist())) > 1
    (halt.ponder_cost.sum() + model(x).sum()).backward()
    assert halt.linear.weight.grad is not None
    pickle.loads(pickle.dumps(copy.deepcopy(model)))  # after a forward with gradients


@pytest.mark.parametrize("per_sample", [False, True])
def test_batch_norm_in_a_per_sample_body_is_exact_in_eval(per_sample: bool) -> None:
    norm = nn.BatchNorm1d(4, dtype=F64)
    norm(torch.randn(50, 4, dtype=F64))
    grow = nn.Sequential(norm, linear()).eval()
    model = fl.flow(nn.Identity()).loop_body(grow).until_cond(above, 5, per_sample=True).build().eval()
    x = torch.randn(7, 4, dtype=F64)
    alone = torch.cat([model(row) for row in x.split(1)])
    torch.testing.assert_close(model(x), alone)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (lambda x: x.norm(dim=1), "answers with torch.float64, not with booleans"),
        (lambda x: x > 0, r"answers once per sample: 3 samples, answer \(3, 4\)"),
    ],
)
def test_conditions_that_make_no_sense(condition: object, message: str) -> None:
    model = fl.flow(nn.Identity()).loop_body(body()).until_cond(condition, 3, per_sample=True).build()
    with pytest.raises(fl.StepError, match=message):
        model(torch.randn(3, 4, dtype=F64))


def test_tensors_in_containers_follow_their_samples_too() -> None:
    def step(x: Tensor, pair: tuple[Tensor, Tensor], more: dict[str, list[Tensor]]) -> Tensor:
        return x + pair[0] * pair[1] + more["a"][0]

    builder = fl.flow(nn.Identity()).input("pair", "more").loop_body(step)
    model = builder.until_cond(above, 20, per_sample=True).using("pair", "more").build()
    x, h, a = torch.randn(3, 6, 4, dtype=F64)
    one = torch.rand(1, 4, dtype=F64)
    together = model(x, (h, one), {"a": [a]})
    rows = [slice(i, i + 1) for i in range(6)]
    torch.testing.assert_close(together, torch.cat([model(x[i], (h[i], one), {"a": [a[i]]}) for i in rows]))
    with pytest.raises(fl.StepError, match=r"'more' \(3, 4\) has no row for each of the 6"):
        model(x, (h, one), {"a": [a[:3]]})


BAD = {
    "no count": (lambda: fl.flow(body()).loop_body(body()), "how often"),
    "zero": (lambda: fl.flow(body()).loop_body(body()).for_n(0), "at least once"),
    "misplaced": (lambda: fl.flow(body()).for_n(3), "for_n belongs after loop_body; the step before is 1, flow"),
    "twice": (lambda: fl.flow(body()).loop_body(body()).for_n(3).for_n(4), "'times' is said already"),
    "while learned": (lambda: fl.flow(body()).loop_body(body()).while_cond(fl.LearnedHalt(4), 3), "use until_cond"),
    "using": (
        lambda: fl.flow(body()).tag("h").loop_body(body()).until_cond(above, 3).using("h"),
        "none of its parts takes the keyword argument 'h'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_loops_fail_in_build(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(fl.FlowError, match=message):
        make().build()
