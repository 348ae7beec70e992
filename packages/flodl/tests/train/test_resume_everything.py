"""Exact resume with all that a training has: windows, schedule, averages, callbacks, evaluations that draw numbers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import flodl as fl


class Last(fl.Callback):
    """Remembers the losses, as a callback with a state does."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
        self.losses.append(float(state.metrics.get("loss", state.metrics.get("own"))))

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = list(state["losses"])


def noisy(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """An evaluation that draws numbers, such as one with sampling in it."""
    return {"loss": F.cross_entropy(model(batch[0] + 0.1 * torch.randn_like(batch[0])), batch[1])}


def run(
    *,
    batches: int | None = None,
    evaluations: int | None = None,
    form: str = "step",
    aside: bool = False,
    **settings: Any,
) -> tuple[fl.Trainer, Last]:
    """Three epochs of 5 batches in windows of 3; the signal comes after `batches` batches, or in an evaluation.

    aside: the loop evaluates after each batch by itself.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4))
    data = fl.data.Tensors(torch.randn(38, 8), torch.randint(4, (38,)))
    test = fl.data.Tensors(torch.randn(10, 8), torch.randint(4, (10,)))
    last = Last()
    settings = {
        "batch_size": 8, "accumulate": 3, "clip_norm": 1.0, "scheduler": "cosine", "warmup_steps": 2, "ema": 0.8,
        "swa_epochs": 2, "evaluate_steps": 2, "step": "eager", "quiet": True, **settings,
    }  # fmt: skip
    trainer = fl.Trainer.setup(model, AdamW(model.parameters(), lr=0.05), data, callbacks=[last], **settings)
    seen = 0

    def evaluate(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        nonlocal evaluations
        if evaluations is not None:
            evaluations -= 1
            if evaluations == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return noisy(model, batch)

    trainer.plan_evaluation(test, evaluate, batch_size=4)
    with trainer:
        for _ in trainer.epochs(3):
            for x, y in trainer.batches():
                loss = F.cross_entropy(trainer.model(x), y)
                seen += 1
                if seen == batches:
                    os.kill(os.getpid(), signal.SIGTERM)
                if form == "step":
                    trainer.step(loss)
                else:
                    loss.backward()
                    trainer.step(own=loss.detach())
                if aside:
                    trainer.evaluate(test, noisy, name="aside", batch_size=4)
    return trainer, last


def everything(trainer: fl.Trainer, last: Last) -> dict[str, Any]:
    update = trainer._fit.update
    assert update.rule.ema is not None
    assert update.swa is not None
    assert trainer.scheduler is not None
    assert trainer.run.folder is not None
    with fl.monitor.RunView(trainer.run.folder) as view:
        curves = {name: [(p.step, p.value) for p in view.series(name)] for name in view.names()}
        epochs = [(e.number, e.step, dict(e.metrics)) for e in view.epochs()]
    return {
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "ema": update.rule.ema.state_dict(),
        "swa": update.swa.state_dict(),
        "schedule": trainer.scheduler.state_dict(),
        "losses": last.losses,
        "curves": curves,
        "epochs": epochs,
        "rng": torch.get_rng_state(),
        "step": trainer.global_step,
    }


def assert_same(a: Any, b: Any, place: str = "") -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys(), place
        for key in a:
            assert_same(a[key], b[key], f"{place}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), place
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            assert_same(one, other, f"{place}[{number}]")
    elif isinstance(a, Tensor):
        assert torch.equal(a, b), place
    else:
        assert a == b, place


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("unbroken")
    return everything(*run(folder=str(folder)))


def broken_off(**how: Any) -> Path:
    with pytest.raises(SystemExit) as ended:
        run(**how)
    assert ended.value.code == 128 + signal.SIGTERM
    (folder,) = Path(how.get("folder", "runs")).iterdir()
    return folder


@pytest.mark.parametrize("batches", range(1, 15))
def test_a_signal_after_any_batch_also_inside_a_window(batches: int, unbroken: dict[str, Any]) -> None:
    folder = broken_off(batches=batches)
    torch.rand(50)
    assert_same(everything(*run(resume=str(folder))), unbroken)


@pytest.mark.parametrize("evaluations", range(1, 10))
def test_a_signal_in_an_evaluation(evaluations: int, unbroken: dict[str, Any]) -> None:
    folder = broken_off(evaluations=evaluations)
    torch.rand(50)
    assert_same(everything(*run(resume=str(folder))), unbroken)


def test_a_signal_in_the_epochs_evaluation_after_one_that_the_loop_made_itself() -> None:
    how: dict[str, Any] = {"aside": True, "evaluate_steps": None, "accumulate": 1}
    whole = everything(*run(folder="whole", **how))
    folder = broken_off(evaluations=1, **how)
    assert_same(everything(*run(resume=str(folder), **how)), whole)


def test_twice_and_with_the_loops_own_backward() -> None:
    whole = everything(*run(form="backward", folder="whole"))
    folder = broken_off(batches=4, form="backward")
    with pytest.raises(SystemExit):
        run(batches=4, form="backward", resume=str(folder))
    assert_same(everything(*run(form="backward", resume=str(folder))), whole)


class Saves(fl.Callback):
    """Asks for a checkpoint at one moment of one step, and counts the evaluations that it is told of."""

    def __init__(self, moment: str, step: int) -> None:
        self.moment, self.step, self.evaluations = moment, step, 0

    def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
        if self.moment == "on_step_end" and state.step == self.step:
            control.save()

    def on_eval_end(self, state: fl.FitState, control: fl.Control) -> None:
        self.evaluations += 1
        if self.moment == "on_eval_end" and state.step == self.step:
            control.save()

    def state_dict(self) -> dict[str, Any]:
        return {"evaluations": self.evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.evaluations = state["evaluations"]


def watched(saves: Saves, *, kill_in: int | None = None, **settings: Any) -> tuple[fl.Trainer, list[float]]:
    """Two evaluations, which draw numbers, every 4 steps or at each epoch's end; SIGTERM in the `kill_in`-th one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4))
    data = fl.data.Tensors(torch.randn(40, 8), torch.randint(4, (40,)))
    settings = {"batch_size": 8, "step": "eager", "quiet": True, "keep_last": 50, **settings}
    trainer = fl.Trainer.setup(model, AdamW(model.parameters(), lr=0.05), data, callbacks=[saves], **settings)
    made = 0

    def evaluate(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        nonlocal made
        made += 1
        if made == kill_in:
            os.kill(os.getpid(), signal.SIGTERM)
        return noisy(model, batch)

    for name in ("valid", "test"):
        trainer.plan_evaluation(data, evaluate, name=name, batch_size=40)
    with trainer:
        for _ in trainer.epochs(4):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
    assert trainer.run.folder is not None
    with fl.monitor.RunView(trainer.run.folder) as view:
        points = [p.value for name in ("loss", "valid_loss", "test_loss") for p in view.series(name)]
        points += [value for epoch in view.epochs() for value in epoch.metrics.values()]
    return trainer, [*points, *(p.sum().item() for p in model.parameters())]


@pytest.mark.parametrize("every", [{"evaluate_steps": 4}, {}], ids=["every 4 steps", "each epoch"])
@pytest.mark.parametrize("moment", ["on_step_end", "on_eval_end"])
def test_what_a_callback_saved_beside_an_evaluation_goes_on_to_the_same_bits(
    moment: str, every: dict[str, int]
) -> None:
    saves = Saves(moment, step=4 if every else 5)
    whole, expected = watched(saves, **every)
    (saved,) = Path(whole.run.folder or "").glob(f"checkpoints/step-{saves.step:08}")
    again = Saves("never", 0)
    _, got = watched(again, resume=str(saved), **every)
    assert got == expected
    assert again.evaluations == saves.evaluations


@pytest.mark.parametrize("every", [{"evaluate_steps": 4}, {}], ids=["every 4 steps", "each epoch"])
@pytest.mark.parametrize("kill_in", [1, 2, 3, 4])
def test_a_callback_is_told_of_each_of_two_evaluations_once(kill_in: int, every: dict[str, int]) -> None:
    saves = Saves("never", 0)
    _, expected = watched(saves, folder="whole", **every)
    with pytest.raises(SystemExit):
        watched(Saves("never", 0), kill_in=kill_in, **every)
    (folder,) = Path("runs").iterdir()
    again = Saves("never", 0)
    _, got = watched(again, resume=str(folder), **every)
    assert got == expected
    assert again.evaluations == saves.evaluations


def test_settings_that_a_resume_changes_are_told_and_mean_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    plain = {"accumulate": 1, "scheduler": None, "warmup_steps": 0, "ema": None, "swa_epochs": None}
    first, _ = run(max_steps=6, **plain)
    second, _ = run(resume=str(first.run.folder), max_steps=7, **{**plain, "ema": 0.999, "scheduler": "linear"})
    told = capsys.readouterr().err
    assert "the checkpoint has no ema: the average begins with the weights in it" in told
    assert "the checkpoint's schedule is None, this run's is linear" in told
    ema = second._fit.update.rule.ema
    assert ema is not None
    live = second.model.state_dict()
    for name, average in ema.shadow.items():
        if name in live:
            assert (average - live[name]).abs().max() < 0.2, "the average of initial weights would be far away"
    # step 7 of 7, at update 6 of the schedule: 1 - 6/7 of the rate, then its end
    assert second.optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)
    folder = broken_off(batches=2, folder="windows")
    with pytest.raises(fl.ConfigError, match="inside an update of 3 batches, this run has accumulate 1"):
        run(resume=str(folder), accumulate=1)


def test_a_second_call_of_epochs_makes_the_schedule_longer() -> None:
    model = nn.Linear(2, 2)
    data = (torch.randn(8, 2), torch.randn(8, 2))
    trainer = fl.Trainer.setup(
        model, AdamW(model.parameters(), lr=1.0), data, batch_size=2, scheduler="linear", quiet=True, record=False
    )
    rates = []
    with trainer:
        for epochs in (1, 2):
            for _ in trainer.epochs(epochs):
                for x, y in trainer.batches():
                    rates.append(trainer.optimizer.param_groups[0]["lr"])
                    trainer.step(F.mse_loss(trainer.model(x), y))
    assert rates == pytest.approx([1, 0.75, 0.5, 0.25, 0.5, 0.375, 0.25, 0.125])


def test_a_signal_while_training_ends_is_obeyed_and_forgotten() -> None:
    class Ends(fl.Callback):
        def on_fit_end(self, state: fl.FitState, control: fl.Control) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    model = nn.Linear(2, 2)
    data = (torch.randn(8, 2), torch.randn(8, 2))
    trainer = fl.Trainer.setup(model, AdamW(model.parameters()), data, batch_size=2, quiet=True, callbacks=[Ends()])
    with trainer, pytest.raises(SystemExit) as ended:
        for _ in trainer.epochs(1):
            for x, y in trainer.batches():
                trainer.step(F.mse_loss(trainer.model(x), y))
    assert ended.value.code == 128 + signal.SIGTERM
    assert trainer.run.folder is not None
    with fl.monitor.RunView(trainer.run.folder) as view:
        assert view.info().state == "finished"
    assert trainer.interruption.signal == 0
