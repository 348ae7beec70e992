"""Asking other programs: with a time limit, and nothing of theirs left running, whatever ends the question."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

__all__ = ["answer", "ask_python", "ended_by_sigterm", "python_command"]


def answer(
    command: Sequence[str], environ: Mapping[str, str], timeout_s: float, *, cwd: Path | None = None
) -> tuple[int, str] | None:
    """Exit status and output (both streams) of a program; None when it did not end in time and was killed."""
    env = {**environ, "LC_ALL": environ.get("LC_ALL", "C.UTF-8")}
    with ended_by_sigterm():
        try:
            child = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # what the program starts goes with it
            )
        except OSError as error:
            return 126, f"{command[0]}: {error.strerror}"
        with child:
            try:
                output, _ = child.communicate(timeout=timeout_s)
            except BaseException as error:
                _kill_group(child.pid)
                child.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    return None
                raise
    return child.returncode, output.decode(errors="replace")


def python_command(python: str, script: Path) -> list[str]:
    """A script that needs no flodl_cli, started so that no file of its folder or the current one hides a module."""
    return [python, "-c", f"import sys; sys.path[:] = [p for p in sys.path if p]; exec(open({str(script)!r}).read())"]


def ask_python(
    python: str, script: Path, environ: Mapping[str, str], timeout_s: float, *words: str
) -> dict[str, Any] | str:
    """What a script prints as one JSON object in its last line, run by another Python; else why there is nothing."""
    said = answer([*python_command(python, script), *words], {**environ, "PYTHONWARNINGS": "ignore"}, timeout_s)
    if said is None:
        return f"no answer within {timeout_s:g} s"
    status, text = said
    lines = text.strip().splitlines()
    if status == 0 and lines and lines[-1].startswith("{"):
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    died = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return lines[-1] if lines and status >= 0 else died


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: by an exception that cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended just now
        return
