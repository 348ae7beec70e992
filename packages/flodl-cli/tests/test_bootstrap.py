"""The script `fdl` of the repository, run for real on small distributions, so that a set-up takes seconds and no network."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

# A build backend without dependencies: pip needs no network to install a project that carries its own.
BACKEND = """
import os, pathlib, zipfile

NAME = {name!r}
SLOW = {slow!r}
SAID = "import os, sys\\ndef main():\\n    print('ran', sys.argv[1:], os.environ['FDL_PROJECT'])\\n"

def get_requires_for_build_editable(config_settings=None):
    return []

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    if SLOW:
        import time
        pathlib.Path(SLOW).touch()
        time.sleep(60)
    wheel = f"{{NAME}}-1-py3-none-any.whl"
    info = f"{{NAME}}-1.dist-info"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w") as archive:
        archive.writestr(f"{{info}}/METADATA", f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: 1\\nProvides-Extra: dev\\n")
        archive.writestr(f"{{info}}/WHEEL", "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        if NAME == "flodl_cli":
            archive.writestr(f"{{info}}/entry_points.txt", "[console_scripts]\\nfdl = said:main\\n")
            archive.writestr("said.py", SAID)
        archive.writestr(f"{{info}}/RECORD", "")
    return wheel
"""


def checkout(folder: Path, slow: str = "") -> Path:
    """A checkout that has the real bootstrap script and two tiny distributions."""
    for name in ("fdl", "packages/flodl-cli/bootstrap.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, folder / name)
    (folder / "constraints.txt").write_text("")
    for package in ("flodl-cli", "flodl"):
        place = folder / "packages" / package
        place.mkdir(parents=True, exist_ok=True)
        (place / "backend.py").write_text(BACKEND.format(name=package.replace("-", "_"), slow=slow))
        (place / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            f'[project]\nname = "{package}"\nversion = "1"\n[project.optional-dependencies]\ndev = []\n'
        )
    return folder


def start(script: Path | str, *words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(script), *words], cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=120
    )


def environment(**env: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FDL_", "PIP_")) and k != "PYTHONPATH"}
    # The system's Python first, as for somebody who activated nothing.
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "FDL_PYTHON": base_python(), **env}


def base_python() -> str:
    return str(Path(sys.base_prefix) / "bin" / "python3")


def stamp(folder: Path) -> tuple[int, str]:
    path = folder / ".venv" / "fdl-stamp"
    return path.stat().st_mtime_ns, path.read_text()


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that was set up by its first start."""
    folder = checkout(tmp_path_factory.mktemp("bootstrap") / "Größe und Maß")
    first = start(folder / "fdl", "a", "b c")
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"ran ['a', 'b c'] {folder}\n"
    assert "setting up .venv" in first.stderr
    return folder


def test_a_second_start_installs_nothing_until_an_input_changes(ready: Path) -> None:
    made = stamp(ready)
    second = start(ready / "fdl", "x", FDL_PYTHON="/nowhere")  # all is in place: no Python is looked for
    assert (second.returncode, second.stderr) == (0, "")
    assert stamp(ready) == made
    with (ready / "constraints.txt").open("a") as file:
        file.write("six<99\n")
    third = start(ready / "fdl")
    assert third.returncode == 0
    assert "bringing .venv up to date" in third.stderr
    assert stamp(ready) != made


def test_a_terminal_shows_one_line_of_progress(ready: Path) -> None:
    (ready / ".venv" / "fdl-stamp").unlink()
    main, side = pty.openpty()
    process = subprocess.Popen([ready / "fdl"], env=environment(), stdin=side, stdout=side, stderr=side)
    os.close(side)
    said = b""
    while select.select([main], [], [], 60)[0]:
        try:
            said += os.read(main, 4096)
        except OSError:  # the other side is closed
            break
    os.close(main)
    assert process.wait(timeout=60) == 0
    assert b"\r\x1b[Kfdl:    " in said
    assert said.count(b"\n") == 3  # what is done, that it is done, and what fdl itself said
    assert "Installing collected packages" in (ready / ".venv.lock" / "setup.log").read_text()


def test_it_starts_through_links_and_from_any_folder(ready: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    (elsewhere / "one").symlink_to(os.path.relpath(ready / "fdl", elsewhere))
    (elsewhere / "two").symlink_to(elsewhere / "one")
    result = start(elsewhere / "two", cwd=elsewhere)
    assert result.stdout == f"ran [] {ready}\n", result.stderr
    result = start("two", cwd=tmp_path, PATH=f"{elsewhere}:{os.environ['PATH']}")
    assert result.stdout == f"ran [] {ready}\n", result.stderr


def test_a_project_named_by_the_caller_is_kept(ready: Path) -> None:
    assert start(ready / "fdl", FDL_PROJECT="/other").stdout == "ran [] /other\n"


def test_a_moved_checkout_is_made_anew(ready: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ready, tmp_path / "after", symlinks=True))
    result = start(folder / "fdl")
    assert result.stdout == f"ran [] {folder}\n", result.stderr
    assert "setting up .venv" in result.stderr
    assert ready.name not in (folder / ".venv" / "bin" / "fdl").read_text()


def test_the_tab_key_installs_nothing(tmp_path: Path) -> None:
    folder = checkout(tmp_path)
    result = start(folder / "fdl", "--complete", "fish", "")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not (folder / ".venv").exists()


def test_an_interrupted_set_up_is_redone(tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    folder = checkout(tmp_path / "code", slow=str(reached))
    process = subprocess.Popen(
        [folder / "fdl"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(reached.exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (folder / ".venv" / "fdl-stamp").exists()
    checkout(folder)  # the same, but quick
    result = start(folder / "fdl")
    assert result.returncode == 0, result.stderr
    assert "setting up .venv" in result.stderr


def test_two_at_once_set_up_once(tmp_path: Path) -> None:
    folder = checkout(tmp_path)
    both = [
        subprocess.Popen(
            [folder / "fdl", n], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for n in "12"
    ]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted(out for out, _ in said) == [f"ran ['1'] {folder}\n", f"ran ['2'] {folder}\n"]
    errors = [err for _, err in said]
    assert sum("fdl: setting up .venv" in err for err in errors) == 1
    assert sum("waiting for it" in err for err in errors) == 1


def test_no_python(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "code")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "cksum", "dirname", "readlink"):
        (tools / name).symlink_to(str(shutil.which(name)))
    result = start(folder / "fdl", PATH=str(tools), FDL_PYTHON="")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("fdl: needs Python 3.10 or newer and found none")
    assert len(result.stderr.splitlines()) == 1


def test_a_named_python_that_is_too_old_or_missing(tmp_path: Path) -> None:
    folder = checkout(tmp_path)
    result = start(folder / "fdl", FDL_PYTHON="/nowhere/python")
    assert result.returncode == 1
    assert result.stderr == "fdl: FDL_PYTHON=/nowhere/python is not a Python 3.10 or newer\n"


def test_no_network(tmp_path: Path) -> None:
    folder = checkout(tmp_path)
    project = folder / "packages" / "flodl" / "pyproject.toml"
    project.write_text(project.read_text().replace("requires = []", 'requires = ["hatchling"]'))
    unreachable = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    result = start(folder / "fdl", **unreachable)
    log = folder / ".venv.lock" / "setup.log"
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "fdl: the package index cannot be reached, or lacks what is needed: check the network and pip's settings, "
        f"then start again (log: {log})"
    )
    assert "127.0.0.1" in log.read_text()


def test_a_python_without_venv(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "code")
    python = tmp_path / "python"  # as on Debian without python3-venv: the module is there and stops with this sentence
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{tmp_path}/broken"\nexec "{base_python()}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "ensurepip.py").write_text("raise ModuleNotFoundError(\"No module named 'ensurepip'\")\n")
    (tmp_path / "broken" / "venv.py").write_text("import sys\nsys.exit('No module named venv')\n")
    result = start(folder / "fdl", FDL_PYTHON=str(python))
    assert result.returncode == 1
    assert "has no venv module: install it" in result.stderr.splitlines()[-1]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounting a small file system takes root")
def test_a_full_disk(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", tmp_path], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this machine mounts nothing: {mounted.stderr.strip()}")
    try:
        folder = checkout(tmp_path / "code")
        result = start(folder / "fdl")
    finally:
        os.chdir("/")
        subprocess.run(["umount", tmp_path], check=True)
    assert result.returncode == 1
    assert "the disk is full" in result.stderr.splitlines()[-1]


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
