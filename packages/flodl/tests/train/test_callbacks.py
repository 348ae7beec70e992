"""Callbacks: when they are called, what they see, what they may ask for; limits of a training; planned evaluations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import flodl as fl


def make(callbacks: list[fl.Callback], **settings: Any) -> fl.Trainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    data = (torch.randn(20, 4), torch.randn(20, 2))
    settings = {"batch_size": 4, "quiet": True, **settings}
    return fl.Trainer.setup(model, SGD(model.parameters(), lr=0.1), data, callbacks=callbacks, **settings)


def train(trainer: fl.Trainer, epochs: int | None = 2) -> fl.Trainer:
    with trainer:
        for _ in trainer.epochs(epochs):
            for x, y in trainer.batches():
                trainer.step(F.mse_loss(trainer.model(x), y))
    return trainer


class Diary(fl.Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.saved: list[str] = []

    def _write(self, what: str, state: fl.FitState) -> None:
        self.lines.append(f"{what} {state.epoch} {state.step} {state.sample}")

    def on_fit_start(self, state: fl.FitState, control: fl.Control) -> None:
        self._write("fit", state)

    def on_epoch_start(self, state: fl.FitState, control: fl.Control) -> None:
        self._write("epoch", state)

    def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
        assert isinstance(state.metrics["loss"], torch.Tensor)
        self._write("step", state)

    def on_eval_end(self, state: fl.FitState, control: fl.Control) -> None:
        assert set(state.metrics) == {"test_loss"}
        self._write("eval", state)

    def on_epoch_end(self, state: fl.FitState, control: fl.Control) -> None:
        assert state.metrics["loss"] > 0
        self._write("end", state)

    def on_checkpoint(self, state: fl.FitState, control: fl.Control) -> None:
        assert state.checkpoint is not None
        assert state.checkpoint.is_dir()
        self.saved.append(state.checkpoint.name)
        self._write("saved", state)

    def on_fit_end(self, state: fl.FitState, control: fl.Control) -> None:
        self._write("over", state)

    def on_exception(self, state: fl.FitState, control: fl.Control, error: BaseException) -> None:
        self.lines.append(repr(error))


def loss_of(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    return {"loss": F.mse_loss(model(batch[0]), batch[1])}


def test_the_moments_come_in_order_with_the_state_of_their_time() -> None:
    diary = Diary()
    trainer = make([diary], batch_size=10)
    trainer.plan_evaluation((torch.randn(3, 4), torch.randn(3, 2)), loss_of)
    train(trainer)
    assert diary.lines == [
        "fit 0 0 0",
        "epoch 0 0 0", "step 0 1 10", "step 0 2 20", "eval 0 2 20", "end 0 2 20",
        "epoch 1 2 0", "step 1 3 10", "step 1 4 20", "eval 1 4 20", "end 1 4 20",
        "saved 2 4 0", "over 2 4 0",
    ]  # fmt: skip


def test_an_exception_in_a_callback_is_shown_as_it_is_and_nothing_is_lost() -> None:
    class Breaks(fl.Callback):
        def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
            if state.step == 3:
                raise ZeroDivisionError("my own")

    diary = Diary()
    trainer = make([Breaks(), diary])
    with pytest.raises(ZeroDivisionError, match="my own"):
        train(trainer)
    assert diary.lines[-1] == "ZeroDivisionError('my own')"
    folder = trainer.run.folder
    assert folder is not None
    with fl.monitor.RunView(folder) as view:
        assert (view.info().state, view.info().error) == ("failed", "ZeroDivisionError: my own")
    assert train(make([], resume=str(folder))).global_step == 10


def test_what_a_callback_may_ask_for() -> None:
    class Asks(fl.Callback):
        def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
            if state.step == 2:
                control.evaluate()
            elif state.step == 3:
                control.save()
            elif state.step == 4:
                control.stop("enough")

    diary = Diary()
    trainer = make([Asks(), diary])
    trainer.plan_evaluation((torch.randn(3, 4), torch.randn(3, 2)), loss_of)
    train(trainer)
    assert [line for line in diary.lines if line.startswith("eval")] == ["eval 0 2 8"]
    assert diary.saved == ["step-00000003", "step-00000004"]
    assert trainer.run.folder is not None
    with fl.monitor.RunView(trainer.run.folder) as view:
        assert view.info().state == "finished", "an end that was decided by rule is no interruption"


def test_a_misspelt_callback_is_named() -> None:
    class Typo(fl.Callback):
        def on_step_ends(self, state: fl.FitState, control: fl.Control) -> None: ...

    with pytest.raises(fl.ConfigError, match=r"Typo.on_step_ends is never called.*on_step_end"):
        make([Typo()])
    with pytest.raises(fl.ConfigError, match="an instance of fl.Callback"):
        make([Typo])  # type: ignore[list-item]


class Counts(fl.Callback):
    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def test_states_of_callbacks_are_saved_two_of_a_class_apart(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = Counts(), Counts()
    two.steps = 100
    folder = train(make([one, two]), 1).run.folder
    again, other = Counts(), Counts()
    train(make([again, other], resume=str(folder)), 2)
    assert (again.steps, other.steps) == (10, 110)
    train(make([Counts()], resume=str(folder), quiet=False), 3)
    assert "a state of callback Counts_2, which this run does not have" in capsys.readouterr().err


def test_max_steps_ends_in_the_middle_of_an_epoch_and_the_run_goes_on_from_there() -> None:
    trainer = train(make([], max_steps=7), None)
    assert (trainer.global_step, trainer.position.epoch, trainer.position.sample) == (7, 1, 8)
    whole = train(make([]))
    went_on = train(make([], resume=str(trainer.run.folder)))
    for a, b in zip(whole.model.parameters(), went_on.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert trainer.run.folder is not None
    again = train(make([], resume=str(trainer.run.folder), max_steps=10), None)
    assert again.global_step == 10


def test_max_time_ends_training(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = train(make([], max_time=0.5, quiet=False), None)
    assert trainer.global_step > 0
    assert "max_time is 0.5 s" in capsys.readouterr().err
    assert not trainer.stopped


def test_evaluations_every_few_steps_also_on_less_than_a_batch() -> None:
    diary = Diary()
    trainer = make([diary], evaluate_steps=3)
    trainer.plan_evaluation((torch.randn(2, 4), torch.randn(2, 2)), loss_of)
    train(trainer)
    assert [line for line in diary.lines if line.startswith("eval")] == ["eval 0 3 12", "eval 1 6 4", "eval 1 9 16"]


def test_epochs_needs_an_end() -> None:
    with pytest.raises(fl.ConfigError, match="give one, or set training.epochs, max_steps or max_time"):
        next(make([]).epochs())


def test_a_failing_on_exception_leaves_the_run_failed() -> None:
    class Worse(fl.Callback):
        def on_exception(self, state: fl.FitState, control: fl.Control, error: BaseException) -> None:
            raise KeyError("worse")

    trainer = make([Worse()])
    with pytest.raises(KeyError, match="worse"), trainer:
        for _ in trainer.epochs(1):
            for _batch in trainer.batches():
                raise ZeroDivisionError("first")
    assert trainer.run.folder is not None
    with fl.monitor.RunView(trainer.run.folder) as view:
        assert (view.info().state, view.info().error) == ("failed", "ZeroDivisionError: first")


def test_settings_without_an_effect_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make([], quiet=False, evaluate_steps=3, stop_metric="test_los", keep_best="los")
    trainer.plan_evaluation((torch.randn(3, 4), torch.randn(3, 2)), loss_of)
    with pytest.warns(UserWarning, match="no metric 'test_los' after an evaluation. Did you mean 'test_loss'"):
        train(trainer)
    told = capsys.readouterr().err
    assert "keep_best is 'los', which was never measured" in told
    train(make([], quiet=False, evaluate_steps=3))
    assert "nothing is evaluated, because trainer.plan_evaluation(...) was not called" in capsys.readouterr().err
    with pytest.raises(fl.ConfigError, match="swa_epochs averages the last epochs"):
        train(make([], swa_epochs=2, max_steps=4), None)
    with pytest.raises(fl.ConfigError, match="output.serve needs output.record, which is off"):
        make([], serve=3000, record=False)


def test_an_epoch_that_the_loop_leaves_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make([], quiet=False)
    with trainer:
        for _ in trainer.epochs(1):
            for x, y in trainer.batches():
                trainer.step(F.mse_loss(trainer.model(x), y))
                break
    assert "epoch 1 was left after 4 samples" in capsys.readouterr().err
