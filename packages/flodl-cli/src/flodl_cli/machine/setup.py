"""What has to be done so that Python has a torch that fits this machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from flodl_cli.errors import CliError
from flodl_cli.machine.builds import minimum_driver, version_key
from flodl_cli.machine.coverage import coverage
from flodl_cli.machine.gpus import Detected
from flodl_cli.machine.python_torch import OLDEST_TORCH, PythonTorch
from flodl_cli.machine.variants import Variant
from flodl_cli.project import find_program

__all__ = ["INDEX", "Step", "misfit", "steps"]

INDEX = "https://download.pytorch.org/whl"  # FLODL_TORCH_INDEX names a mirror


class Step(NamedTuple):
    """A command of the plan."""

    does: str
    argv: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.argv)


def misfit(torch: PythonTorch, detected: Detected, wanted: str | None = None) -> str | None:
    """Why the torch of Python has to be replaced, None where it fits. `wanted`: the tag that was asked for (`cu126`, `cpu`)."""
    if torch.error:
        return f"torch {torch.version or ''} cannot be used: {torch.error}".replace("  ", " ")
    if torch.version is None:
        return "Python has no torch"
    title = f"torch {torch.version}"
    if torch.too_old:
        return f"{title} is older than {OLDEST_TORCH}, which floDl needs"
    has = "cu" + torch.cuda.replace(".", "") if torch.cuda else "rocm" if torch.hip else "cpu"
    if wanted is not None:
        return None if has == wanted else f"{title} is a build for {has}, not for {wanted}"
    for gpu in detected.gpus:
        found = coverage(torch.code, gpu)
        if found.covered is False:
            return f"{title} {found.reason}: {gpu.title}"
    if detected.gpus and torch.cuda and detected.driver:
        least = minimum_driver(torch.cuda)
        if version_key(detected.driver) < version_key(least):
            return f"{title} is made with CUDA {torch.cuda}, which needs driver {least} or newer; this is {detected.driver}"
    return None


def steps(
    torch: PythonTorch, variant: Variant, root: Path, environ: Mapping[str, str], index: str | None
) -> tuple[tuple[Step, ...], str]:
    """The commands, and the Python that has the torch afterwards."""
    python, made = torch.python, tuple[Step, ...]()
    if torch.managed:  # the system's own: a package there could break it
        folder = root / ".venv"
        if folder.exists():
            raise CliError(f"{python} belongs to the system, and {folder} has no Python: remove it, then start again")
        made = (Step(f"make {folder}", (python, "-m", "venv", str(folder))),)
        python = str(folder / "bin" / "python")
    return (
        *made,
        Step(f"install torch {variant.version} ({variant.tag})", _install(torch, python, variant, environ, index)),
    ), python


def _install(
    torch: PythonTorch, python: str, variant: Variant, environ: Mapping[str, str], index: str | None
) -> tuple[str, ...]:
    if torch.pip or torch.managed:
        tool: tuple[str, ...] = (python, "-m", "pip", "install")
    elif uv := find_program("uv", Path.cwd(), environ):
        tool = (uv, "pip", "install", "--python", python)
    else:
        raise CliError(f"{python} has no pip: `{python} -m ensurepip` installs it")
    if sys.platform == "darwin":
        return (*tool, f"torch=={variant.version}")
    base = (index or environ.get("FLODL_TORCH_INDEX") or INDEX).rstrip("/")
    # Every torch can compute on the CPU, so where that index cannot be reached, the one that pip knows will do.
    exact = f"+{variant.tag}" if variant.cuda else ""
    return (*tool, f"torch=={variant.version}{exact}", "--extra-index-url", f"{base.rstrip('/')}/{variant.tag}")
