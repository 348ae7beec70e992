"""N + M steps without a break, or N, stop, resume, M: the same bits."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam

import flodl as fl
from flodl.train.resuming import locate as newest


def setup(**settings: Any) -> fl.Trainer:
    torch.manual_seed(0)
    flow = fl.flow(nn.Linear(64, 32)).through(nn.BatchNorm1d(32)).through(nn.Dropout(0.2)).through(nn.Linear(32, 10))
    model = flow.build()
    settings = {"batch_size": 64, "quiet": True, **settings}
    return fl.Trainer.setup(model, Adam(model.parameters(), lr=3e-3), fl.data.Digits("train"), **settings)


def train(trainer: fl.Trainer, epochs: int, stop_at: int | None = None) -> dict[str, Any]:
    with trainer:
        for _ in trainer.epochs(epochs):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
                if trainer.global_step == stop_at:
                    trainer.stop()
    return {
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict()["state"],
        "history": trainer.history,
    }


def curves(folder: Path) -> list[tuple[int, float]]:
    with fl.monitor.RunView(folder) as view:
        return [(p.step, p.value) for p in view.series("loss")]


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


@pytest.mark.parametrize("stop_at", [1, 22, 23, 24, 46, 60])
def test_bit_identical_at_any_step(stop_at: int) -> None:
    whole = setup()
    expected = train(whole, 3)
    first = setup()
    train(first, 3, stop_at)
    assert first.run.folder is not None
    torch.rand(100)  # random states are restored, not continued
    second = setup(resume=str(first.run.folder))
    got = train(second, 3)
    assert second.run.folder == first.run.folder
    assert_same(got["model"], expected["model"])
    assert_same(got["optimizer"], expected["optimizer"])
    means = [[m["loss"] for m in result["history"]] for result in (got, expected)]
    torch.testing.assert_close(means[0], means[1][stop_at // 23 :], rtol=1e-12, atol=0)
    assert whole.run.folder is not None
    assert curves(first.run.folder) == curves(whole.run.folder)


def test_history_after_the_resumed_point_is_cut() -> None:
    first = setup()
    with first:
        for _ in first.epochs(2):
            for x, y in first.batches():
                first.step(F.cross_entropy(first.model(x), y))
                if first.global_step == 10:
                    saved = first.save()
                    assert saved.name == "step-00000010"
    assert first.run.folder is not None
    assert len(curves(first.run.folder)) == 46
    second = setup(resume=str(saved))
    train(second, 1)
    assert [step for step, _ in curves(first.run.folder)] == list(range(1, 24))


def test_a_finished_run_resumed_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    first = setup()
    train(first, 1)
    second = setup(resume=str(first.run.folder), quiet=False)
    train(second, 1)
    assert second.global_step == first.global_step
    assert "nothing to train: 1 epochs are done already" in capsys.readouterr().err


def test_what_would_change_the_order_of_the_data_is_refused() -> None:
    first = setup()
    train(first, 1)
    with pytest.raises(fl.ConfigError, match="seed 0, this run has 5"):
        setup(resume=str(first.run.folder), seed=5)
    with pytest.raises(fl.CheckpointError, match="no complete checkpoint in runs"):
        setup(resume="runs")


SCRIPT = """
import sys, torch, flodl as fl
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.2), nn.Linear(32, 10))
trainer = fl.Trainer.setup(model, torch.optim.Adam(model.parameters()), fl.data.Digits("train"), batch_size=64, step="eager")
for _ in trainer.epochs(int(sys.argv[1])):
    for x, y in trainer.batches():
        trainer.step(nn.functional.cross_entropy(trainer.model(x), y))
torch.save(model.state_dict(), "result.pt")
"""

BUILDER = """
import sys, torch, flodl as fl
from torch import nn
torch.set_num_threads(1)
handle = fl.Trainer.builder(
    lambda: nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.2), nn.Linear(32, 10)),
    lambda p: torch.optim.Adam(p),
    lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
).dataset(fl.data.Digits("train")).batch_size(64).num_epochs(int(sys.argv[1])).settings(step="eager").run()
torch.save(handle.join().state_dict, "result.pt")
"""


SCRIPTS = {"setup": SCRIPT, "builder": BUILDER}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights that each script ends with when nothing comes in between."""
    folders = {name: tmp_path_factory.mktemp("unbroken") for name in SCRIPTS}
    both = [
        subprocess.Popen([sys.executable, "-c", SCRIPTS[name], "60"], cwd=folder, stdout=subprocess.DEVNULL)
        for name, folder in folders.items()
    ]
    assert [process.wait(200) for process in both] == [0, 0]
    return {name: torch.load(folder / "result.pt") for name, folder in folders.items()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_says_how_to_resume_and_that_works(
    tmp_path: Path, number: int, unbroken: dict[str, Any]
) -> None:
    folders = {name: tmp_path / f"bro ken {name}" for name in SCRIPTS}
    trainings, resumed, outputs = {}, {}, {}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPTS[name])
        command = [sys.executable, "train.py", "60"]
        trainings[name] = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def interrupt(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        process.stdout.readline()  # the first epoch is done
        process.send_signal(number)

    # at once: while one process begins, the other might have trained all of its epochs
    waiting = [threading.Thread(target=interrupt, args=(process,)) for process in trainings.values()]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    for name, process in trainings.items():
        outputs[name], err = process.communicate(timeout=60)
        assert process.returncode == 128 + number, err
        assert "Traceback" not in err
        (line,) = re.findall(r"resume with: (.*)", err)
        assert not (folders[name] / "result.pt").exists()
        with fl.monitor.RunView(next((folders[name] / "runs").iterdir())) as view:
            assert view.info().state == "stopped"
        resumed[name] = subprocess.Popen(["sh", "-c", line], cwd=folders[name], stdout=subprocess.DEVNULL)
    for name, process in resumed.items():
        assert process.wait(200) == 0
        assert_same(torch.load(folders[name] / "result.pt"), unbroken[name])
        (run,) = (folders[name] / "runs").iterdir()
        with fl.monitor.RunView(run) as view:
            assert view.info().state == "finished"
            assert len(view.series("loss")) == 60 * 23
        assert outputs[name].count("\n") < 60


def test_the_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    slow = "print('in', flush=True); import time; time.sleep(60); trainer.step("
    (tmp_path / "train.py").write_text(SCRIPT.replace("trainer.step(", slow))
    process = subprocess.Popen(
        [sys.executable, "train.py", "1"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "in\n"
    process.send_signal(signal.SIGINT)
    while "stopping after this step" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT


def test_handlers_are_the_same_afterwards() -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    train(setup(), 1)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_of_two_trainers_in_a_program_only_its_own_resumes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = setup(), setup()
    train(first, 1)
    train(second, 2, stop_at=5)
    assert second.run.folder is not None
    monkeypatch.setenv("FLODL_RESUME", str(second.run.folder))
    count = iter([first.number, second.number])
    monkeypatch.setattr("flodl.train.trainer._numbers", count)  # as in a new process
    again = [setup(), setup()]
    assert [t.global_step for t in again] == [0, 5]
    for trainer in again:
        trainer.close()


def test_ctrl_c_in_an_evaluation_ends_it_and_the_resumed_run_evaluates_again(tmp_path: Path) -> None:
    slow = SCRIPT.replace(
        "        trainer.step(nn.functional.cross_entropy(trainer.model(x), y))\n",
        "        trainer.step(nn.functional.cross_entropy(trainer.model(x), y))\n"
        "    def slowly(m, b):\n"
        "        import os, time\n"
        "        if 'FLODL_RESUME' not in os.environ:\n"
        "            print('evaluating', flush=True); time.sleep(0.5)\n"
        "        return {'n': 1.0}\n"
        "    trainer.evaluate(fl.data.Digits('test'), slowly, batch_size=4)\n",
    )
    (tmp_path / "train.py").write_text(slow)
    command = [sys.executable, "train.py", "1"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "evaluating\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)  # all of the evaluation would take 45 s
    assert process.returncode == 130, err
    (line,) = re.findall(r"resume with: (.*)", err)
    subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True, capture_output=True, timeout=100)
    (run,) = (tmp_path / "runs").iterdir()
    with fl.monitor.RunView(run) as view:
        assert view.info().state == "finished"
        assert "test_n" in view.last()


def test_epochs_save_so_that_a_killed_training_goes_on() -> None:
    with setup(save_seconds=0.0) as trainer:
        for epoch in trainer.epochs(3):
            for x, y in trainer.batches():
                trainer.step(F.cross_entropy(trainer.model(x), y))
                if epoch:
                    assert trainer.run.folder is not None
                    until = time.monotonic() + 30  # it is written in the background
                    name = f"checkpoints/*{trainer.global_step - 1}"
                    while not list(trainer.run.folder.glob(name)) and time.monotonic() < until:
                        time.sleep(0.01)
                    saved = fl.checkpoint.load(newest(trainer.run.folder))
                    assert saved.position == {"epoch": epoch, "sample": 0}
                    break


def test_a_task_of_fdl_is_resumed_by_the_command_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    with setup() as trainer:
        for _ in trainer.epochs(1):
            break
        folder = trainer.run.folder
        assert folder is not None
        assert trainer.run.how_to_resume().startswith(f"FLODL_RESUME={folder.relative_to(Path.cwd())} ")
        monkeypatch.setenv("FDL_COMMAND", "./fdl quickstart --seed 1")
        assert trainer.run.how_to_resume() == f"FLODL_RESUME={folder} ./fdl quickstart --seed 1"


def test_another_form_of_the_step_than_the_checkpoints_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    first = setup(step="eager")
    train(first, 1)
    second = setup(resume=str(first.run.folder), step="eager+fused", quiet=False)
    train(second, 2)
    told = "the checkpoint's steps were taken by eager, this run's are by eager+fused: they agree to rounding"
    assert told in capsys.readouterr().err
    third = setup(resume=str(first.run.folder), deterministic=True, quiet=False)
    train(third, 3)
    assert "taken by eager+fused, this run's are by eager:" in capsys.readouterr().err
