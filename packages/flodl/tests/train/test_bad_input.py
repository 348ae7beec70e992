"""One clear error each, before or at the first step."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import flodl as fl
from flodl.train.resuming import locate as newest

QUIET = {"quiet": True, "record": False}


def data(n: int = 12, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 4), torch.arange(n) % classes


def setup(model: nn.Module | None = None, dataset: Any = None, **settings: Any) -> fl.Trainer:
    model = model or nn.Linear(4, 3)
    dataset = data() if dataset is None else dataset
    return fl.Trainer.setup(model, SGD(model.parameters(), 0.1), dataset, **{"batch_size": 4, **QUIET, **settings})


def train(trainer: fl.Trainer) -> None:
    with trainer:
        for _ in trainer.epochs(1):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_sise": 4}, "no setting 'batch_sise'. Did you mean 'batch_size'"),
        ({"batch_size": 0}, "training.batch_size is 0; it must be at least 1"),
        ({"batch_size": 2.5}, "training.batch_size is 2.5; it must be int"),
        ({"nan_policy": "stp"}, "training.nan_policy is 'stp'. Did you mean 'stop'"),
        ({"seed": -1}, "training.seed is -1"),
        ({"epochs": True}, "training.epochs is True; it must be int or nothing"),
        ({"device": "cudda"}, "training.device is 'cudda'"),
        ({"device": "cuda:7"}, "training.device is 'cuda:7'"),
    ],
)
def test_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(fl.ConfigError, match=re.escape(message)):
        setup(**settings)


def test_data() -> None:
    with pytest.raises(fl.DataError, match="empty"):
        setup(dataset=(torch.rand(0, 4), torch.zeros(0)))
    with pytest.raises(fl.DataError, match=r"12.*11|11.*12"):
        setup(dataset=(torch.rand(12, 4), torch.zeros(11)))
    with (
        pytest.raises(fl.TrainingError, match="got no dataset"),
        fl.Trainer.setup(nn.Linear(1, 1), lambda p: SGD(p, 0.1), **QUIET) as trainer,
    ):
        next(trainer.batches())


def test_optimizers() -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(
        fl.TrainingError, match=r"none of the model's parameters: make it as SGD\(model.parameters\(\)\)"
    ):
        fl.Trainer.setup(model, SGD(nn.Linear(4, 3).parameters(), 0.1), data(), **QUIET)
    with pytest.raises(fl.TrainingError, match="learning rate of parameter group 0 is nan"):
        fl.Trainer.setup(model, SGD(model.parameters(), float("nan")), data(), **QUIET)


def test_losses() -> None:
    with setup() as trainer:
        x, y = data()
        out = trainer.model(x)
        with pytest.raises(fl.TrainingError, match=re.escape("the loss has shape (12,), not (): reduce it")):
            trainer.step(F.cross_entropy(out, y, reduction="none"))
        with pytest.raises(fl.TrainingError, match="the loss has no gradient: it does not depend on the model"):
            trainer.step(F.cross_entropy(out.detach(), y))
        with torch.no_grad(), pytest.raises(fl.TrainingError, match="under no_grad"):
            trainer.step(F.cross_entropy(trainer.model(x), y))
        with pytest.raises(fl.TrainingError, match="float, not a tensor"):
            trainer.step(F.cross_entropy(out, y).item())  # type: ignore[arg-type]
        loss = F.cross_entropy(trainer.model(x), y)
        loss.backward()
        with pytest.raises(fl.TrainingError, match="computed already"):
            trainer.step(loss)
        trainer.model.requires_grad_(False)
        with pytest.raises(fl.TrainingError, match="every parameter of the model is frozen"):
            trainer.step(F.cross_entropy(trainer.model(x), y))
        with pytest.raises(fl.TrainingError, match=re.escape("metric 'acc' has shape (12,)")):
            trainer.record(acc=out.argmax(1) == y)
        assert trainer.global_step == 0


def test_a_batch_of_one_under_batch_norm_is_refused_at_the_first_step() -> None:
    model = fl.flow(nn.Linear(4, 8)).through(nn.BatchNorm1d(8)).tag("norm").through(nn.Linear(8, 3)).build()
    with (
        setup(model, data(13)) as trainer,
        pytest.raises(
            fl.DataError, match=r"13 samples in batches of 4 leave a last batch of 1, which 'norm' \(BatchNorm1d\)"
        ),
    ):
        for _ in trainer.epochs(1):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
    assert trainer.global_step == 0
    train(setup(model, data(13), drop_last=True))
    assert not model.norm._forward_pre_hooks
    images = (torch.rand(5, 1, 4, 4), torch.arange(5) % 3)  # 16 values per channel: one image is enough
    train(setup(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3)), images))


def test_labels_out_of_range_builder() -> None:
    x, y = data()
    y[7] = 5
    builder = fl.Trainer.builder(
        lambda: nn.Linear(4, 3), lambda p: SGD(p, 0.1), lambda m, b: F.cross_entropy(m(b[0]), b[1])
    )
    handle = builder.dataset((x, y)).batch_size(12).num_epochs(1).settings(**QUIET).run()
    with pytest.raises(fl.DataError, match=r"label 5 \(batch\[1\], row \d+, item 7 of the dataset\) is outside 0..2"):
        handle.join()
    assert handle.poll().state == "failed"


def test_labels_out_of_range_setup(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = data()
    y[7] = -3
    with pytest.raises(IndexError):
        train(setup(dataset=(x, y), batch_size=2))
    err = capsys.readouterr().err
    assert re.search(r"flodl: label -3 \(batch\[1\], row [01], item 7 of the dataset\) is outside 0..2", err), err


def test_leaving_a_loop_early_accuses_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with setup(dataset=(torch.rand(12, 4), torch.arange(12))) as trainer:  # labels beyond the outputs, for another loss
        for _x, _ in trainer.batches():
            break
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b: b.num_epochs(1), "call .dataset"),
        (lambda b: b.dataset(data()), "call .num_epochs"),
        (lambda b: b.dataset(data()).num_epochs(1).settings(nope=1), "no setting 'nope'"),
    ],
)
def test_builder(make: Any, message: str) -> None:
    builder = fl.Trainer.builder(lambda: nn.Linear(4, 3), lambda p: SGD(p, 0.1), lambda m, b: m(b[0]).sum())
    with pytest.raises(fl.ConfigError, match=re.escape(message)):
        make(builder).run()


def test_builder_loss_errors_reach_join() -> None:
    builder = fl.Trainer.builder(
        lambda device: nn.Linear(4, 3, device=device), lambda p: SGD(p, 0.1), lambda m, b: m(b[0])
    )
    handle = builder.dataset(data()).num_epochs(1).settings(quiet=True).run()
    with pytest.raises(fl.TrainingError, match="not \\(\\): reduce it"):
        handle.join()
    assert handle.trainer.run.folder is not None
    with fl.monitor.RunView(handle.trainer.run.folder) as view:
        info = view.info()
    assert info.state == "failed"
    assert "reduce it" in str(info.error)


def test_a_script_that_fails_leaves_a_failed_run(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import flodl as fl, torch\n"
        "model = torch.nn.Linear(4, 3)\n"
        "trainer = fl.Trainer.setup(model, torch.optim.SGD(model.parameters(), 0.1), (torch.rand(8, 4), torch.rand(8, 3)))\n"
        "for _ in trainer.epochs(3):\n"
        "    for x, y in trainer.batches():\n"
        "        trainer.step((trainer.model(x) - y).square().mean())\n"
        "    raise KeyError('mine')\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr
    (run,) = fl.monitor.list_runs(tmp_path / "runs")
    assert run.info is not None
    assert run.info.state == "failed"
    assert "mine" in str(run.info.error)
    assert fl.checkpoint.load(newest(run.folder)).position == {"epoch": 0, "sample": 8}


def test_models_and_factories() -> None:
    flow = fl.flow(nn.Linear(4, 3))
    with pytest.raises(fl.TrainingError, match=r"the model is FlowBuilder, not a module: call .build\(\) on the flow"):
        fl.Trainer.setup(flow, lambda p: SGD(p, 0.1), data())  # type: ignore[arg-type]
    builder = fl.Trainer.builder(flow.build(), lambda p: SGD(p, 0.1), lambda m, b: m(b[0]).sum())
    with pytest.raises(fl.ConfigError, match="takes a function that makes the model, not Graph"):
        builder.dataset(data()).num_epochs(1).run()
    with pytest.raises(fl.TrainingError, match="LBFGS evaluates the loss itself"):
        fl.Trainer.setup(nn.Linear(4, 3), lambda p: torch.optim.LBFGS(p), data())


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda loss: None, "the loss is NoneType, not a tensor: does the train_fn return it?"),
        (lambda loss: (loss, 0.5), "not (Tensor, float)"),
        (lambda loss: (loss, {"loss": loss}), "the loss is recorded as 'loss'"),
        (lambda loss: (loss, {"acc": "high"}), "metric 'acc' is no number"),
    ],
)
def test_what_a_train_fn_returns(result: Any, message: str) -> None:
    builder = fl.Trainer.builder(
        lambda: nn.Linear(4, 3), lambda p: SGD(p, 0.1), lambda m, b: result(F.cross_entropy(m(b[0]), b[1]))
    )
    handle = builder.dataset(data()).num_epochs(1).settings(**QUIET).run()
    with pytest.raises(fl.TrainingError, match=re.escape(message)):
        handle.join()


def test_steps_without_backward_and_epochs_that_are_no_number() -> None:
    with setup() as trainer:
        with pytest.raises(fl.TrainingError, match="no parameter has a gradient"):
            trainer.step()
        for number in (-1, 2.5, "3"):
            with pytest.raises(fl.ConfigError, match="needs a number of at least 0"):
                next(iter(trainer.epochs(number)))  # type: ignore[arg-type]
        with pytest.raises(fl.DataError, match="batch size"):
            trainer.evaluate(data(), lambda m, b: {}, batch_size=0)


def test_a_builder_that_is_never_joined_tells_its_error(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        "import flodl as fl, torch\n"
        "fl.Trainer.builder(lambda: torch.nn.Linear(4, 3), lambda p: torch.optim.SGD(p, 0.1), lambda m, b: 1 / 0)"
        ".dataset((torch.rand(8, 4),)).num_epochs(1).settings(quiet=True).run()\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert "join() was never called" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "ignored" not in done.stderr
