"""`fdl diagnose`: what this machine has, what is wrong, and what helps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from flodl_cli.call import Call
from flodl_cli.help import table
from flodl_cli.machine.coverage import Coverage
from flodl_cli.machine.diagnosis import Diagnosis, Verdict
from flodl_cli.machine.diagnosis import diagnose as look
from flodl_cli.terminal import Style

__all__ = ["diagnose"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="All of it, for scripts.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of what --json prints.")
@click.pass_obj
def diagnose(call: Call, as_json: bool, schema: bool) -> int:
    """Look at the GPUs, the driver, libtorch and Python's torch. Ends with 1 when something is wrong."""
    if schema:
        from flodl_cli.schema import DIAGNOSE_SCHEMA_FILE

        print(Path(DIAGNOSE_SCHEMA_FILE).read_text(encoding="utf-8"), end="")
        return 0
    found = look(call.root or Path.cwd(), os.environ)
    if as_json:
        print(json.dumps(document(found), ensure_ascii=False, indent=2))
    else:
        print("\n".join(_lines(found, Style(ansi=call.options.ansi))))
    return 1 if found.problems else 0


def document(found: Diagnosis) -> dict[str, Any]:
    """What --json prints; diagnose.schema.json describes it."""
    libtorch, torch = found.libtorch, found.torch
    return {
        "version": 1,
        "system": found.system._asdict(),
        "driver": found.detected.driver,
        "cuda": found.detected.cuda,
        "source": found.detected.source,
        "gpus": [_gpu(v) for v in found.verdicts],
        "libtorch": libtorch
        and {
            "name": libtorch.name,
            "prefix": str(libtorch.prefix),
            "version": libtorch.arch.version,
            "cuda": libtorch.arch.cuda,
            "architectures": list(libtorch.arch.architectures),
        },
        "torch": torch
        and {
            "python": torch.python,
            "python_version": torch.python_version,
            "folder": torch.folder,
            "version": torch.version,
            "cuda": torch.cuda,
            "hip": torch.hip,
            "architectures": list(torch.architectures),
            "available": torch.available,
            "error": torch.error,
        },
        "problems": [{"text": p.text, "remedies": list(p.remedies)} for p in found.problems],
        "notes": list(found.notes),
    }


def _gpu(verdict: Verdict) -> dict[str, Any]:
    gpu = verdict.gpu
    return {
        "index": gpu.number,
        "name": gpu.name,
        "vendor": gpu.vendor,
        "capability": list(gpu.capability) if gpu.capability else None,
        "target": gpu.target,
        "memory_mib": gpu.memory_mib,
        "mig": gpu.mig,
        "libtorch": verdict.libtorch and verdict.libtorch._asdict(),
        "torch": verdict.torch and verdict.torch._asdict(),
    }


def _lines(found: Diagnosis, style: Style) -> Iterator[str]:
    yield from table(_rows(found), indent=0)
    if found.notes:
        yield ""
        yield from (f"note: {note}" for note in found.notes)
    yield ""
    yield style.bold("Problems") if found.problems else "no problems found"
    for problem in found.problems:
        yield f"- {problem.text}"
        yield from (f"    {remedy}" for remedy in problem.remedies)


def _rows(found: Diagnosis) -> Iterator[tuple[str, str]]:
    system, detected, torch, libtorch = found.system, found.detected, found.torch, found.libtorch
    memory = f", {system.memory_mib / 1024:.1f} GiB" if system.memory_mib else ""
    where = ", in a container" if system.container else ", in WSL" if system.wsl else ""
    yield "system", f"{system.name}, {system.kernel} ({system.machine}), {system.cpus} CPUs{memory}{where}"
    driver = f"{detected.driver} (CUDA {detected.cuda or 'unknown'})" if detected.driver else "none"
    yield "NVIDIA driver", driver
    if not found.verdicts:
        yield "GPUs", "none"
    for at, verdict in enumerate(found.verdicts):
        gpu = verdict.gpu
        size = f", {gpu.memory_mib / 1024:.1f} GiB" if gpu.memory_mib else ""
        number = at if gpu.number is None else gpu.number
        yield f"GPU {number}", f"{gpu.title}{size}{', split by MIG' if gpu.mig else ''}"
        for name, covered in (("libtorch", verdict.libtorch), ("torch", verdict.torch)):
            if covered:
                yield "", f"{_mark(covered)}: {name} {covered.reason}"
    made_with = f" (CUDA {libtorch.arch.cuda or 'none'})" if libtorch else ""
    yield (
        "libtorch",
        f"{libtorch.name}: {libtorch.arch.version}{made_with} in {libtorch.prefix}" if libtorch else "none",
    )
    if torch is None:
        yield "torch", "no Python was found"
    elif torch.version is None:
        yield "torch", f"none in {torch.prefix or torch.python}"
    else:
        yield "torch", f"{torch.version} in {torch.folder} (Python {torch.python_version})"


def _mark(covered: Coverage) -> str:
    return {True: "yes", False: "no", None: "unknown"}[covered.covered]
