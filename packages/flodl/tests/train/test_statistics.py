"""Statistics against numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import get_total_norm
from torch.optim import SGD, Adam

import flodl as fl
from flodl.train.statistics import Statistics, gradient_statistics, module_memory, weight_statistics


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def loss_of(model: nn.Module, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,)))


def test_gradients_are_those_of_numpy() -> None:
    torch.manual_seed(0)
    grads = {
        "a": torch.randn(3, 4) * (torch.rand(3, 4) > 0.4),
        "b.c": torch.tensor([1.0, math.nan, math.inf, 0.0]),
        "d": torch.zeros(2),
    }
    found = {name: value.item() for name, value in gradient_statistics(grads).items()}
    for name, gradient in grads.items():
        array = gradient.double().numpy()
        assert found[f"grad_norm/{name}"] == pytest.approx(np.sqrt((array**2).sum()), rel=1e-6, nan_ok=True)
        assert found[f"grad_max/{name}"] == pytest.approx(np.abs(array).max(), nan_ok=True)
        assert found[f"grad_zeros/{name}"] == pytest.approx((array == 0).mean())
        assert found[f"grad_nonfinite/{name}"] == pytest.approx((~np.isfinite(array)).mean())
    assert math.isnan(found["grad_norm"])
    finite = {"a": grads["a"], "d": grads["d"]}
    assert gradient_statistics(finite)["grad_norm"].item() == pytest.approx(
        get_total_norm(list(finite.values())).item()
    )
    assert len(found) == 3 * 4 + 1
    assert gradient_statistics({}) == weight_statistics({}, {}) == {}


def test_sparse_and_half_gradients() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    dense = nn.Embedding(10, 4)
    dense.load_state_dict(embedding.state_dict())
    for module in (embedding, dense):
        module(torch.tensor([1, 1, 3])).square().sum().backward()
    sparse, full = (gradient_statistics({"w": m.weight.grad}) for m in (embedding, dense))  # type: ignore[dict-item]
    assert sparse.keys() == full.keys()
    for name, value in full.items():
        assert sparse[name].item() == pytest.approx(value.item()), name
    half = gradient_statistics({"w": torch.full((1000,), 300.0, dtype=torch.float16)})
    assert half["grad_norm/w"].item() == pytest.approx(300 * math.sqrt(1000))  # 90000 overflows float16


def test_weights_and_the_size_of_an_update() -> None:
    before = {"a": torch.tensor([3.0, -4.0]), "z": torch.zeros(2)}
    after = {"a": torch.tensor([3.0, -3.0]), "z": torch.ones(2)}
    found = {name: value.item() for name, value in weight_statistics(after, before).items()}
    assert found["weight_norm/a"] == pytest.approx(math.sqrt(18))
    assert found["weight_norm"] == pytest.approx(math.sqrt(20))
    assert found["weight_max/a"] == 3
    assert found["update_ratio/a"] == pytest.approx(1 / 5)
    assert math.isnan(found["update_ratio/z"])


def test_a_loop_of_ones_own_is_measured_every_so_many_updates_and_not_changed() -> None:
    told: list[dict[str, Any]] = []
    watched, plain = make_model(), make_model()
    watched[0].bias.requires_grad_(False)
    plain[0].bias.requires_grad_(False)
    statistics = Statistics(lambda **metrics: told.append(metrics), every=3)
    for model in (watched, plain):
        optimizer = SGD(model.parameters(), lr=0.5)
        if model is watched:
            statistics.attach(model, optimizer)
        for step in range(7):
            optimizer.zero_grad()
            loss_of(model, step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            statistics.report()
    statistics.detach()
    assert all(torch.equal(a, b) for a, b in zip(watched.parameters(), plain.parameters(), strict=True))
    assert len(told) == 3  # updates 1, 4 and 7
    assert "grad_norm/0.bias" not in told[0]
    for name in ("0.weight", "2.weight", "2.bias"):
        ratio = 0.5 * told[0][f"grad_norm/{name}"] / make_model().get_parameter(name).norm()
        torch.testing.assert_close(told[0][f"update_ratio/{name}"], ratio, rtol=1e-4, atol=0)
    assert not optimizer._optimizer_step_pre_hooks


def test_a_trainer_records_them_at_the_update_they_belong_to() -> None:
    model = make_model()
    optimizer = Adam(model.parameters(), lr=0.01)
    statistics = Statistics(lambda **metrics: trainer.record(**metrics), every=4)
    trainer = fl.Trainer.setup(
        model,
        optimizer,
        (torch.randn(60, 6), torch.randint(3, (60,))),
        batch_size=10,
        quiet=True,
        callbacks=[statistics],
    )
    with trainer:
        for _ in trainer.epochs(2):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
        assert trainer.run.folder
    with fl.monitor.RunView(trainer.run.folder) as view:
        for name in ("grad_norm", "grad_norm/0.weight", "update_ratio/2.bias", "weight_norm"):
            points = view.series(name)
            assert [p.step for p in points] == [1, 5, 9]
            assert all(0 < p.value < 100 for p in points)
    with pytest.raises(fl.ConfigError, match="every is 0"):
        Statistics(print, every=0)


def test_the_memory_of_each_module() -> None:
    model = nn.Sequential(nn.Linear(10, 5), nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 10)), nn.Linear(5, 10))
    model[2].weight = model[1][1].weight
    first, norm, second, bias = 55 * 4, 5 * 4 * 2, 60 * 4, 10 * 4
    statistics = 5 * 4 * 2 + 8  # mean, variance, an int64
    assert module_memory(model) == {
        "": first + norm + statistics + second + bias,
        "0": first,
        "1": norm + statistics + second,
        "1.0": norm + statistics,
        "1.1": second,
        "2": bias,
    }
    optimizer = Adam(model.parameters(), lr=0.1)
    (model[:2](torch.randn(3, 10)).sum() + model[2](torch.randn(3, 5)).sum()).backward()
    optimizer.step()
    found = module_memory(model, optimizer)  # each with its gradient, two averages and a step
    assert found["0"] == 4 * first + 2 * 4
    assert found[""] == 4 * (first + norm + second + bias) + 7 * 4 + statistics
