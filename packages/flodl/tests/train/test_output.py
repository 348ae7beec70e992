"""What settings of `output:` leave behind: a report, a dashboard, files of loggers, the profile, the flow's picture."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import flodl as fl


def train(model: nn.Module | None = None, **settings: Any) -> Path:
    torch.manual_seed(0)
    model = model or fl.flow(nn.Linear(4, 8)).also(nn.Linear(8, 8)).through(nn.Linear(8, 2)).build()
    data = (torch.randn(40, 4), torch.randn(40, 2))
    settings = {"batch_size": 4, "quiet": True, **settings}
    with fl.Trainer.setup(model, SGD(model.parameters(), lr=0.1), data, **settings) as trainer:
        for _ in trainer.epochs(2):
            for x, y in trainer.batches():
                trainer.step(F.mse_loss(trainer.model(x), y))
        folder = trainer.run.folder
    assert folder is not None
    return folder


def test_files_of_loggers_and_the_profile() -> None:
    folder = train(csv=True, tensorboard=True, profile=3)
    assert "loss" in (folder / "metrics.csv").read_text()
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert "addmm" in (folder / "operators.txt").read_text()


def test_statistics_are_metrics_of_the_run() -> None:
    with fl.monitor.RunView(train(statistics=True)) as view:
        assert {"grad_norm", "weight_norm", "update_ratio/linear.weight"} <= set(view.names())


def test_the_flow_is_drawn_and_described() -> None:
    with fl.monitor.RunView(train()) as view:
        assert view.artifact("model.svg").lstrip().startswith(("<?xml", "<svg"))
        assert "Linear(in_features=4" in view.artifact("model.txt")


def test_a_stop_metric_ends_training_and_its_patience_survives(capsys: pytest.CaptureFixture[str]) -> None:
    frozen = nn.Linear(4, 2)
    frozen.weight.requires_grad_(False)
    folder = train(frozen, stop_metric="loss", stop_delta=100.0, patience=1, quiet=False)
    assert "training ends in epoch 2, after step 20" in capsys.readouterr().err
    with fl.monitor.RunView(folder) as view:
        assert view.info().state == "finished"


def test_a_dashboard_serves_the_run_while_it_trains() -> None:
    urls: list[str] = []

    class Looks(fl.Callback):
        def on_epoch_end(self, state: fl.FitState, control: fl.Control) -> None:
            with urllib.request.urlopen(urls[0] + "api/runs", timeout=30) as answer:
                (run,) = json.load(answer)["runs"]
            assert state.folder is not None
            assert (run["id"], run["state"]) == (state.folder.name, "running")

    model = nn.Linear(4, 2)
    trainer = fl.Trainer.setup(
        model, SGD(model.parameters(), lr=0.1), (torch.randn(8, 4), torch.randn(8, 2)), serve=0, quiet=True,
        callbacks=[Looks()],
    )  # fmt: skip
    with trainer:
        for _ in trainer.epochs(2):
            assert trainer.run.dashboard is not None
            urls.append(trainer.run.dashboard.url)
            for x, y in trainer.batches():
                trainer.step(F.mse_loss(trainer.model(x), y))
