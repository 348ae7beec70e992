"""Which checkpoint is gone on from: of a run the newest whole one, of a folder the newest run of this program."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flodl as fl
from flodl import CheckpointError, ConfigError, RunConfig, Trainer
from flodl.train.resuming import find_run, locate, program_of, written_by

DATA = (torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3)


def setup(config: RunConfig | None = None, **settings: Any) -> Trainer:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))
    settings = {"quiet": True, "batch_size": 8, **settings}
    return fl.Trainer.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01), DATA, config=config, **settings)


def train(trainer: Trainer, epochs: int, stop_at: int | None = None) -> Path:
    with trainer:
        for _ in trainer.epochs(epochs):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
                if trainer._fit.keeper._saver:
                    trainer._fit.keeper._saver.wait()  # else a newer one may take the place of one that waits
                if trainer.global_step == stop_at:
                    trainer.stop()
    assert trainer.run.folder is not None
    return trainer.run.folder


def checkpoints(run: Path) -> list[Path]:
    return sorted(p for p in (run / "checkpoints").iterdir() if p.name.startswith("step-"))


def numbered(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """As in a new process."""
    monkeypatch.setattr("flodl.train.trainer._numbers", iter(numbers))


def test_a_run_gives_its_newest_whole_checkpoint_and_names_the_others(tmp_path: Path) -> None:
    run = train(setup(save_steps=4, keep_last=3), 3)
    *_, second, last = checkpoints(run)
    assert locate(run) == locate(run / "checkpoints") == locate(last) == last
    content = bytearray((last / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (last / "model.safetensors").write_bytes(content)
    said: list[str] = []
    assert locate(run, said.append) == second
    assert len(said) == 1
    assert "model.safetensors is not what was written" in said[0]
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match=r"There is no complete checkpoint in .*checkpoints/step-\.\.\."):
        locate(run)


def test_after_damage_of_the_newest_one_training_goes_on_from_the_one_before_to_the_same_bits() -> None:
    whole = setup(save_steps=3)
    train(whole, 3)
    broken = setup(save_steps=3)
    run = train(broken, 3, stop_at=11)
    before = checkpoints(run)[-2]
    (checkpoints(run)[-1] / "state.pt").write_bytes(b"")
    again = setup(resume=str(run), save_steps=3)
    assert again.global_step == int(before.name.removeprefix("step-"))
    train(again, 3)
    for mine, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for state, expected in zip(again.optimizer.state.values(), whole.optimizer.state.values(), strict=True):
        assert all(torch.equal(state[key], expected[key]) for key in expected)


def test_an_older_checkpoint_resumed_cuts_the_later_ones() -> None:
    run = train(setup(save_steps=5, keep_last=10), 3)
    # a periodic one in between may have given way to a newer one
    assert {"05", "15"} <= {p.name[-2:] for p in checkpoints(run)} <= {"05", "10", "15"}
    train(setup(resume=str(checkpoints(run)[0]), save_steps=7, keep_last=10), 2, stop_at=8)
    assert {"05", "08"} <= {p.name[-2:] for p in checkpoints(run)} <= {"05", "07", "08"}


def auto(**settings: Any) -> tuple[Trainer, list[str]]:
    trainer = setup(resume="auto", **settings)
    return trainer, trainer._fit.notes


def test_auto_takes_the_newest_run_of_this_program_that_is_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    numbered(monkeypatch, *[0] * 20)
    trainer, said = auto()
    assert said == ["nothing to resume in runs: a new run begins"]
    interrupted = train(trainer, 3, stop_at=7)
    other_settings = train(setup(seed=5), 3, stop_at=7)
    finished = train(setup(), 1)
    arguments = list(sys.argv)
    monkeypatch.setattr(sys, "argv", [sys.argv[0], "--lr", "0.1"])
    other_arguments = train(setup(), 3, stop_at=7)
    monkeypatch.setattr(sys, "argv", arguments)
    trainer, said = auto()
    assert trainer.global_step == 7
    assert said == [
        f"resuming {interrupted.relative_to(Path.cwd())}, the newest run of this program that is not finished",
        said[1],
    ]
    assert said[1].endswith('this run\'s are by what is fastest: they agree to rounding (step="eager": to the bit)')
    assert train(trainer, 3) == interrupted
    trainer, said = auto()
    assert trainer.global_step == 0
    assert said[0].startswith("nothing to resume in runs (")
    for run, reason in (
        (other_arguments, "had other arguments"),
        (finished, "is finished"),
        (other_settings, "had seed 5"),
    ):
        assert f"{run.name} {reason}" in said[0]
    trainer.close()


def test_auto_never_takes_the_run_of_another_trainer_or_one_that_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    numbered(monkeypatch, 0, 1, 0, 1, 0)
    train(setup(), 3, stop_at=3)
    second = train(setup(), 3, stop_at=6)
    monkeypatch.setenv("FLODL_RESUME", "auto")
    again = [setup(), setup()]
    assert [t.global_step for t in again] == [3, 6]
    assert again[1]._fit.keeper.resumed == second.relative_to(Path.cwd())
    running = again[0]
    for _ in running.epochs(3):
        for x, y in running.batches():
            running.step(F.cross_entropy(running.model(x), y))
            break
        third, said = auto()
        assert third.global_step == 0
        assert "still runs" in said[0]
        third.close()
        break
    for trainer in again:
        trainer.close()


def test_what_a_program_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/a/train.py", "--resume", "auto", "--lr", "0.1", "--training.resume=x"])
    config = RunConfig()
    program = program_of(config)
    assert program["script"] == "train.py"
    assert program["arguments"] == ["--lr", "0.1"]
    assert program_of(config.with_settings({"resume": "auto", "device": "cpu"}, "test")) == program
    assert program_of(config.with_settings({"batch_size": 7}, "test")) != program


def test_a_checkpoint_that_no_trainer_wrote_is_named(tmp_path: Path) -> None:
    trainer = setup()
    for name in ("c", "c.pt"):
        path = fl.checkpoint.save(tmp_path / name, model=trainer.model, optimizer=trainer.optimizer)
        with pytest.raises(CheckpointError, match=r"was not written by this version's Trainer.*fl\.checkpoint\.load"):
            written_by(path)
        with pytest.raises(CheckpointError, match=r"was not written by this version's Trainer"):
            trainer.resume(path)
    trainer.close()


@pytest.mark.parametrize("name", ["mine", "mine.pt"])
def test_a_trainer_saves_to_a_path_and_resumes_from_it(tmp_path: Path, name: str) -> None:
    first = setup()
    with first:
        for _ in first.epochs(1):
            for x, y in first.batches():
                first.step(F.cross_entropy(first.model(x), y))
                if first.global_step == 3:
                    path = first.save(tmp_path / "deep" / name)
    assert path is not None
    assert os.listdir(path.parent) == [name]
    second = setup(resume=str(path))
    assert second.global_step == 3
    train(second, 1)
    for mine, theirs in zip(second.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(ConfigError, match="fingerprint"):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))
        other = (DATA[0] + 1, DATA[1])
        fl.Trainer.setup(model, torch.optim.AdamW(model.parameters()), other, batch_size=8, resume=str(path))


def test_nothing_is_read_but_the_folder(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    (tmp_path / "notes").mkdir()
    assert find_run(tmp_path, program_of(RunConfig()), 0, said.append) is None
    assert find_run(tmp_path / "nothing", program_of(RunConfig()), 0, said.append) is None
    assert len(said) == 2
