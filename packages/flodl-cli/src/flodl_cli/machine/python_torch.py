"""The torch of the project's Python, asked in a process of that Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flodl_cli.errors import CliError
from flodl_cli.machine.architectures import parse_list
from flodl_cli.machine.asking import answer, ask_python
from flodl_cli.machine.builds import version_key
from flodl_cli.machine.coverage import Code
from flodl_cli.project import child_environment, find_program

__all__ = ["OLDEST_TORCH", "PythonTorch", "ask_torch", "missing_modules", "module_folder", "project_python"]

OLDEST_TORCH = "2.6"  # what the distribution flodl asks for
TIMEOUT_S = 120.0  # a first import of torch from a slow disk takes a minute


class PythonTorch(NamedTuple):
    """`version` is None where Python has no torch; `error` says why one that is there cannot be used."""

    python: str
    python_version: str | None = None
    prefix: str | None = None  # the environment's folder
    pip: bool = True
    managed: bool = False  # the system's Python, into which pip must not install
    folder: str | None = None  # where torch is
    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    available: bool = False  # it can use a GPU here and now
    error: str | None = None
    trained: tuple[tuple[str, str | None], ...] = ()  # device, and what went wrong there

    @property
    def code(self) -> Code:
        if self.hip:
            return Code("ROCm " + self.hip, targets=tuple(a.partition(":")[0] for a in self.architectures))
        return Code(f"CUDA {self.cuda}" if self.cuda else None, parse_list(self.architectures))

    @property
    def too_old(self) -> bool:
        return self.version is not None and version_key(self.version) < version_key(OLDEST_TORCH)


def project_python(root: Path, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The Python that the tasks of a project run with, and their environment."""
    env = child_environment(root, environ)
    for name in ("python", "python3"):
        if found := find_program(name, root, env):
            return found, env
    raise CliError("there is no python on PATH: make an environment (python3 -m venv .venv) or activate one")


def ask_torch(python: str, env: Mapping[str, str], *, train: bool = False, timeout_s: float = TIMEOUT_S) -> PythonTorch:
    """What the torch of `python` is; with `train`, a matrix product and a training step on each device, too."""
    script = Path(__file__).with_name("torch_report.py")
    found = ask_python(python, script, env, timeout_s, *(["train"] if train else []))
    if isinstance(found, str):
        return PythonTorch(python, error=found)
    trained = tuple((entry["device"], entry["error"]) for entry in found.pop("trained", ()))
    known = {name: value for name, value in found.items() if name in PythonTorch._fields and name != "python"}
    return PythonTorch(python, **{**known, "architectures": tuple(known.get("architectures", ())), "trained": trained})


def missing_modules(python: str, env: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Those of the modules that a Python does not have; none of them is imported."""
    code = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
    said = answer([python, "-c", code, *names], env, TIMEOUT_S)
    return said[1].split() if said is not None and said[0] == 0 else []


def module_folder(python: str, env: Mapping[str, str], name: str) -> Path | None:
    """Where a Python has a package; None where it has none."""
    code = "import importlib.util as u, sys; s = u.find_spec(sys.argv[1]); print((s and s.origin) or '')"
    said = answer([python, "-c", code, name], env, TIMEOUT_S)
    origin = said[1].strip() if said is not None and said[0] == 0 else ""
    return Path(origin).parent if origin else None
