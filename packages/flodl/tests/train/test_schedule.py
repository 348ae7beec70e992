"""Named schedules against torch's own schedulers and written-out values."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
)

import flodl as fl
from flodl.train.schedule import SCHEDULES, make_schedule


def two_groups() -> SGD:
    return SGD(
        [{"params": [nn.Parameter(torch.zeros(1))], "lr": 0.5}, {"params": [nn.Parameter(torch.zeros(1))]}], lr=2.0
    )


def rates(optimizer: Optimizer, scheduler: LRScheduler, updates: int) -> list[tuple[float, ...]]:
    """The learning rates that each update is made with."""
    used = []
    for _ in range(updates):
        used.append(tuple(float(group["lr"]) for group in optimizer.param_groups))
        optimizer.step()
        scheduler.step()
    return used


def of(name: str, updates: int, **settings: Any) -> list[float]:
    optimizer = two_groups()
    both = rates(optimizer, make_schedule(name, optimizer, **settings), updates)
    assert all(b == pytest.approx(4 * a, rel=1e-15, abs=0) for a, b in both)  # the groups keep their ratio
    return [b / 2.0 for _, b in both]


N, W, M = 40, 7, 0.1


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("linear", lambda o: LinearLR(o, 1.0, M, total_iters=N - W)),
        ("polynomial", lambda o: PolynomialLR(o, total_iters=N - W, power=2.0)),
    ],
)
def test_torch_with_its_own_warm_up_is_the_same(name: str, after: Any) -> None:
    optimizer = two_groups()
    warm_up = LinearLR(optimizer, 1 / (W + 1), 1.0, total_iters=W)
    theirs = rates(optimizer, SequentialLR(optimizer, [warm_up, after(optimizer)], [W]), N)
    least = M if name == "linear" else 0.0
    ours = of(name, N, total_steps=N, warmup_steps=W, min_lr_ratio=least)
    assert ours == pytest.approx([b / 2.0 for _, b in theirs], rel=1e-12)


def test_cosine_is_torchs() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    theirs = rates(optimizer, CosineAnnealingLR(optimizer, T_max=N, eta_min=2.0 * M), N)
    assert of("cosine", N, total_steps=N, min_lr_ratio=M) == pytest.approx([a / 2.0 for (a,) in theirs], rel=1e-12)


@pytest.mark.parametrize(("warmup", "rise"), [(0, 0.3), (W, (W + 1) / N)])
def test_one_cycle_is_torchs(warmup: int, rise: float) -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    cycle = OneCycleLR(
        optimizer, 2.0, total_steps=N, pct_start=rise, final_div_factor=1 / (25 * M), cycle_momentum=False
    )
    theirs = [2.0 / 25]  # torch refuses to step beyond the last update
    for _ in range(N - 1):
        optimizer.step()
        cycle.step()
        theirs.append(optimizer.param_groups[0]["lr"])
    ours = of("one_cycle", N, total_steps=N, warmup_steps=warmup, min_lr_ratio=M)
    assert ours == pytest.approx([a / 2.0 for a in theirs], rel=1e-12)


def test_values_at_the_first_last_and_warm_up_updates() -> None:
    def picked(name: str, **settings: Any) -> list[float]:
        values = of(name, 14, warmup_steps=3, **settings)
        return [values[u] for u in (0, 2, 3, 6, 11, 12, 13)]  # n = 12

    up = [1 / 4, 3 / 4, 1.0]
    assert picked("constant") == [*up, 1, 1, 1, 1]
    assert picked("linear", total_steps=12) == pytest.approx([*up, 6 / 9, 1 / 9, 0, 0])
    assert picked("polynomial", total_steps=12, power=3.0) == pytest.approx([*up, (6 / 9) ** 3, (1 / 9) ** 3, 0, 0])
    assert picked("cosine", total_steps=12) == pytest.approx(
        [*up, 0.75, (1 + math.cos(math.pi * 8 / 9)) / 2, 0, 0], abs=1e-15
    )
    fallen = [math.sqrt(4 / 7), math.sqrt(4 / 12), 0.56, 0.56]
    assert picked("inverse_sqrt", min_lr_ratio=0.56) == pytest.approx([*up, *fallen])
    assert picked("one_cycle", total_steps=12) == pytest.approx(
        [0.04, 0.76, 1, 0.5 * (1 + math.cos(3 * math.pi / 8)), 0, 0, 0], abs=1e-15
    )


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("total", [1, 2, 3, 25])
def test_every_factor_is_from_0_to_1_and_the_first_is_above_0(name: str, total: int) -> None:
    for warmup in range(total):
        values = of(name, total + 2, total_steps=total, warmup_steps=warmup)
        assert values[0] > 0
        assert all(0 <= v <= 1 for v in values)
        falling = values[warmup:] if name != "one_cycle" else values[values.index(max(values)) :]
        assert all(a >= b for a, b in pairwise(falling))


@pytest.mark.parametrize("name", SCHEDULES)
def test_resumed_it_goes_on_with_the_settings_it_is_given(name: str, tmp_path: Path) -> None:
    whole = of(name, 20, total_steps=20, warmup_steps=4, min_lr_ratio=M)
    optimizer = two_groups()
    scheduler = make_schedule(name, optimizer, total_steps=99, warmup_steps=4, min_lr_ratio=M)
    rates(optimizer, scheduler, 9)
    torch.save({"o": optimizer.state_dict(), "s": scheduler.state_dict()}, tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    other = two_groups()
    resumed = make_schedule(name, other, total_steps=20, warmup_steps=4, min_lr_ratio=M)
    other.load_state_dict(state["o"])
    resumed.load_state_dict(state["s"])
    resumed.step()
    other.step()
    assert other.param_groups[1]["lr"] / 2.0 == whole[10]
    assert pickle.loads(pickle.dumps(resumed.lr_lambdas[0]))(10) == whole[10]  # type: ignore[attr-defined]


def test_a_rate_in_a_tensor_is_changed_in_place_and_a_scaled_group_stays_scaled() -> None:
    rate = torch.tensor(2.0)
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler = make_schedule("linear", optimizer, total_steps=4)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 1.5
    optimizer.param_groups[0]["initial_lr"] *= 0.5
    optimizer.step()
    scheduler.step()
    assert rate.item() == 0.5


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cosin", {}, "there is no learning-rate schedule 'cosin'. Did you mean 'cosine'?"),
        ("cosine", {}, "'cosine' needs to know how long training is: give total_steps"),
        ("linear", {"total_steps": 0}, "total_steps is 0; it must be at least 1"),
        (
            "linear",
            {"total_steps": 5, "warmup_steps": 5},
            "warmup_steps is 5; it must be at least 0 and less than the 5",
        ),
        ("constant", {"warmup_steps": -1}, "warmup_steps is -1"),
        ("constant", {"min_lr_ratio": 1.5}, "min_lr_ratio is 1.5; it must be from 0 to 1"),
        ("constant", {"min_lr_ratio": math.nan}, "min_lr_ratio is nan"),
        ("polynomial", {"total_steps": 5, "power": 0.0}, "power is 0.0"),
    ],
)
def test_wrong_settings_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(fl.ConfigError) as error:
        make_schedule(name, two_groups(), **settings)
    assert message in str(error.value)
