"""Training that goes on after an end in the same program, and what is said of things that are done twice."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

import flodl as fl


def setup(**settings: Any) -> fl.Trainer:
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    settings = {"batch_size": 64, "step": "eager", "quiet": True, **settings}
    return fl.Trainer.setup(model, SGD(model.parameters(), lr=0.1), fl.data.Digits("train"), **settings)


def train(trainer: fl.Trainer, epochs: int, interrupt_at: int | None = None) -> None:
    for _ in trainer.epochs(epochs):
        for x, y in trainer.batches():
            trainer.step(F.cross_entropy(trainer.model(x), y))
            if trainer.global_step == interrupt_at:
                os.kill(os.getpid(), signal.SIGINT)


def record(trainer: fl.Trainer) -> tuple[str, int | None, list[int], list[int]]:
    assert trainer.run.folder is not None
    with fl.monitor.RunView(trainer.run.folder) as view:
        steps = [p.step for p in view.series("loss")]
        return view.info().state, view.info().total_epochs, steps, [row.number for row in view.epochs()]


def test_after_ctrl_c_at_a_prompt_the_next_call_of_epochs_goes_on_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    unbroken = setup(record=False)
    train(unbroken, 3)
    trainer = setup()
    with pytest.raises(KeyboardInterrupt):
        train(trainer, 3, interrupt_at=30)
    folder = trainer.run.folder
    assert record(trainer)[0] == "stopped"
    states = []
    for _ in trainer.epochs(3):
        states.append(record(trainer)[0])
        for x, y in trainer.batches():
            trainer.step(F.cross_entropy(trainer.model(x), y))
    assert set(states) == {"running"}
    assert trainer.run.folder == folder
    assert record(trainer) == ("finished", 3, list(range(1, 70)), [0, 1, 2])
    trainer.close()
    torch.testing.assert_close(trainer.model.state_dict(), unbroken.model.state_dict(), rtol=0, atol=0)
    unbroken.close()


def test_another_call_of_epochs_makes_a_finished_run_longer() -> None:
    with setup() as trainer:
        train(trainer, 1)
        assert record(trainer)[:2] == ("finished", 1)
        train(trainer, 2)
        assert record(trainer) == ("finished", 2, list(range(1, 47)), [0, 1])


def test_a_closed_trainer_trains_nothing() -> None:
    with setup(record=False) as trainer:
        train(trainer, 1)
    before = copy.deepcopy(trainer.model.state_dict())
    loss = F.cross_entropy(trainer.model(torch.ones(1, 64)), torch.tensor([0]))
    for step in (
        lambda: trainer.step(loss),
        lambda: trainer.train_step(lambda model, batch: loss, None),
        lambda: next(trainer.epochs(2)),
        lambda: next(trainer.batches()),
    ):
        with pytest.raises(fl.TrainingError, match="this trainer is closed"):
            step()
    torch.testing.assert_close(trainer.model.state_dict(), before, rtol=0, atol=0)
    assert trainer.evaluate(fl.data.Digits("test"), lambda m, b: {"loss": F.cross_entropy(m(b[0]), b[1])})


def test_a_schedule_that_the_loop_steps_as_well_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(64, 10)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 100)
    trainer = fl.Trainer.setup(
        model, optimizer, fl.data.Digits("train"), batch_size=64, step="eager", scheduler=scheduler, record=False
    )
    with trainer:
        for epoch in trainer.epochs(3):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
            if epoch == 0:
                scheduler.step()
    told = capsys.readouterr().err
    assert told.count("something else moved the StepLR from 23 to 24; the trainer steps it once an update") == 1


def test_a_resumed_run_under_auto_says_how_to_go_on_to_the_bit(capsys: pytest.CaptureFixture[str]) -> None:
    with setup() as first:
        train(first, 1)
    with setup(resume=str(first.run.folder), step="auto", quiet=False) as second:
        train(second, 2)
    assert 'taken by eager, this run\'s are by what is fastest: they agree to rounding (step="eager": to the bit)' in (
        capsys.readouterr().err
    )


def test_a_watched_model_can_be_copied_and_pickled() -> None:
    model = nn.Linear(64, 10)
    with fl.Trainer.setup(model, SGD(model.parameters(), lr=0.1), step="eager", quiet=True, record=False) as trainer:
        for _ in range(2):
            trainer.step(trainer.model(torch.ones(3, 64)).sum())
            twin = copy.deepcopy(trainer.model)
        assert twin(torch.ones(1, 64)).shape == (1, 10)
        pickle.loads(pickle.dumps(model))(torch.ones(1, 64))
        assert trainer._stepper.samples == 3  # of the model's batch, not of its copies'
