"""The profiler: which steps are in the trace, what the table counts, what is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import flodl as fl
from flodl.train.profiling import Profiler


def steps_in(trace: Path) -> list[str]:
    events = json.loads(trace.read_text())["traceEvents"]
    return sorted(e["name"] for e in events if e.get("cat") == "user_annotation" and "ProfilerStep" in e["name"])


def calls(table: str, operator: str) -> int:
    (row,) = [line.split() for line in table.splitlines() if line.split()[:1] == [operator]]
    return int(row[-1])


def test_the_steps_after_the_warm_up_are_in_the_trace(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with Profiler(3, warmup=2, folder=tmp_path / "made", rows=100) as profiler:
        for step in range(10):
            model(torch.zeros(1, 4))
            profiler.step()
            assert (profiler.trace is not None) == (step >= 5)  # 2 of warm-up, 1 of the profiler's own, 3
    assert profiler.trace == tmp_path / "made" / "trace.json"
    assert steps_in(profiler.trace) == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]
    assert profiler.table is not None
    assert calls(profiler.table, "aten::addmm") == 3 * 2
    assert (tmp_path / "made" / "operators.txt").read_text() == profiler.table
    assert sorted(p.name for p in (tmp_path / "made").iterdir()) == ["operators.txt", "trace.json"]
    assert not torch.autograd._profiler_enabled()
    before = profiler.trace.read_bytes()
    with profiler:  # once is enough
        profiler.step()
    assert profiler.trace.read_bytes() == before


def test_training_that_ends_early_writes_what_there_is(tmp_path: Path) -> None:
    def body() -> None:
        with profiler:
            for _ in range(3):
                torch.zeros(2) + 1
                profiler.step()
            raise KeyError

    profiler = Profiler(5, warmup=0, folder=tmp_path)
    with pytest.raises(KeyError):
        body()
    assert profiler.trace is not None
    assert steps_in(profiler.trace)[:2] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert not torch.autograd._profiler_enabled()
    short = Profiler(5, warmup=9, folder=tmp_path / "short")
    with short:
        short.step()
    assert short.trace is None
    assert not (tmp_path / "short").exists()


def test_a_trainer_profiles_its_steps_into_the_runs_folder() -> None:
    model = nn.Linear(4, 1)
    profiler = Profiler(4, warmup=1)
    data = (torch.zeros(80, 4), torch.zeros(80, 1))
    trainer = fl.Trainer.setup(
        model, SGD(model.parameters(), lr=0.1), data, batch_size=8, quiet=True, callbacks=[profiler]
    )
    with trainer:
        for _ in trainer.epochs(2):
            for x, y in trainer.batches():
                trainer.step(F.mse_loss(trainer.model(x), y))
        assert profiler.trace == trainer.run.folder / "trace.json"  # type: ignore[operator]
    assert len(steps_in(profiler.trace)) == 4
    assert calls(profiler.table or "", "aten::addmm") == 4


def test_what_cannot_be_written_is_told_and_the_profiler_is_off(tmp_path: Path) -> None:
    (tmp_path / "trace.json").mkdir()
    (tmp_path / "trace.json" / "in the way").touch()
    profiler = Profiler(1, warmup=0, folder=tmp_path)
    with pytest.raises(fl.StoreError, match="cannot write the profile into"), profiler:
        for _ in range(3):
            profiler.step()
    assert not torch.autograd._profiler_enabled()
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
    with pytest.raises(fl.ConfigError, match="steps is 0; it must be at least 1"):
        Profiler(0)
    with pytest.raises(fl.ConfigError, match="no folder for the profile"):
        Profiler().start()
