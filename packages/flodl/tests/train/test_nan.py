"""A loss that is not finite: counted, shown, and by policy acted on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import flodl as fl
from flodl.train.resuming import locate as newest


def run(policy: str, **settings: Any) -> fl.Trainer:
    """One epoch of 4 steps; the loss of the samples 2 and 3 is NaN."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    x = torch.tensor([[1.0], [2.0], [torch.nan], [4.0]])
    settings = {"batch_size": 1, "shuffle": False, "nan_policy": policy, **settings}
    trainer = fl.Trainer.setup(model, SGD(model.parameters(), 0.01), (x,), **settings)
    with trainer:
        for _ in trainer.epochs(1):
            for (x,) in trainer.batches():
                trainer.step(trainer.model(x).square().mean())
    return trainer


def test_warn_counts_says_so_once_and_trains_on(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = run("warn")
    out, err = capsys.readouterr()
    assert "nan=2" in out  # the NaN input, and the NaN weights after it
    assert err.count("a loss is NaN or infinite") == 1
    assert torch.isnan(trainer.model.weight).all()
    assert trainer.history[0]["loss"] > 0  # the mean of the finite ones
    assert trainer.run.folder is not None
    with fl.monitor.RunView(trainer.run.folder) as view:
        assert view.counts("loss").nan == 2
        assert [e.kind for e in view.events() if e.kind != "steps"] == ["warning", "checkpoint"]


def test_skip_leaves_the_update_out(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = run("skip")
    assert "nan=1" in capsys.readouterr().out
    torch.manual_seed(0)
    reference = nn.Linear(1, 1)
    optimizer = SGD(reference.parameters(), 0.01)
    for value in (1.0, 2.0, 4.0):
        optimizer.zero_grad()
        reference(torch.tensor([[value]])).square().mean().backward()
        optimizer.step()
    assert torch.equal(trainer.model.weight, reference.weight)
    assert trainer.position.epoch == 1


def test_stop_ends_before_the_update_and_saves_the_good_weights() -> None:
    with pytest.raises(
        fl.TrainingError, match=r"the loss is nan at epoch 1, step 3 .*the weights before it are in (.*)"
    ) as caught:
        run("stop", quiet=True)
    (listed,) = fl.monitor.list_runs("runs")
    assert listed.info is not None
    assert listed.info.state == "failed"
    assert listed.info.error == str(caught.value)
    saved = fl.checkpoint.load(newest(listed.folder))
    assert saved.model is not None
    weight: Tensor = saved.model["weight"]
    assert torch.isfinite(weight).all()
    assert saved.position == {"epoch": 0, "sample": 2}


def lossless(policy: str, form: str) -> fl.Trainer:
    """As `run`, in a loop that does not tell the trainer its loss."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    x = torch.tensor([[1.0], [2.0], [torch.nan], [4.0]])
    trainer = fl.Trainer.setup(
        model, SGD(model.parameters(), 0.01), (x,), batch_size=1, shuffle=False, nan_policy=policy
    )
    with trainer:
        for _ in trainer.epochs(1):
            for (x,) in trainer.batches():
                trainer.model(x).square().mean().backward()
                if form == "step()":
                    trainer.step()
                else:
                    trainer.optimizer.step()
                    trainer.optimizer.zero_grad()
    return trainer


@pytest.mark.parametrize("form", ["step()", "optimizer.step()"])
def test_without_the_loss_the_gradients_are_looked_at(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = lossless("skip", form)
    out, err = capsys.readouterr()
    assert torch.equal(trainer.model.weight, run("skip", quiet=True).model.weight)
    assert "nan=1" in out
    assert "a loss is NaN or infinite at step 3" in err
    assert trainer.global_step == 4
    with pytest.raises(fl.TrainingError, match="a gradient is NaN or infinite at epoch 1, step 3"):
        lossless("stop", form)
    capsys.readouterr()
    trainer = lossless("warn", form)
    assert "weights are NaN or infinite at step 4" in capsys.readouterr().err
