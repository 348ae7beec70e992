"""Saving in the background: bounded, in order, older ones removed, errors raised where training is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flodl import CheckpointError, ConfigError
from flodl.checkpoint import Series, best, load, newest, save

NAN = float("nan")


def series(folder: Path, **options: Any) -> Series:
    return Series(folder / "checkpoints", **options)


def steps(made: Series) -> list[int]:
    return sorted(int(p.name.removeprefix("step-")) for p in made.folder.iterdir() if p.name.startswith("step-"))


def saved(made: Series, *numbers: int, metrics: dict[int, float] | None = None, **more: Any) -> None:
    for step in numbers:
        values = {"loss": metrics[step]} if metrics and step in metrics else {}
        made.save(step=step, model={"w": torch.full((3,), float(step))}, metrics=values, **more)
        made.wait()


class Gate:
    """Holds the writing of checkpoints until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from flodl.checkpoint import series as module

        self._open = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        real = module.write_folder

        def write(*arguments: Any) -> Path:
            self.began.release()
            assert self._open.acquire(timeout=20)
            return real(*arguments)

        monkeypatch.setattr(module, "write_folder", write)

    def open(self, times: int = 1) -> None:
        for _ in range(times):
            self._open.release()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def test_what_is_written_is_the_moment_of_the_call(tmp_path: Path, gate: Gate) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    extra = {"list": [1, torch.zeros(2)], "sparse": torch.eye(2).to_sparse()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = series(tmp_path)
    path = made.save(step=1, model=model, optimizer=optimizer, extra=extra)
    optimizer.step()
    extra["list"][1].add_(1)  # type: ignore[union-attr,index]
    extra["list"].append(2)  # type: ignore[union-attr]
    extra["sparse"].coalesce().values().add_(1)  # type: ignore[union-attr]
    assert path is not None
    assert not path.exists(), "it was not written in the background"
    gate.open()
    made.close()
    found = load(path)
    assert found.model is not None
    assert all(torch.equal(found.model[name], value) for name, value in before.items())
    assert found.extra["list"][0] == 1
    assert torch.equal(found.extra["list"][1], torch.zeros(2))
    assert torch.equal(found.extra["sparse"].to_dense(), torch.eye(2))


def test_a_newer_periodic_save_replaces_one_that_waits_and_memory_is_bounded(tmp_path: Path, gate: Gate) -> None:
    made = series(tmp_path, keep_last=None)
    for step in range(6):
        assert made.save(step=step, model={"w": torch.full((3,), float(step))}) is not None
        if step == 0:
            gate.began.acquire()
    held = {id(job.buffers) for job in (made._writing, made._waiting) if job}
    assert len(held | {id(b) for b in made._buffers}) == 2
    gate.open(2)
    made.close()
    assert steps(made) == [0, 5]
    for step in (0, 5):
        state = load(made.folder / f"step-{step:08d}").model
        assert state is not None
        assert state["w"].tolist() == [step] * 3
    assert [w.step for w in made.written()] == [0, 5]
    assert made.written() == []


def test_an_explicit_save_is_never_replaced(tmp_path: Path, gate: Gate) -> None:
    made = series(tmp_path, keep_last=None)
    made.save(step=0, model={})
    gate.began.acquire()
    made.save(step=1, model={}, explicit=True)
    assert made.save(step=2, model={}) is None
    third = threading.Thread(target=lambda: made.save(step=3, model={}, explicit=True))
    third.start()
    time.sleep(0.05)
    assert third.is_alive(), "two explicit saves wait: a third copy in memory"
    gate.open(3)
    third.join()
    made.close()
    assert steps(made) == [0, 1, 3]


def test_the_best_so_far_is_never_replaced_while_it_waits(tmp_path: Path, gate: Gate) -> None:
    made = series(tmp_path, keep_best="loss", keep_last=1)
    made.save(step=0, model={}, metrics={"loss": 3.0})
    gate.began.acquire()
    made.save(step=1, model={}, metrics={"loss": 1.0})
    assert made.save(step=2, model={}, metrics={"loss": 2.0}) is None
    gate.open(5)
    made.wait()
    saved(made, 3, metrics={3: 2.0})
    assert steps(made) == [1, 3]
    made.close()


def test_only_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    made = series(tmp_path, keep_last=2, keep_best="loss")
    saved(made, 1, 2, 3, 4, 5, 6, metrics={1: NAN, 2: 0.5, 3: 0.4, 4: 0.4, 5: NAN, 6: 0.9})
    assert steps(made) == [3, 5, 6]  # of equal ones the earlier
    assert made.best() == best(made.folder, "loss") == made.folder / "step-00000003"
    assert made.newest() == made.folder / "step-00000006"
    made.close()
    again = series(tmp_path, keep_last=1, keep_best="loss", keep_best_mode="max")  # another process goes on
    saved(again, 7, 8, metrics={7: 0.95, 8: NAN})
    assert steps(again) == [7, 8]
    again.close()


def test_without_a_finite_metric_there_is_no_best(tmp_path: Path) -> None:
    made = series(tmp_path, keep_best="loss", keep_last=3)
    saved(made, 1, 2, metrics={1: NAN})
    assert made.best() is None
    with pytest.raises(CheckpointError, match='mode is "least"|mode is .least.'):
        best(made.folder, "loss", "least")  # type: ignore[arg-type]
    made.close()
    with pytest.raises(ConfigError, match="best\\(\\) needs the name of a metric"):
        series(tmp_path).best()


def test_nothing_of_others_is_removed(tmp_path: Path) -> None:
    made = series(tmp_path, keep_last=1)
    made.folder.mkdir()
    (made.folder / "notes.txt").write_text("mine")
    (made.folder / "thesis").mkdir()
    (made.folder / "thesis" / "a.txt").write_text("mine")
    (made.folder / "step-00000000").mkdir()  # a name like ours, but no manifest
    (made.folder / "step-00000000" / "a.txt").write_text("mine")
    elsewhere = save(tmp_path / "elsewhere", model={}, step=1)
    (made.folder / "step-00000001").symlink_to(elsewhere)
    saved(made, 2)
    (made.folder / "step-00000002" / "notes.txt").write_text("mine")
    saved(made, 3, 4)
    assert steps(made) == [0, 1, 2, 4]
    assert os.listdir(made.folder / "step-00000002") == ["notes.txt"]
    assert (made.folder / "step-00000000" / "a.txt").read_text() == "mine"
    assert (made.folder / "thesis" / "a.txt").read_text() == "mine"
    assert load(elsewhere).step == 1
    with pytest.raises(CheckpointError, match=r"step-00000001: a link of that name is there"):
        saved(made, 1)
    made.close()
    assert not any(name.startswith(".") for name in os.listdir(made.folder))


def test_incomplete_ones_are_named_and_passed_over(tmp_path: Path) -> None:
    made = series(tmp_path, keep_last=None)
    saved(made, 1, 2, 3)
    (made.folder / "step-00000003" / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match=r"step-00000003 is passed over: .*model\.safetensors is missing"):
        assert made.newest() == made.folder / "step-00000002"
    said: list[str] = []
    (made.folder / "step-00000002" / "manifest.json").unlink()
    assert newest(made.folder, warn=said.append) == made.folder / "step-00000001"
    assert len(said) == 2
    assert newest(made.folder, complete_only=False) == made.folder / "step-00000003"
    assert newest(tmp_path / "nothing") is None
    made.close()


def test_history_that_was_left_is_cut(tmp_path: Path) -> None:
    made = series(tmp_path, keep_last=2, keep_best="loss")
    saved(made, 1, 2, 3, 4, metrics={1: 5.0, 2: 4.0, 3: 1.0, 4: 2.0})
    made.close()
    again = series(tmp_path, keep_last=3, keep_best="loss")
    again.cut_after(2)
    assert steps(again) == [3, 4], "cut before anything new is there"
    saved(again, 3, metrics={3: 3.0})
    assert steps(again) == [3]
    assert load(again.folder / "step-00000003").metrics == {"loss": 3.0}
    again.close()


def test_an_error_in_the_thread_is_raised_in_training_once(tmp_path: Path) -> None:
    made = series(tmp_path)
    saved(made, 1)
    made.folder.joinpath("step-00000002").write_text("in the way")
    made.save(step=2, model={})
    with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*step-00000002: a file of that name"):
        made.wait()
    made.check()
    saved(made, 3)
    made.folder.joinpath("step-00000004").write_text("in the way")
    made.save(step=4, model={})
    with pytest.raises(CheckpointError, match=r"step-00000004"):
        made.close()
    assert made.newest() == made.folder / "step-00000003"


def test_what_cannot_be_saved_is_said_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    made = series(tmp_path)
    with pytest.raises(CheckpointError, match=r"extra\['x'\] is of type object"):
        made.save(step=1, model={}, extra={"x": object()})
    saved(made, 2)
    assert steps(made) == [2]
    made.close()


def test_in_the_foreground(tmp_path: Path) -> None:
    made = series(tmp_path, background=False)
    path = made.save(step=1, model={})
    assert path is not None
    assert load(path).step == 1
    made.close()
    with pytest.raises(ConfigError, match="keep_last is 0"):
        series(tmp_path, keep_last=0)
    with pytest.raises(ConfigError, match="keep_best_mode is 'least'"):
        series(tmp_path, keep_best_mode="least")


def test_a_folder_has_one_writer_in_a_process(tmp_path: Path) -> None:
    made = series(tmp_path)
    saved(made, 1)
    second = series(tmp_path)
    with pytest.raises(CheckpointError, match=r"Another writer of this process saves into .*close\(\)"):
        second.save(step=2, model={})
    made.close()
    saved(second, 2)
    second.close()
    assert steps(made) == [1, 2]


def test_a_series_that_is_dropped_frees_its_folder(tmp_path: Path) -> None:
    saved(series(tmp_path), 1)
    made = series(tmp_path)
    saved(made, 2)
    made.close()


def test_a_forked_child_neither_holds_the_folder_nor_waits(tmp_path: Path, gate: Gate) -> None:
    made = series(tmp_path)
    made.save(step=1, model={})
    gate.began.acquire()
    code = os.fork() if sys.version_info < (3, 12) else None  # newer ones warn of any fork with threads
    if code == 0:
        os._exit(0)
    if code is not None:
        assert os.waitpid(code, 0)[1] == 0
    gate.open()
    made.close()
    assert steps(made) == [1]


# Programs that end without closing anything, and one that saves where another process does. Forks of one, because importing
# torch takes longer than the rest.
PROGRAMS = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    import torch
    from flodl import CheckpointError
    from flodl.checkpoint import Series

    for name in ("ending", "failing"):
        if os.fork() == 0:
            series = Series(Path(name))
            for step in (1, 2):
                series.save(step=step, model={"w": torch.zeros(2_000_000)}, explicit=True)
            if name == "failing":
                raise RuntimeError("training failed")
            sys.exit()
        print(name, os.waitstatus_to_exitcode(os.wait()[1]))

    series = Series(Path("shared"))
    series.save(step=1, model={})
    series.wait()
    if os.fork() == 0:
        try:
            Series(Path("shared")).save(step=2, model={})
        except CheckpointError as error:
            print(error)
        sys.exit()  # whatever a program does at its end is done in the child too
    os.wait()
    print(os.listdir("shared"))
    """
)


def test_the_end_of_a_program_waits_for_the_writing_and_a_second_process_is_told_who_writes(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-u", "-c", PROGRAMS], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    ending, failing, told, shared = run.stdout.splitlines()
    assert (ending, failing) == ("ending 0", "failing 1")
    assert re.fullmatch(r"Cannot save into .*/shared: process \d+ on .* does\. Wait for it to end, .*", told)
    assert ".lock" in shared
    assert "RuntimeError: training failed" in run.stderr
    for name in ("ending", "failing"):
        found = newest(tmp_path / name)
        assert found is not None
        assert load(found).step == 2


KILLER = textwrap.dedent(
    """
    import os, random, signal, sys, time
    from pathlib import Path
    import torch
    from flodl.checkpoint import Series, load, newest

    torch.set_num_threads(1)
    folder, moments, left, step = Path(sys.argv[1]), random.Random(0), 0, 0
    for _ in range(30):
        child = os.fork()
        if child == 0:
            series = Series(folder, keep_last=2, keep_best="loss")
            while True:
                step += 1
                series.save(step=step, model={f"w{i}": torch.full((50_000,), float(step)) for i in range(8)},
                            metrics={"loss": float(step % 7)})
        time.sleep(moments.uniform(0.01, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        left += any(name.startswith(".step") for name in os.listdir(folder)) if folder.exists() else 0
        warned = []
        found = newest(folder, warn=warned.append)
        if found is not None:
            checkpoint = load(found)
            assert checkpoint.step >= step, (checkpoint.step, step)
            step = checkpoint.step
            assert all((tensor == step).all() for tensor in checkpoint.model.values())
        assert all("left by a process that was killed" in line for line in warned), warned
    series = Series(folder, keep_last=2)
    series.save(step=step + 1, model={})
    series.close()
    names = os.listdir(folder)
    assert len([n for n in names if n.startswith("step-")]) == 2, names
    print(left, [n for n in names if n.startswith(".step")])
    """
)


def test_killed_at_any_moment_every_checkpoint_is_whole_or_named(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path / "checkpoints")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    left_behind, files = run.stdout.split(maxsplit=1)
    assert int(left_behind) > 0, "no kill fell into a save: the test shows nothing"
    assert files == "[]\n", "the next save did not clear what the killed ones left"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_leaves_the_previous_one(small_disk: Path) -> None:
    made = series(small_disk)
    saved(made, 1)
    made.save(step=2, model={"w": torch.zeros(1_000_000)})
    with pytest.raises(
        CheckpointError, match=r"Cannot write the checkpoint .*step-00000002: .*No space left on device"
    ):
        made.wait()
    assert steps(made) == [1]
    assert [n for n in os.listdir(made.folder) if n.startswith(".step")] == []
    found = made.newest()
    assert found is not None
    assert load(found).step == 1
    filler, failed = small_disk / "filler", 0
    for free in range(0, 200_000, 8192):  # whatever it is that finds no more space
        filler.write_bytes(b"")
        space = os.statvfs(small_disk)
        filler.write_bytes(bytes(space.f_bavail * space.f_frsize - free))
        made.save(step=3, model={"w": torch.zeros(9_000)}, extra={"t": torch.zeros(9_000), "b": b"x" * 30_000})
        message = ""
        try:
            made.wait()
        except CheckpointError as error:
            message = str(error)
        if not message:
            break
        assert "No space left on device" in message
        assert steps(made) == [1]
        failed += 1
    assert failed > 10
    assert steps(made) == [1, 3]
    made.close()


def test_a_read_only_file_system(small_disk: Path) -> None:
    made = series(small_disk)
    saved(made, 1)
    made.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*Read-only file system"):
        made.save(step=2, model={})
    with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*Read-only file system"):
        save(made.folder / "other", model={})
    found = made.newest()
    assert found is not None
    assert load(found).step == 1
