"""Early stopping and plateaus against torch's ReduceLROnPlateau, numpy's line fit, and a resumed twin."""

from __future__ import annotations

import math
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

import flodl as fl
from flodl.train.schedule import make_schedule
from flodl.train.stopping import EarlyStopping, Plateau


def moment(step: int, optimizer: SGD | None = None, **metrics: float) -> fl.FitState:
    optimizer = optimizer or sgd()
    return fl.FitState(
        epoch=0, step=step, sample=0, total_epochs=None, total_steps=None, metrics=metrics, learning_rates=(),
        model=nn.Identity(), optimizer=optimizer, folder=None,
    )  # fmt: skip


def sgd(*rates: float) -> SGD:
    return SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": r} for r in rates or (1.0,)], lr=1.0)


def stopped_at(callback: EarlyStopping, values: list[float], start: int = 0) -> int | None:
    for step, value in enumerate(values[start:], start):
        control = fl.Control()
        callback.on_eval_end(moment(step, test_loss=value), control)
        if control.stop_reason:
            return step
    return None


def noisy(seed: int) -> list[float]:
    rng = random.Random(seed)
    values = [math.exp(-i / 10) + rng.gauss(0, 0.1) for i in range(60)]
    values[5] = values[20] = math.nan
    return values


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", range(6))
def test_the_count_is_the_one_of_torchs_plateau(mode: Any, seed: int) -> None:
    values = noisy(seed) if mode == "min" else [-v for v in noisy(seed)]
    theirs = ReduceLROnPlateau(sgd(), mode=mode, patience=10**6, threshold=0.05, threshold_mode="abs")
    ours = EarlyStopping("test_loss", mode=mode, patience=4, delta=0.05)
    expected = None
    for step, value in enumerate(values):
        theirs.step(value)
        if theirs.num_bad_epochs >= 4:
            expected = step
            break
    assert expected is not None
    assert stopped_at(ours, values) == expected
    assert ours.best == theirs.best
    assert ours.best_step == expected - 4


def test_nan_and_infinity_are_never_better() -> None:
    assert stopped_at(EarlyStopping("test_loss", patience=3), [math.nan] * 9) == 2
    assert stopped_at(EarlyStopping("test_loss", patience=3), [-math.inf] * 9) == 2
    assert stopped_at(EarlyStopping("test_loss", patience=3, mode="max"), [1.0, math.inf, math.nan, 0.5]) == 3


def test_the_reason_is_said() -> None:
    control = fl.Control()
    stopping = EarlyStopping("test_loss", patience=1)
    for step, value in enumerate((0.25, 0.5)):
        stopping.on_eval_end(moment(step, test_loss=value), control)
    assert control.stop_reason == "test_loss did not improve for 1 measurements (best 0.25 at step 0)"


@pytest.mark.parametrize("stop", range(0, 12, 3))
def test_patience_survives_a_resume(stop: int) -> None:
    values = [3.0, 2.0, 2.5, 2.4, 1.9, math.nan, 2.0, 2.0, 2.0, 1.0, 0.9, 0.8]
    whole = stopped_at(EarlyStopping("test_loss", patience=4), values)
    first = EarlyStopping("test_loss", patience=4)
    found = stopped_at(first, values[:stop])
    if found is None:
        resumed = EarlyStopping("test_loss", patience=4)
        resumed.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        found = stopped_at(resumed, values, stop)
    assert found == whole == 8


def test_an_epochs_mean_is_watched_where_no_evaluation_has_the_metric_and_a_value_counts_once() -> None:
    stopping, control = EarlyStopping("loss", patience=9), fl.Control()
    for epoch in range(4):
        stopping.on_epoch_end(moment(epoch, loss=1.0), control)
    assert stopping.waited == 3
    stopping = EarlyStopping("test_loss", patience=9)
    for epoch in range(4):
        stopping.on_eval_end(moment(epoch, test_loss=1.0), control)
        stopping.on_epoch_end(moment(epoch, loss=0.1, test_loss=1.0), control)
    assert stopping.waited == 3


def test_a_metric_that_is_never_measured_is_told_once() -> None:
    stopping, control = EarlyStopping("test_los"), fl.Control()
    stopping.on_epoch_end(moment(1, loss=1.0), control)  # nothing was evaluated yet
    stopping.on_eval_end(moment(2, test_loss=1.0), control)
    with pytest.warns(UserWarning, match="no metric 'test_los' after an evaluation. Did you mean 'test_loss'"):
        stopping.on_epoch_end(moment(2, loss=1.0, test_loss=1.0), control)
    stopping.on_epoch_end(moment(3, loss=1.0, test_loss=1.0), control)
    assert control.stop_reason is None


def reductions(plateau: Plateau, values: list[float], optimizer: SGD) -> list[int]:
    steps = []
    for step, value in enumerate(values):
        before = plateau.reductions
        plateau.on_eval_end(moment(step, optimizer, test_loss=value), fl.Control())
        if plateau.reductions > before:
            steps.append(step)
    return steps


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", range(4))
def test_the_trend_is_the_slope_of_numpys_fitted_line(mode: Any, seed: int) -> None:
    values = [v for v in noisy(seed) if not math.isnan(v)]
    expected, window = [], []
    for step, value in enumerate(values):
        window.append(value)
        if len(window) >= 6 and not np.polyfit(range(6), window[-6:], 1)[0] < -0.01:
            expected.append(step)
            window = []
    optimizer = sgd(1.0, 0.25)
    plateau = Plateau("test_loss", factor=0.5, patience=6, mode=mode, delta=0.01)
    assert reductions(plateau, values if mode == "min" else [-v for v in values], optimizer) == expected
    assert len(expected) > 3
    assert [g["lr"] for g in optimizer.param_groups] == [0.5 ** len(expected), 0.25 * 0.5 ** len(expected)]


def test_noise_with_a_lucky_value_is_no_plateau_while_the_trend_falls() -> None:
    values = [10.0, 7.0, 9.0, 8.5, 8.0, 7.5, 7.0, 6.5]  # five in a row are not better than the 7
    assert reductions(Plateau("test_loss", patience=6), values, sgd()) == []
    assert reductions(Plateau("test_loss", patience=3), [3.0, 2.0, math.nan, 1.0, 0.5, 0.2], sgd()) == [2]


def test_the_rate_stays_at_its_least_and_tensors_are_changed_in_place() -> None:
    rate = torch.tensor(1.0)
    optimizer = sgd(0.5, 0.01)
    optimizer.param_groups[0]["lr"] = rate
    plateau = Plateau("test_loss", factor=0.25, patience=2, min_lr=0.1)
    assert reductions(plateau, [1.0] * 10, optimizer) == [1, 3]
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.1)
    assert optimizer.param_groups[1]["lr"] == 0.01  # was below it already


def test_a_schedule_goes_on_from_the_lower_rate() -> None:
    optimizer = sgd(1.0)
    scheduler = make_schedule("linear", optimizer, total_steps=10)
    reductions(Plateau("test_loss", patience=2), [1.0, 1.0], optimizer)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5 * 0.9


@pytest.mark.parametrize("stop", range(1, 9, 2))
def test_a_plateau_survives_a_resume(stop: int) -> None:
    values = [5.0, 4.0, 4.0, 4.1, 3.0, 3.0, 3.1, 3.0, 2.0, 2.0]
    whole, halves = sgd(), sgd()
    expected = reductions(Plateau("test_loss", patience=3), values, whole)
    first, second = Plateau("test_loss", patience=3), Plateau("test_loss", patience=3)
    found = reductions(first, values[:stop], halves)
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    assert found + [stop + s for s in reductions(second, values[stop:], halves)] == expected
    assert second.reductions == len(expected) > 1
    assert whole.param_groups[0]["lr"] == halves.param_groups[0]["lr"]


@pytest.mark.parametrize("stop", [4, 6, 8])
@pytest.mark.parametrize("scheduler", [None, "cosine"])
def test_a_trainer_that_is_resumed_has_the_rates_of_one_that_is_not(scheduler: str | None, stop: int) -> None:
    def train(folder: str, end: int | None, resume: str | None = None) -> tuple[dict[int, float], str]:
        model = nn.Linear(2, 1)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        optimizer = SGD(model.parameters(), lr=0.5)
        plateau = Plateau("test_flat", patience=2)
        data = (torch.ones(8, 2), torch.ones(8, 1))
        settings = {"batch_size": 4, "quiet": True, "folder": folder, "resume": resume, "scheduler": scheduler}
        rates = {}
        with fl.Trainer.setup(model, optimizer, data, callbacks=[plateau], **settings) as trainer:
            for _ in trainer.epochs(6):
                for x, y in trainer.batches():
                    rates[trainer.global_step] = optimizer.param_groups[0]["lr"]
                    trainer.step(nn.functional.mse_loss(model(x), y))
                trainer.evaluate(data, lambda m, b: {"flat": 1.0})
                if trainer.global_step == end:
                    trainer.stop()
            # the last evaluation is after the end of the cosine, where the rate is 0
            assert plateau.reductions == ((2 if scheduler else 3) if end is None else end // 4)
            return rates, str(trainer.run.folder)

    whole, _ = train("whole", None)
    first, place = train("halves", stop)
    second, _ = train("halves", None, place)
    assert {**first, **second} == whole
    assert len(whole) == 12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyStopping("a", mode="mn"), "mode is 'mn'. Did you mean 'min'"),  # type: ignore[arg-type]
        (lambda: EarlyStopping("a", patience=0), "patience is 0; it must be at least 1"),
        (lambda: EarlyStopping("a", delta=-1.0), "delta is -1"),
        (lambda: EarlyStopping("a", delta=math.nan), "delta is nan"),
        (lambda: Plateau("a", factor=1.0), "factor is 1.0; it must be between 0 and 1"),
        (lambda: Plateau("a", patience=1), "a trend has at least 2 measurements"),
    ],
)
def test_wrong_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(fl.ConfigError) as error:
        make()
    assert message in str(error.value)
