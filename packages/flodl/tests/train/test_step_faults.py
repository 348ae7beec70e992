"""What goes on around a compiled step: other processes, a full disk, errors, Ctrl-C; the result is right and nothing is left."""

from __future__ import annotations

import copy
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import flodl as fl
from flodl.train.compiled import WholeStep

_spec = importlib.util.spec_from_file_location("step_models", Path(__file__).with_name("step_models.py"))
assert _spec
assert _spec.loader
step_models = sys.modules.setdefault("step_models", importlib.util.module_from_spec(_spec))
_spec.loader.exec_module(step_models)
CASES, state = step_models.CASES, step_models.process_state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inductor's own, and of fork beside threads
]
QUIET: dict[str, Any] = {"quiet": True, "record": False, "batch_size": 8}

# Trains eagerly and by a step's recipe, on weights and data of its own, and compares.
SCRIPT = """
import sys, torch, flodl as fl
from torch import nn
torch.set_num_threads(1)
def trained(step):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(float(sys.argv[1])), nn.Linear(16, 4)), torch.randn(80, 8)
    loss = lambda model, x: model(x).square().mean()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with fl.Trainer.setup(model, optimizer, x, step=step, batch_size=8, record=False) as trainer:
        for _ in trainer.epochs(2):
            for batch in trainer.batches():
                trainer.train_step(loss, batch)
        return model.state_dict(), trainer.step_report()
wanted, (got, report) = trained("eager")[0], trained("compiled")
torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
print(report)
"""


def test_two_processes_that_compile_the_same_at_once() -> None:
    command = [sys.executable, "-c", SCRIPT, str(time.time() % 1)]  # a constant of the code: in no cache yet
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert "19 steps were one compiled graph each" in out
        assert "warning" not in err


def test_a_full_disk_for_both_caches(tmp_path: Path) -> None:
    """A real one where it can be mounted (for this process alone), else no file may get any contents."""
    full = tmp_path / "full"
    full.mkdir()
    place = shlex.quote(str(full))
    fill = f"mount -t tmpfs -o size=64k none {place} && ! head -c 65537 /dev/zero > {place}/fill 2>/dev/null"
    isolated = ["unshare", "--mount"]
    try:
        mounts = subprocess.run([*isolated, "sh", "-c", fill], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounts = False
    if not mounts:
        fill, isolated = "ulimit -f 0", []
    remember = "from flodl.train.remembered import Remembered as R; from flodl.train.recipes import Recipe\n"
    remember += "r = R({'model': 'x'}); r.write(Recipe(), True, {}, None); print(r.problem)"
    command = shlex.join([sys.executable, "-c", f"{SCRIPT}\n{remember}", "0.1"])
    env = {**os.environ, "FLODL_CACHE": str(full / "flodl"), "TORCHINDUCTOR_CACHE_DIR": str(full / "inductor")}
    done = subprocess.run(
        [*isolated, "sh", "-c", f"{fill} && exec {command}"],
        env=env, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning") == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert "steps are taken eagerly: it does not compile: " in line
    assert re.search(r"the choice of the step is not remembered: \[Errno \d+\]", done.stdout), done.stdout


class Rows(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Samples of the first batches of a case, one by one."""

    def __init__(self, case: Any) -> None:
        self.x, self.y = case.x.flatten(0, 1), case.y.flatten(0, 1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def test_workers_forked_and_spawned_beside_a_compiled_step() -> None:
    case = CASES["mlp"]()
    expected = copy.deepcopy(case.model)
    twin = case.optimizer(expected)
    x, y = case.x.flatten(0, 1), case.y.flatten(0, 1)
    spawned = DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=8, num_workers=1, multiprocessing_context="spawn"
    )
    seen = []
    with fl.Trainer.setup(
        case.model, case.optimizer(case.model), Rows(case), step="compiled", workers=1, shuffle=False, **QUIET
    ) as trainer:
        for epoch in trainer.epochs(3):
            if epoch == 1:  # the loader's own workers are forked from a process that has compiled
                assert trainer._stepper.engine
                assert "graph" in trainer.step_report()
            for batch in trainer.batches():
                trainer.train_step(case.train_fn, batch)
                seen.append(batch)
        for batch in spawned:
            trainer.train_step(case.train_fn, batch)
            seen.append(tuple(batch))
        assert f"{len(seen) - 1} steps were one compiled graph each" in trainer.step_report()
    assert len(seen) == 4 * 16
    for batch in seen:
        case.train_fn(expected, batch).backward()
        twin.step()
        twin.zero_grad()
    torch.testing.assert_close(case.model.state_dict(), expected.state_dict(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("where", ["in the loop", "in the train_fn", "in a callback"])
def test_a_compiled_training_that_fails_leaves_nothing_changed(where: str) -> None:
    case, before = CASES["mlp"](), state()
    failing = False

    def train_fn(model: Any, batch: Any) -> Tensor:
        if failing:  # a constant of the graph: when it changes, the step is traced anew, in which this is raised
            raise ZeroDivisionError("in the train_fn")
        return case.train_fn(model, batch)

    class Fails(fl.Callback):
        def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
            if state.step == 5 and where == "in a callback":
                raise ZeroDivisionError(where)

    with (
        pytest.raises(ZeroDivisionError, match=where),
        fl.Trainer.setup(
            case.model, case.optimizer(case.model), (case.x[0], case.y[0]), step="whole+onednn+allocator+threads=2",
            callbacks=[Fails()], **QUIET,
        ) as trainer,
    ):  # fmt: skip
        for _ in trainer.epochs(9):
            for batch in trainer.batches():
                trainer.train_step(train_fn, batch)
                if trainer.global_step == 5:
                    assert "4 steps were one compiled graph each" in trainer.step_report()
                    if where == "in the loop":
                        raise ZeroDivisionError(where)
                    failing = True
    assert state() == before
    assert case.model._compiled_call_impl is None


def long_training(callback: fl.Callback | None = None, **settings: Any) -> fl.train.TrainHandle:
    torch.manual_seed(0)
    case = CASES["mlp"]()
    builder = fl.Trainer.builder(lambda: copy.deepcopy(case.model), lambda p: torch.optim.Adam(p, 1e-3), case.train_fn)
    builder.dataset((case.x.flatten(0, 1), case.y.flatten(0, 1))).num_epochs(10**6)
    if callback:
        builder.callbacks(callback)
    return builder.settings(step="compiled", quiet=True, batch_size=8, **settings).run()


class At(fl.Callback):
    """Sends Ctrl-C to this process after some update."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, state: fl.FitState, control: fl.Control) -> None:
        if state.step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_and_stop_in_a_compiled_training_and_going_on() -> None:
    before = state()
    handle = long_training(At(30))
    with pytest.raises(SystemExit) as ended:
        handle.join()
    assert ended.value.code == 130
    assert state() == before
    folder = handle.trainer.run.folder
    assert folder
    again = long_training(resume=str(folder))
    assert again.trainer.global_step >= 30
    while again.poll().step < 60:
        time.sleep(0.01)
    again.stop()
    assert again.join().steps >= 60
    assert again.poll().state == "stopped"
    assert "one compiled graph each" in again.trainer.step_report()
    assert state() == before


def test_a_compile_ahead_ends_with_the_training() -> None:
    """Its process, and the compilers that it has started, are gone at once."""
    case = CASES["transformer"]()
    optimizer = case.optimizer(case.model)
    case.train_fn(case.model, case.batch(0)).backward()
    optimizer.step()
    ahead = WholeStep(case.train_fn, case.model, optimizer).ahead(case.batch(0))
    assert ahead
    assert ahead.running
    time.sleep(0.5)
    ahead.close()
    assert not ahead.running
