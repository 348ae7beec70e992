"""Updates against the same thing written by hand: windows of batches, clipping, mixed precision, schedules, averages."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

import flodl as fl

Pairs = tuple[Tensor, Tensor]


def regression(samples: int = 50) -> Pairs:
    torch.manual_seed(1)
    return torch.randn(samples, 6, dtype=torch.float64), torch.randn(samples, 3, dtype=torch.float64)


def small() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def trained(model: nn.Module, data: Any, epochs: int = 2, *, form: str = "step", **settings: Any) -> fl.Trainer:
    settings = {"shuffle": False, "quiet": True, "record": False, **settings}
    optimizer = settings.pop("optimizer", None) or SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = fl.Trainer.setup(model, optimizer, data, **settings)
    with trainer:
        for _ in trainer.epochs(epochs):
            for x, y in trainer.batches():
                loss = F.mse_loss(trainer.model(x), y)
                if form == "step":
                    trainer.step(loss)
                elif form == "backward":
                    loss.backward()
                    trainer.step()
                else:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    return trainer


def same(a: nn.Module, b: nn.Module, tolerance: float = 1e-12) -> None:
    for (name, p), q in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("form", ["step", "backward"])
def test_a_window_equals_the_concatenated_batch_also_the_incomplete_last_one(form: str) -> None:
    """50 samples in windows of 3 batches of 8: 24, 24, 2 (a short batch alone)."""
    data, model = regression(), small()
    expected = copy.deepcopy(model)
    optimizer = SGD(expected.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(2):
        for at in (0, 24, 48):
            x, y = (t[at : at + 24] for t in data)
            loss = F.mse_loss(expected(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append((loss.item(), len(x)))
    trainer = trained(model, data, form=form, batch_size=8, accumulate=3)
    assert trainer.global_step == 6
    same(model, expected)
    if form == "step":
        mean = sum(loss * n for loss, n in losses[:3]) / 50
        assert trainer.history[0]["loss"] == pytest.approx(mean, rel=1e-12)


def test_a_window_is_weighted_by_valid_tokens() -> None:
    """Batches with different numbers of labels to ignore, as one batch of all of them; a batch without any counts nothing."""
    torch.manual_seed(3)
    x, y = torch.randn(12, 5, 6, dtype=torch.float64), torch.randint(3, (12, 5))
    y[torch.rand(12, 5) < 0.4] = -100
    y[4:8] = -100
    model = small()
    expected = copy.deepcopy(model)
    optimizer = SGD(expected.parameters(), lr=0.1)
    F.cross_entropy(expected(x).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
    trainer = fl.Trainer.setup(
        model, SGD(model.parameters(), lr=0.1), (x, y), batch_size=4, accumulate=3, loss_weight="tokens",
        shuffle=False, quiet=True, record=False,
    )  # fmt: skip
    with trainer:
        for _ in trainer.epochs(1):
            for inputs, labels in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(inputs).flatten(0, 1), labels.flatten()))
    assert trainer.global_step == 1
    same(model, expected)


@pytest.mark.parametrize("form", ["step", "backward", "optimizer"])
@pytest.mark.parametrize("clip", [{"clip_norm": 0.05}, {"clip_value": 0.01}, {"clip_value": 0.02, "clip_norm": 0.05}])
def test_clipping(form: str, clip: dict[str, float]) -> None:
    data, model = regression(), small()
    expected = copy.deepcopy(model)
    optimizer = SGD(expected.parameters(), lr=0.1, momentum=0.9)
    for at in range(0, 50, 8):
        optimizer.zero_grad()
        F.mse_loss(expected(data[0][at : at + 8]), data[1][at : at + 8]).backward()
        if "clip_value" in clip:
            for p in expected.parameters():
                assert p.grad is not None
                p.grad.clamp_(-clip["clip_value"], clip["clip_value"])
        if "clip_norm" in clip:
            norm = torch.cat([p.grad.flatten() for p in expected.parameters() if p.grad is not None]).norm()
            for p in expected.parameters():
                assert p.grad is not None
                p.grad.mul_(min(1.0, clip["clip_norm"] / (norm.item() + 1e-6)))
        optimizer.step()
    trained(model, data, 1, form=form, batch_size=8, **clip)
    same(model, expected)


def test_clipping_is_of_the_whole_window() -> None:
    data, one, other = regression(48), small(), small()
    trained(one, data, batch_size=24, clip_norm=0.05)
    trained(other, data, batch_size=8, accumulate=3, clip_norm=0.05)
    same(one, other)


@pytest.mark.parametrize("form", ["step", "backward", "optimizer"])
def test_bf16_is_torchs_autocast_of_the_forward(form: str) -> None:
    data = tuple(t.float() for t in regression())
    model = small().float()
    expected = copy.deepcopy(model)
    optimizer = SGD(expected.parameters(), lr=0.1, momentum=0.9)
    for at in range(0, 50, 8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = expected(data[0][at : at + 8])
        assert out.dtype is torch.bfloat16
        F.mse_loss(out.float(), data[1][at : at + 8]).backward()
        optimizer.step()
    trained(model, data, 1, form=form, batch_size=8, amp="bf16")
    same(model, expected, 0.0)
    assert "forward" not in vars(model), "the model is as it was when training is over"
    assert model(data[0]).dtype is torch.float32


def test_a_model_in_mixed_precision_can_be_copied_and_pickled_while_it_trains() -> None:
    data, model = tuple(t.float() for t in regression()), fl.flow(nn.Linear(6, 3)).build()
    trainer = fl.Trainer.setup(model, SGD(model.parameters(), lr=0.1), data, amp="bf16", quiet=True, record=False)
    twin, again = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        next(model.parameters()).zero_()
        assert not torch.equal(twin(data[0]), model(data[0])), "a copy computes with its own weights"
        torch.testing.assert_close(twin(data[0]), again(data[0]))
        assert twin(data[0]).dtype is torch.float32
    trainer.close()


def test_fp16_scales_unscales_before_clipping_and_leaves_overflows_out() -> None:
    """With a scale of a power of two nothing is rounded: the same as without it; a schedule waits for a skipped update."""
    data, model = tuple(t.float() for t in regression(48)), small().float()
    torch.manual_seed(0)
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    trainer = fl.Trainer.setup(
        model, optimizer, data, batch_size=8, amp="fp16", clip_norm=1e-2, scheduler=schedule, quiet=True, record=False,
        shuffle=False,
    )  # fmt: skip
    rates, before = [], None
    with trainer:
        for _ in trainer.epochs(1):
            for number, (x, y) in enumerate(trainer.batches()):
                if number == 2:
                    before = copy.deepcopy(model.state_dict())
                loss = F.mse_loss(trainer.model(x), y)
                trainer.step(loss * 1e38 if number == 2 else loss)
                if number == 2:
                    assert before is not None
                    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
                rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.05, 0.025, 0.025, 0.0125, 0.00625, 0.003125]
    assert trainer.global_step == 6


def test_a_schedule_moves_once_an_update() -> None:
    """12 batches in windows of 5, 5, 2: three updates an epoch; a schedule by name is as long as the training."""
    data, model = regression(48), small()
    optimizer = SGD(model.parameters(), lr=1.0)
    seen: list[float] = []

    class Rates(fl.Callback):
        def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
            assert state.total_steps == 6
            seen.append(state.learning_rates[0])

    trainer = fl.Trainer.setup(
        model, optimizer, data, batch_size=4, accumulate=5, scheduler="linear", quiet=True, callbacks=[Rates()]
    )
    with trainer:
        for _ in trainer.epochs(2):
            assert trainer.scheduler is not None
            for x, y in trainer.batches():
                trainer.step(F.mse_loss(trainer.model(x), y))
    assert seen == pytest.approx([1 - n / 6 for n in range(6)])
    assert trainer.run.folder is not None
    with fl.monitor.RunView(trainer.run.folder) as view:
        assert [p.value for p in view.series("lr")] == pytest.approx(seen)


def test_ema_follows_each_update_and_is_what_evaluations_see() -> None:
    data, model = regression(48), small()
    shadow = {k: v.clone() for k, v in model.state_dict().items()}

    class ByHand(fl.Callback):
        def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
            for key, value in state.model.state_dict().items():
                shadow[key] = 0.9 * shadow[key] + 0.1 * value

    trainer = fl.Trainer.setup(
        model, SGD(model.parameters(), lr=0.1), data, batch_size=8, accumulate=2, ema=0.9, quiet=True, record=False,
        callbacks=[ByHand()],
    )  # fmt: skip
    with trainer:
        for _ in trainer.epochs(2):
            for x, y in trainer.batches():
                trainer.step(F.mse_loss(trainer.model(x), y))
        own = copy.deepcopy(model.state_dict())
        averaged = small()
        averaged.load_state_dict(shadow)
        got = trainer.evaluate(data, lambda m, b: {"loss": F.mse_loss(m(b[0]), b[1])}, batch_size=48)
        assert got["loss"] == pytest.approx(F.mse_loss(averaged(data[0]), data[1]).item(), rel=1e-10)
        assert all(torch.equal(own[k], v) for k, v in model.state_dict().items())


def test_swa_is_the_mean_of_the_last_epochs_with_fitting_batch_norm() -> None:
    torch.manual_seed(5)
    data = (torch.randn(40, 6), torch.randn(40, 3))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Linear(8, 3))
    ends: list[dict[str, Tensor]] = []

    class Ends(fl.Callback):
        def on_epoch_end(self, state: fl.FitState, control: fl.Control) -> None:
            ends.append({k: v.clone() for k, v in state.model.state_dict().items()})

    trained_ = fl.Trainer.setup(
        model, SGD(model.parameters(), lr=0.1), data, batch_size=10, swa_epochs=3, quiet=True, callbacks=[Ends()]
    )
    with trained_:
        for _ in trained_.epochs(5):
            for x, y in trained_.batches():
                trained_.step(F.mse_loss(trained_.model(x), y))
    weight = torch.stack([e["0.weight"] for e in ends[2:]]).mean(0)
    torch.testing.assert_close(model[0].weight, weight)
    hidden = data[0] @ weight.T + torch.stack([e["0.bias"] for e in ends[2:]]).mean(0)
    torch.testing.assert_close(model[1].running_mean, hidden.mean(0), rtol=1e-4, atol=1e-5)
    assert model[1].momentum == 0.3
    assert model.training


@pytest.mark.parametrize(
    ("settings", "form", "message"),
    [
        ({"accumulate": 2}, "optimizer", r"accumulate is 2: call trainer.step\(loss\) instead of optimizer.step"),
        ({"amp": "fp16"}, "optimizer", r'amp is "fp16": call trainer.step'),
        ({"amp": "fp16"}, "backward", r"scales the loss: call trainer.step\(loss\)"),
    ],
)
def test_forms_of_the_loop_that_cannot_do_it_say_so(settings: dict[str, Any], form: str, message: str) -> None:
    with pytest.raises(fl.ConfigError, match=message):
        trained(small().float(), tuple(t.float() for t in regression()), form=form, **settings)


def test_schedules_that_do_not_fit_say_so() -> None:
    model = small()
    optimizer, other = SGD(model.parameters(), lr=0.1), Adam(small().parameters())
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(fl.ConfigError, match=r"use the callback fl.Plateau"):
        fl.Trainer.setup(model, optimizer, regression(), scheduler=plateau, quiet=True)
    with pytest.raises(fl.ConfigError, match="StepLR belongs to another optimizer"):
        fl.Trainer.setup(
            model, optimizer, regression(), scheduler=torch.optim.lr_scheduler.StepLR(other, 1), quiet=True
        )
    with pytest.raises(fl.ConfigError, match="belongs to a schedule: set training.scheduler"):
        fl.Trainer.setup(model, optimizer, regression(), warmup_steps=5, quiet=True)
    with pytest.raises(fl.ConfigError, match=r"no learning-rate schedule 'cosin'.*cosine"):
        trained(small(), regression(), scheduler="cosin")


def test_a_batch_of_nan_is_left_out_of_its_window() -> None:
    """Under "skip", the rest of the update is made as if the batch had not been there."""
    for form in ("step", "backward"):
        x, y = regression(48)
        x[8:16] = float("nan")
        model, expected = small(), small()
        keep = torch.cat([torch.arange(8), torch.arange(16, 24)])
        optimizer = SGD(expected.parameters(), lr=0.1, momentum=0.9)
        for index in (keep, torch.arange(24, 48)):
            optimizer.zero_grad()
            F.mse_loss(expected(x[index]), y[index]).backward()
            optimizer.step()
        trained(model, (x, y), 1, form=form, batch_size=8, accumulate=3, nan_policy="skip")
        same(model, expected)


@pytest.mark.parametrize("settings", [{"amp": "fp16"}, {"nan_policy": "skip"}, {"nan_policy": "skip", "accumulate": 2}])
def test_a_schedule_whose_first_update_is_left_out(settings: dict[str, Any]) -> None:
    """Which fp16's first scale often is. The schedule waits; the rate is recorded as it is."""
    data, model = tuple(t.float() for t in regression(16)), small().float()
    trainer = fl.Trainer.setup(
        model, SGD(model.parameters(), lr=0.1), data, batch_size=4, scheduler="linear", quiet=True, **settings
    )
    with trainer:
        for _ in trainer.epochs(1):
            for number, (x, y) in enumerate(trainer.batches()):
                loss = F.mse_loss(trainer.model(x), y)
                left_out = number < settings.get("accumulate", 1)
                trainer.step(loss * (1e38 if "amp" in settings else float("nan")) if left_out else loss)
    updates = 2 if "accumulate" in settings else 4
    assert trainer.global_step == updates
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * (1 - (updates - 1) / updates))
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_finite_loss_with_a_gradient_of_nan_is_left_out_too(accumulate: int) -> None:
    x, y = regression(24)
    model = small()
    trainer = fl.Trainer.setup(
        model, SGD(model.parameters(), lr=0.1), (x, y), batch_size=4, accumulate=accumulate, nan_policy="skip",
        quiet=True, record=False,
    )  # fmt: skip
    with trainer:
        for _ in trainer.epochs(1):
            for number, (inputs, targets) in enumerate(trainer.batches()):
                loss = F.mse_loss(trainer.model(inputs), targets)
                bad = (trainer.model(inputs).sum() * 0).sqrt() if number == 1 else 0.0  # 0, with a gradient of 0 / 0
                trainer.step(loss + bad)
    assert all(p.isfinite().all() for p in model.parameters())
    assert trainer.history[0]["loss"] > 0


def test_the_trained_batches_of_a_window_stay_in_the_mean() -> None:
    x, y = regression(16)
    x[:4] = float("nan")
    model = small()
    with torch.no_grad():
        expected = F.mse_loss(model(x[4:]), y[4:]).item()
    trainer = trained(model, (x, y), 1, batch_size=4, accumulate=4, nan_policy="skip")
    assert trainer.history[0]["loss"] == pytest.approx(expected, rel=1e-12)
