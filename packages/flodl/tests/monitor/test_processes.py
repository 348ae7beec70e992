"""Runs in real processes: killed, interrupted, forked, ended without a word, two at once."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flodl.monitor import RunView, list_runs

Start = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no fork, no signals")


def output(process: subprocess.Popen[str], code: int = 0) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out


def check_integrity(run: Path) -> None:
    connection = sqlite3.connect(run / "run.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_killed_run_keeps_what_was_committed_and_reads_as_stale(start: Start, tmp_path: Path) -> None:
    """Ten runs, each killed at a random moment of its own."""
    process = start(
        """
        import os, random, signal, sys, time
        from flodl.monitor import Recorder

        def train(pipe):
            recorder = Recorder("runs")
            os.write(pipe, (recorder.run_id + "\\n").encode())
            for step in range(10**9):
                recorder.metric("loss", step / 3, step=step)
                if step % 50 == 0:
                    recorder.epoch(step // 50, {"loss": step / 3})
                if step % 500 == 499:
                    recorder.flush()
                    os.write(pipe, f"{step}\\n".encode())
                time.sleep(0.0001)

        for _ in range(10):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                train(write)
            os.close(write)
            with open(read) as pipe:
                run_id = pipe.readline().strip()
                time.sleep(random.uniform(0, 0.7))
                os.kill(child, signal.SIGKILL)
                flushed = pipe.read().split()
            os.waitpid(child, 0)
            print(run_id, flushed[-1] if flushed else -1)
        """
    )
    lines = output(process).split("\n")[:-1]
    assert len(lines) == 10
    for line in lines:
        run_id, flushed = line.split()
        with RunView(Path("runs") / run_id) as view:
            assert view.info().state == "stale"
            points = view.series("loss")
            assert [(p.step, p.value) for p in points] == [(i, i / 3) for i in range(len(points))], "a gap"
            assert len(points) > int(flushed)
            assert [epoch.number for epoch in view.epochs()] == list(range(-(-len(points) // 50)))
        check_integrity(Path("runs") / run_id)


def test_a_killed_run_can_be_resumed(start: Start) -> None:
    process = start(
        """
        import os, signal, sys
        from flodl.monitor import Recorder

        child = os.fork()
        if child == 0:
            recorder = Recorder("runs", run_id="a")
            recorder.metric("loss", 1.0, step=1)
            recorder.metric("loss", 2.0, step=2)
            recorder.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        with Recorder("runs", run_id="a", resume=True) as recorder:
            recorder.cut_after(1)
            recorder.metric("loss", 2.5, step=2)
        """
    )
    output(process)
    with RunView("runs/a") as view:
        assert [(p.step, p.value) for p in view.points()] == [(1, 1.0), (2, 2.5)]
        assert [(event.kind, event.data.get("state")) for event in view.events()] == [
            ("resumed", "stale"),
            ("cut", None),
        ]
        assert view.info().state == "finished"


@pytest.mark.parametrize(
    ("ending", "code", "state", "error"),
    [
        ("", 0, "stopped", None),
        ("sys.exit(3)", 3, "stopped", None),
        ("raise ValueError('bad shape')", 1, "failed", "ValueError: bad shape"),
    ],
)
def test_a_program_that_ends_without_finish(
    start: Start, ending: str, code: int, state: str, error: str | None
) -> None:
    process = start(
        f"""
        import sys
        from flodl.monitor import Recorder
        recorder = Recorder("runs", run_id="a")
        for step in range(1000):
            recorder.metric("loss", 1.0, step=step)
        {ending}
        """
    )
    output(process, code)
    with RunView("runs/a") as view:
        assert (view.info().state, view.info().error) == (state, error)
        assert len(view.points()) == 1000


def test_ctrl_c_ends_the_run_with_all_that_was_recorded(start: Start) -> None:
    process = start(
        """
        import signal
        from flodl.monitor import Recorder
        signal.signal(signal.SIGINT, signal.default_int_handler)
        step = 0
        with Recorder("runs", run_id="a") as recorder:
            try:
                while True:
                    step += 1
                    recorder.metric("loss", 1.0, step=step)
                    if step % 1000 == 0:
                        recorder.flush()
                        print("flushed")
            finally:
                print("last", step)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "flushed\n"
    process.send_signal(signal.SIGINT)
    out = output(process, -signal.SIGINT)
    (last,) = re.findall(r"last (\d+)", out)
    with RunView("runs/a") as view:
        assert view.info().state == "stopped"
        steps = [point.step for point in view.points()]
    # The signal may come between counting a step and recording it.
    assert steps in ([*range(1, int(last) + 1)], [*range(1, int(last))])


def test_a_forked_child_neither_writes_nor_ends_the_run(start: Start) -> None:
    process = start(
        """
        import gc, os, sys
        from flodl.monitor import Recorder, RunView
        recorder = Recorder("runs", run_id="a")
        recorder.metric("loss", 1.0, step=1)
        for how in ("return", "exit"):
            child = os.fork()
            if child == 0:
                recorder.metric("child", 1.0, step=1)
                recorder.metrics(1, {"child": 1.0})
                recorder.epoch(1, {"child": 1.0})
                recorder.event("child")
                recorder.artifact("child", "")
                recorder.cut_after(0)
                assert recorder.requests() == ()
                recorder.flush()
                recorder.finish("failed", "child")
                with Recorder("runs", run_id=how) as own:
                    own.metric("own", 1.0, step=1)
                del recorder
                gc.collect()
                os._exit(0) if how == "exit" else sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        with RunView("runs/a") as view:
            assert view.info().state == "running"
        recorder.metric("loss", 2.0, step=2)
        recorder.finish()
        child = os.fork()
        if child == 0:
            recorder.metric("child", 1.0, step=1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    output(process)
    with RunView("runs/a") as view:
        assert [(point.name, point.value) for point in view.points()] == [("loss", 1.0), ("loss", 2.0)]
        assert view.events() == []
        assert view.info().state == "finished"
    for name in ("return", "exit"):
        with RunView(f"runs/{name}") as view:
            assert view.names() == ["own"]
    check_integrity(Path("runs/a"))


def test_children_forked_while_the_writer_is_busy_can_use_sqlite(start: Start) -> None:
    """A fork in the middle of a commit would leave SQLite's own locks held for ever in the child."""
    process = start(
        """
        import os, signal, sqlite3, threading
        from flodl.monitor import Recorder
        recorder = Recorder("runs", run_id="a")
        done = threading.Event()
        def write():
            step = 0
            while not done.is_set():
                recorder.metric("loss", 1.0, step=step)
                step += 1
                if step % 10 == 0:
                    recorder.flush()
        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(100):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                connection = sqlite3.connect(":memory:")
                connection.execute("CREATE TABLE t (x)")
                connection.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        done.set()
        thread.join()
        recorder.finish()
        """
    )
    output(process)
    check_integrity(Path("runs/a"))


def test_two_processes_record_into_one_folder_at_once(start: Start) -> None:
    script = """
        import sys
        from flodl.monitor import Recorder
        with Recorder("runs", name=sys.argv[1]) as recorder:
            for step in range(5000):
                recorder.metric(sys.argv[1], step / 7, step=step)
                if step % 100 == 0:
                    recorder.flush()
        """
    processes = [start(script, name) for name in ("one", "two")]
    for process in processes:
        output(process)
    runs = list_runs("runs")
    assert {run.info.name for run in runs if run.info} == {"one", "two"}
    for run in runs:
        assert run.info is not None
        assert run.info.state == "finished"
        with RunView(run.folder) as view:
            assert view.names() == [run.info.name]
            assert [point.value for point in view.points()] == [step / 7 for step in range(5000)]


def test_of_two_that_resume_a_run_at_once_one_is_refused(start: Start) -> None:
    process = start(
        """
        import os
        from flodl.errors import StoreError
        from flodl.monitor import Recorder
        Recorder("runs", run_id="a").finish()
        go_read, go_write = os.pipe()
        done_read, done_write = os.pipe()
        end_read, end_write = os.pipe()
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                os.read(go_read, 1)
                try:
                    recorder = Recorder("runs", run_id="a", resume=True)
                except StoreError as error:
                    assert "still running" in str(error) or "just resumed" in str(error), error
                    os.write(done_write, b"r")
                else:
                    os.write(done_write, b"o")
                    os.read(end_read, 1)
                    recorder.finish()
                os._exit(0)
            children.append(child)
        os.write(go_write, b"....")
        print("".join(sorted(os.read(done_read, 1).decode() for _ in children)))
        os.write(end_write, b".")
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)
        """
    )
    assert output(process) == "orrr\n"
    with RunView("runs/a") as view:
        assert [event.kind for event in view.events()] == ["resumed"]


def test_the_commit_is_recorded(start: Start, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    script = """
        import sys
        from flodl.monitor import Recorder
        Recorder("runs", run_id=sys.argv[1]).finish()
        """
    output(start(script, "clean"))
    (tmp_path / "file").write_text("2")
    output(start(script, "dirty"))
    clean, dirty = (run.info for run in list_runs("runs"))
    assert clean is not None
    assert dirty is not None
    assert (clean.git_commit, clean.git_dirty) == (commit, False)
    assert (dirty.git_commit, dirty.git_dirty) == (commit, True)
    assert dirty.command.endswith("dirty")
