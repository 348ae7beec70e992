"""Everything about a machine that decides what can train on it, what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from flodl_cli.errors import CliError
from flodl_cli.libtorch.install import damage
from flodl_cli.libtorch.store import Installed, active, installed
from flodl_cli.machine.architectures import parse_list
from flodl_cli.machine.builds import minimum_driver, version_key
from flodl_cli.machine.coverage import Code, Coverage, coverage
from flodl_cli.machine.gpus import Detected, Gpu, detect
from flodl_cli.machine.python_torch import OLDEST_TORCH, PythonTorch, ask_torch, project_python
from flodl_cli.machine.system import System, this_system
from flodl_cli.machine.variants import LIBTORCH, TORCH, Refusal, Variant, choose

__all__ = ["Diagnosis", "Problem", "Verdict", "code_of", "diagnose"]


class Problem(NamedTuple):
    """One sentence, and what helps, the best first."""

    text: str
    remedies: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """A GPU, and whether the active libtorch and Python's torch have code for it; None where there is no such thing."""

    gpu: Gpu
    libtorch: Coverage | None
    torch: Coverage | None


class Diagnosis(NamedTuple):
    system: System
    detected: Detected
    libtorch: Installed | None
    torch: PythonTorch | None  # None where there is no Python to ask
    verdicts: tuple[Verdict, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


def diagnose(root: Path, environ: Mapping[str, str]) -> Diagnosis:
    """Looks at everything. `root`: the project's folder, or the current one."""
    detected = detect(environ)
    libtorch = active()
    torch = _torch(root, environ)
    verdicts = tuple(
        Verdict(
            gpu,
            coverage(code_of(libtorch), gpu) if libtorch and not libtorch.gone else None,
            coverage(torch.code, gpu) if torch and torch.version and not torch.error else None,
        )
        for gpu in detected.gpus
    )
    problems = (
        *(Problem(note) for note in detected.notes),
        *_libtorch_problems(libtorch, detected, verdicts),
        *_torch_problems(torch, detected, verdicts, environ),
    )
    if not problems and not libtorch and not (torch and torch.version):
        problems = (Problem("neither libtorch nor torch is installed", ("fdl setup", "fdl libtorch download")),)
    return Diagnosis(this_system(), detected, libtorch, torch, verdicts, problems, _notes(environ, detected))


def code_of(variant: Installed) -> Code:
    """For which GPUs a libtorch has code."""
    arch = variant.arch
    return Code(f"CUDA {arch.cuda}" if arch.cuda else None, parse_list(arch.architectures))


def _torch(root: Path, environ: Mapping[str, str]) -> PythonTorch | None:
    try:
        python, env = project_python(root, environ)
    except CliError:
        return None
    return ask_torch(python, env)


def _libtorch_problems(
    libtorch: Installed | None, detected: Detected, verdicts: tuple[Verdict, ...]
) -> tuple[Problem, ...]:
    if libtorch is None:
        return ()
    title = f"libtorch {libtorch.name}"
    if libtorch.gone:
        return (
            Problem(
                f"{title}: its files in {libtorch.prefix} are gone",
                (f"fdl libtorch remove {libtorch.name}, then fdl libtorch link or download",),
            ),
        )
    if problem := damage(libtorch):
        remedy = f"fdl libtorch remove {libtorch.name}, then fdl libtorch download"
        return (Problem(f"{title} is damaged: {problem}", (remedy,)),)
    lacking = [v.gpu for v in verdicts if v.libtorch and v.libtorch.covered is False]
    if lacking:
        others = [i for i in installed() if not i.gone and all(coverage(code_of(i), g).covered for g in lacking)]
        activate = tuple(f"fdl libtorch activate {i.name}" for i in others)
        choice = choose(detected.gpus, detected.driver, words=LIBTORCH)
        remedies = choice.remedies if isinstance(choice, Refusal) else (_download(choice),)
        return tuple(
            Problem(f"{title} {v.libtorch.reason}: {v.gpu.title}", (*activate, *remedies))
            for v in verdicts
            if v.libtorch and v.libtorch.covered is False
        )
    return _driver_problem(title, libtorch.arch.cuda, detected)


def _torch_problems(
    torch: PythonTorch | None, detected: Detected, verdicts: tuple[Verdict, ...], environ: Mapping[str, str]
) -> tuple[Problem, ...]:
    if torch is None:
        return ()
    title = f"torch {torch.version or ''}".strip()
    if torch.error:
        return (Problem(f"{title} of {torch.python} cannot be used: {torch.error}", ("fdl setup",)),)
    if torch.version is None:
        return ()
    if torch.too_old:
        return (Problem(f"{title} is older than {OLDEST_TORCH}, which floDl needs", ("fdl setup",)),)
    choice = choose(detected.gpus, detected.driver, words=TORCH)
    remedies = choice.remedies if isinstance(choice, Refusal) else ("fdl setup",)
    lacking = tuple(
        Problem(f"{title} {v.torch.reason}: {v.gpu.title}", remedies)
        for v in verdicts
        if v.torch and v.torch.covered is False
    )
    if lacking or not detected.gpus or torch.available:
        return lacking
    if old := _driver_problem(title, torch.cuda, detected):
        return old
    if environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1") or detected.source == "FLODL_GPUS":
        return ()
    return (
        Problem(
            f"{title} has code for the GPU, but cannot use it",
            (
                "in a container: start it with access to the GPU (docker run --gpus all)",
                f"{torch.python} -c 'import torch; torch.cuda.init()' says why",
            ),
        ),
    )


def _driver_problem(title: str, cuda: str | None, detected: Detected) -> tuple[Problem, ...]:
    if cuda is None or detected.driver is None or not detected.gpus:
        return ()
    least = minimum_driver(cuda)
    if version_key(detected.driver) >= version_key(least):
        return ()
    text = f"{title} is made with CUDA {cuda}, which needs driver {least} or newer; this is {detected.driver}"
    return (Problem(text, (f"update the NVIDIA driver to {least} or newer",)),)


def _download(variant: Variant) -> str:
    which = f"--cuda {variant.cuda} --version {variant.version}" if variant.cuda else "--cpu"
    return f"fdl libtorch download {which}"


def _notes(environ: Mapping[str, str], detected: Detected) -> tuple[str, ...]:
    notes = []
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and detected.gpus:
        hides = "hides all GPUs" if visible.strip() in ("", "-1") else "chooses the GPUs that are shown"
        notes.append(f"CUDA_VISIBLE_DEVICES='{visible}' {hides} to programs")
    if detected.source == "FLODL_GPUS":
        notes.append("FLODL_GPUS says which GPUs there are: the machine was not asked")
    return tuple(notes)
