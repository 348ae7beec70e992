"""`fdl install`: a link into ~/.local/bin, and what it tells of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def bin_folder(fdl: Any) -> Path:
    return Path(fdl.env["HOME"], ".local", "bin")


@pytest.fixture
def installed(fdl: Any, bin_folder: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a fdl that is installed in an environment of its own, with ~/.local/bin on PATH."""
    own = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True)
    site = next(own.glob("lib/python*/site-packages"))
    (site / "here.pth").write_text("\n".join(p for p in sys.path if p and os.path.isdir(p)) + "\n")
    program = own / "bin" / "fdl"
    program.write_text(f"#!{own}/bin/python\nfrom flodl_cli.main import main\nmain()\n")
    program.chmod(0o755)
    fdl.program = (str(program),)
    return {"PATH": f"{bin_folder}{os.pathsep}/usr/bin{os.pathsep}/bin", "PYTHONWARNINGS": "", "PYTHONPATH": ""}


def test_it_is_linked_found_and_told(fdl: Any, installed: dict[str, str], bin_folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "env" / "bin" / "fdl"
    before = fdl("install", "--check", env=installed)
    assert before.code == 1
    assert "not there" in before.out
    assert "`fdl install` links it" in before.out
    asked = fdl("install", env=installed)
    assert (asked.code, bin_folder.exists()) == (2, False)
    assert "No terminal to ask on: --yes" in asked.err
    made = fdl("install", "-y", env=installed)
    assert (made.code, made.out) == (0, f"linked {bin_folder / 'fdl'} -> {own}\n")
    assert os.listdir(bin_folder) == ["fdl"]
    version = subprocess.run(["fdl", "--version"], env=fdl.environment(installed), capture_output=True, text=True)
    assert version.stdout.startswith("fdl ")
    checked = fdl("install", "--check", "--json", env=installed)
    told = json.loads(checked.out)
    assert (checked.code, told["installed"], told["on_path"]) == (0, True, True)
    assert (told["own"], told["leads_to"], told["found"]) == (str(own), str(own), str(bin_folder / "fdl"))
    assert "is this fdl already" in fdl("install", env=installed).out


def test_a_folder_that_is_not_on_path_is_told(fdl: Any, installed: dict[str, str], bin_folder: Path) -> None:
    env = {**installed, "PATH": "/usr/bin:/bin"}
    made = fdl("install", "-y", env=env)
    assert 'export PATH="$HOME/.local/bin:$PATH"' in made.out
    checked = fdl("install", "--check", env=env)
    assert (checked.code, "is not on PATH" in checked.out) == (1, True)


def test_another_program_is_never_replaced_but_a_link_is_after_asking(
    fdl: Any, installed: dict[str, str], bin_folder: Path, tmp_path: Path
) -> None:
    bin_folder.mkdir(parents=True)
    theirs = bin_folder / "fdl"
    theirs.write_text("#!/bin/sh\n")
    refused = fdl("install", "-y", env=installed)
    assert (refused.code, "is there already, and is no link" in refused.err) == (2, True)
    assert theirs.read_text() == "#!/bin/sh\n"
    theirs.unlink()
    theirs.symlink_to(tmp_path / "gone")
    assert "which is gone" in fdl("install", "--check", env=installed).out
    assert f"leads to {tmp_path / 'gone'}; let it lead to" in fdl("install", env=installed).err
    assert fdl("install", "-y", env=installed).code == 0
    assert theirs.resolve() == (tmp_path / "env" / "bin" / "fdl").resolve()


def test_one_that_stands_before_it_on_path_is_told(
    fdl: Any, installed: dict[str, str], bin_folder: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    (first / "fdl").write_text("#!/bin/sh\n")
    (first / "fdl").chmod(0o755)
    made = fdl("install", "-y", env={**installed, "PATH": f"{first}{os.pathsep}{installed['PATH']}"})
    assert f"`fdl` is still {first / 'fdl'}, which stands before {bin_folder} on PATH" in made.out


def test_what_cannot_be_done(fdl: Any, installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "env" / "bin" / "fdl").rename(tmp_path / "env" / "bin" / "other")
    fdl.program = (str(tmp_path / "env" / "bin" / "other"),)
    assert "there is no program fdl beside" in fdl("install", "-y", env=installed).err
    assert "HOME is not set" in fdl("install", env={**installed, "HOME": None}).err
    assert "--json belongs to --check" in fdl("install", "--json", env=installed).err
