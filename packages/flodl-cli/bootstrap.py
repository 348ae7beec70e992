"""Makes .venv and installs both distributions into it; started by the script `fdl`, with the standard library alone.

A stamp inside .venv says that a set-up was finished, for which checkout and for which inputs. A kernel lock (gone with its
holder, so never stale) lets one set-up run at a time. Everything pip says goes to a log file; the terminal gets one line.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

STAMP = "fdl-stamp"
UNFINISHED = "fdl-unfinished"

DISK_FULL = "the disk is full at {root}: about 3 GB are needed"

# What pip or venv wrote, and the sentence for it. The first that is found counts.
REASONS = [
    (("No space left on device", "Errno 28", "Disk quota exceeded"), DISK_FULL),
    (
        ("ensurepip is not available", "No module named venv", "No module named ensurepip"),
        "{python} has no venv module: install it (for example: apt install python{version}-venv)",
    ),
    (
        (
            "Failed to establish a new connection",
            "Temporary failure in name resolution",
            "Name or service not known",
            "NewConnectionError",
            "ConnectionError",
            "Connection refused",
            "Network is unreachable",
            "Read timed out",
            "ConnectTimeoutError",
            "(from versions: none)",  # all that pip says of it inside a build
        ),
        "the package index cannot be reached, or lacks what is needed: check the network and pip's settings, then start again",
    ),
    (("Permission denied", "Read-only file system"), "cannot write to {root}/.venv"),
]


class SetupError(Exception):
    """One sentence for the terminal."""


class Progress:
    """One line that is rewritten on a terminal; without one, a line when the work starts and none while it runs."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.started = time.monotonic()

    def begin(self, text: str) -> None:
        print(f"fdl: {text}", file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            line = f"fdl: {time.monotonic() - self.started:4.0f} s  {text}"
            print("\r\x1b[K" + line[:width], end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr)
        print(f"fdl: .venv is ready ({time.monotonic() - self.started:.0f} s)", file=sys.stderr, flush=True)


def main() -> int:
    root, stamp = Path(sys.argv[1]), sys.argv[2]
    log_path = root / ".venv.lock" / "setup.log"
    try:
        log_path.parent.mkdir(exist_ok=True)
        with locked(log_path.parent):
            if finished(root, stamp):  # by the one that held the lock before us
                return 0
            with log_path.open("w", encoding="utf-8") as log:
                set_up(root, stamp, log)
        return 0
    except KeyboardInterrupt:
        return 130
    except SetupError as error:
        sentence = str(error)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            sentence = reason("No space left on device", root) or ""
        else:
            sentence = f"set-up failed: {error}"
    print(f"fdl: {sentence} (log: {log_path})", file=sys.stderr)
    return 1


class locked:
    """Holds the lock of this checkout's set-up, waiting for another holder with a message."""

    def __init__(self, folder: Path) -> None:
        self.descriptor = os.open(folder, os.O_RDONLY)

    def __enter__(self) -> None:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("fdl: another start is setting up .venv: waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def finished(root: Path, stamp: str) -> bool:
    path = root / ".venv" / STAMP
    return path.is_file() and path.read_text(encoding="utf-8") == stamp + "\n"


def set_up(root: Path, stamp: str, log: TextIO) -> None:
    venv = root / ".venv"
    progress = Progress()
    if must_be_remade(venv, stamp):
        shutil.rmtree(venv)
    if not (venv / "bin" / "python").exists():
        progress.begin(f"setting up .venv with Python {sys.version.split()[0]} (once; a minute or more)")
        venv.mkdir(exist_ok=True)
        (venv / UNFINISHED).touch()
        run([sys.executable, "-m", "venv", "--clear", str(venv)], root, log, progress)
    else:
        progress.begin("bringing .venv up to date")
    (venv / UNFINISHED).touch()  # an interrupted start leaves this mark, and the next one begins anew
    (venv / STAMP).unlink(missing_ok=True)
    packages = [str(root / "packages" / name) + "[dev]" for name in ("flodl-cli", "flodl")]
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]
    constraints = ["--progress-bar", "off", "-c", str(root / "constraints.txt")]
    run([*pip, *constraints, "-e", packages[0], "-e", packages[1]], root, log, progress)
    temporary = venv / (STAMP + ".new")
    temporary.write_text(stamp + "\n", encoding="utf-8")
    temporary.replace(venv / STAMP)
    (venv / UNFINISHED).unlink()
    progress.end()


def must_be_remade(venv: Path, stamp: str) -> bool:
    """True for a set-up that was interrupted, made elsewhere (its scripts hold the old path), or whose Python is gone."""
    if not venv.exists():
        return False
    if (venv / UNFINISHED).exists() or not (venv / "bin" / "python").exists():
        return True
    path = venv / STAMP
    return path.is_file() and path.read_text(encoding="utf-8").splitlines()[:1] != stamp.splitlines()[:1]


def run(command: list[str], root: Path, log: TextIO, progress: Progress) -> None:
    """Runs one step with its whole output in the log; SetupError with the reason when it fails."""
    log.write("$ " + " ".join(command) + "\n")
    log.flush()
    said: list[str] = []
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            log.write(line)
            said.append(line)
            progress.show(line.strip())
    finally:
        process.stdout.close()
        if process.poll() is None and sys.exc_info()[0] is not None:
            process.terminate()
        status = process.wait()
    log.flush()
    if status:
        text = "".join(said)
        last = next((line.strip() for line in reversed(said) if line.strip()), f"exit status {status}")
        raise SetupError(reason(text, root) or f"set-up failed: {last}")


def reason(text: str, root: Path) -> str | None:
    """The sentence for what a failed step wrote."""
    full = shutil.disk_usage(root).free < 20 * 2**20  # venv does not tell what pip said in it
    for signs, sentence in REASONS:
        if (full and sentence is DISK_FULL) or any(sign in text for sign in signs):
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            return sentence.format(root=root, python=sys.executable, version=version)
    return None


if __name__ == "__main__":
    sys.exit(main())
