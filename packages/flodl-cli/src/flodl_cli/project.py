"""Which project a call belongs to, and the environment its tasks run in."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from flodl_cli.errors import CliError

__all__ = ["MANIFEST", "child_environment", "find_program", "find_root"]

MANIFEST = "fdl.yml"

# How fdl was called is no business of what it starts: a nested `fdl` finds its own project.
_OWN_VARIABLES = ("FDL_PROJECT", "FDL_CONFIG", "FDL_SELF")


def find_root(start: Path, environ: Mapping[str, str]) -> Path | None:
    """The nearest folder at or above `start` that holds fdl.yml; FDL_PROJECT names it directly."""
    named = environ.get("FDL_PROJECT")
    if named:
        folder = Path(named).absolute()
        if not os.path.lexists(folder / MANIFEST):
            raise CliError(f"FDL_PROJECT={named}: there is no {MANIFEST}")
        return folder
    for folder in (start, *start.parents):
        if os.path.lexists(folder / MANIFEST):
            return folder
    return None


def child_environment(root: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for tasks: `python` is the Python of the project's virtual environment.

    FDL_COMMAND and FDL_CWD say what the user typed and where, for a message that tells how to do it again; of nested
    calls, the outermost.
    """
    env = {k: v for k, v in environ.items() if k not in _OWN_VARIABLES}
    if "FDL_COMMAND" not in env:
        env["FDL_COMMAND"] = shlex.join([environ.get("FDL_SELF", "fdl"), *sys.argv[1:]])
        env["FDL_CWD"] = os.getcwd()
    venv = _virtual_environment(root, environ)
    if venv is not None:
        bin_folder = str(venv / "bin")
        rest = [p for p in env.get("PATH", os.defpath).split(os.pathsep) if p != bin_folder]
        env["PATH"] = os.pathsep.join([bin_folder, *rest])
        env["VIRTUAL_ENV"] = str(venv)
        env.pop("PYTHONHOME", None)
    return env


def find_program(name: str, folder: Path, environ: Mapping[str, str]) -> str | None:
    """The path of a program: of a name with a slash as seen from `folder`, of another one by PATH."""
    folders = [str(folder)] if "/" in name else environ.get("PATH", os.defpath).split(os.pathsep)
    for place in folders:
        path = os.path.join(place, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _virtual_environment(root: Path, environ: Mapping[str, str]) -> Path | None:
    """fdl's own when it lies in the project, else the active one, else the project's .venv, else fdl's own."""
    own = Path(sys.prefix) if sys.prefix != sys.base_prefix else None
    if own is not None and own.is_relative_to(root):
        return own
    if active := environ.get("VIRTUAL_ENV"):
        return Path(active)
    if (root / ".venv" / "bin" / "python").exists():
        return root / ".venv"
    # pipx and uv keep a tool's environment for the tool alone: the project's packages are not in there.
    tool = own is not None and any((own / mark).exists() for mark in ("pipx_metadata.json", "uv-receipt.toml"))
    return None if tool else own
