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
    *, batches: int | None = None, evaluations: int | None = None, form: str = "step", **settings: Any
) -> tuple[fl.Trainer, Last]:
    """Three epochs of 5 batches in windows of 3; the signal comes after `batches` batches, or in an evaluation."""
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
    (folder,) = Path("runs").iterdir()
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


def test_twice_and_with_the_loops_own_backward() -> None:
    whole = everything(*run(form="backward", folder="whole"))
    folder = broken_off(batches=4, form="backward")
    with pytest.raises(SystemExit):
        run(batches=4, form="backward", resume=str(folder))
    assert_same(everything(*run(form="backward", resume=str(folder))), whole)
