"""Every test runs in an empty folder and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

_QUIET_ENV = {"PYTEST_CURRENT_TEST"}


def _sockets() -> set[object]:
    return {(c.fd, str(c.laddr)) for c in psutil.Process().net_connections(kind="all") if c.laddr}


def _children() -> set[object]:
    return {p.pid for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE}


def _left(before: set[object], now: Callable[[], Iterable[object]], seconds: float = 2.0) -> set[object]:
    """What `now()` has beyond `before`, after at most `seconds` for it to go away."""
    end = time.monotonic() + seconds
    while left := set(now()) - before:
        if time.monotonic() > end:
            return left
        time.sleep(0.02)
    return set()


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    threads, children, sockets, environ = set(threading.enumerate()), _children(), _sockets(), dict(os.environ)
    yield
    gc.collect()
    assert not _left(set(threads), threading.enumerate), "threads left behind"
    assert not _left(children, _children), "processes left behind"
    assert not _left(sockets, _sockets), "sockets left behind"
    changed = {k for k in {*environ, *os.environ} - _QUIET_ENV if environ.get(k) != os.environ.get(k)}
    assert not changed, f"environment variables changed: {sorted(changed)}"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class Result:
    """What one whole `fdl` process said and returned."""

    code: int
    out: str
    err: str


class Fdl:
    """Starts the real `fdl` as its own process, away from the settings of whoever runs the tests."""

    program = (sys.executable, "-m", "flodl_cli")

    def __init__(self, home: Path) -> None:
        # Bytecode is written as for any user; without it every start would compile fdl anew.
        left_out = ("NO_COLOR", "CI", "PYTHONDONTWRITEBYTECODE")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FDL_", "XDG_")) and k not in left_out}
        self.env = {**kept, "HOME": str(home), "PYTHONWARNINGS": "error", "COLUMNS": "100"}

    def __call__(
        self, *words: str, cwd: Path | None = None, env: Mapping[str, str | None] | None = None, stdin: str = ""
    ) -> Result:
        process = subprocess.run(
            [*self.program, *words],
            cwd=cwd,
            env=self.environment(env),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in process.stderr, process.stderr
        return Result(process.returncode, process.stdout, process.stderr)

    def environment(self, env: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """The environment that a call gets; None removes a variable."""
        return {k: v for k, v in {**self.env, **(env or {})}.items() if v is not None}

    def start(self, *words: str, **options: object) -> subprocess.Popen[str]:
        """A call that the test watches while it runs; `preexec_fn` runs in it first."""
        prepare = options.pop("preexec_fn", None)

        def in_child() -> None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # whoever started pytest may ignore them
                signal.signal(number, signal.SIG_DFL)
            if prepare is not None:
                prepare()  # type: ignore[operator]

        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [*self.program, *words],
            env=self.environment(),
            text=True,
            preexec_fn=in_child,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )


@pytest.fixture
def fdl(tmp_path_factory: pytest.TempPathFactory) -> Fdl:
    return Fdl(tmp_path_factory.mktemp("home"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes files of a project: `write("fdl.yml", text)`."""

    def write_file(name: str, text: str | bytes, folder: Path = tmp_path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


@pytest.fixture
def show_words(write: Callable[..., Path]) -> Path:
    """A program that prints its arguments, one in each line, as Python literals."""
    return write("words.py", "import sys\nfor word in sys.argv[1:]:\n    print(repr(word))\n")


@pytest.fixture
def entry(write: Callable[..., Path]) -> Callable[..., None]:
    """Makes a project with one folder, whose entry is the given script: `entry(script, manifest)`."""

    def make(script: str, manifest: str = "") -> None:
        write("fdl.yml", "commands: { go: { path: go } }")
        write("go/fdl.yml", f"entry: python train.py\n{manifest}")
        write("go/train.py", script)

    return make


# It leaves the file `ran` behind when anything but its parser runs.
ARGPARSE = """\
import argparse
import pathlib

pathlib.Path("ran").touch()
DEFAULT = 3

def add_common(parser):
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate")

def main():
    pathlib.Path("ran").touch()
    parser = argparse.ArgumentParser(description="trains letters")
    parser.add_argument("--n", "-n", type=int, default=DEFAULT, help="how many")
    parser.add_argument("--policy", choices=["cadence", "async"], default="cadence")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--tag", action="append")
    parser.add_argument("--text")
    add_common(parser)
    args = parser.parse_args()
    pathlib.Path("ran").touch()
    print(sorted(vars(args).items()))

if __name__ == "__main__":
    pathlib.Path("ran").touch()
    main()
"""


@pytest.fixture
def argparse_script() -> str:
    """A script with an argparse parser that uses most of what there is."""
    return ARGPARSE
