"""Runs the plan of a build. What is done stays done: the same call goes on where the last one stopped."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from flodl_cli.libtorch.arch import tag_of
from flodl_cli.libtorch.build import DOCKERFILE, TOOLKIT, Plan, Step
from flodl_cli.libtorch.errors import BuildError
from flodl_cli.libtorch.metadata import inspect
from flodl_cli.libtorch.store import Installed, Store
from flodl_cli.libtorch.toolkit import nvcc_version
from flodl_cli.machine.architectures import parse_list
from flodl_cli.processes import run_child

__all__ = ["build"]

_GRACE_S = 10.0


def build(store: Store, plan: Plan, *, activate: bool) -> Installed | int:
    """The finished variant; or the exit code of a signal that stopped it. Raises BuildError with the step that failed."""
    work = plan.work
    work.mkdir(parents=True, exist_ok=True)
    with _alone(work):
        if plan.image:
            (work / "container").mkdir(exist_ok=True)
            (work / "container" / "Dockerfile").write_text(DOCKERFILE, encoding="utf-8")
        for number, step in enumerate(plan.steps):
            status = _run(plan.steps, number, work)
            if status >= 128:
                return status
            if status != 0:
                again = f"the same call goes on from this step ({work})"
                raise BuildError(f"{step.title} ended with exit code {status}, its output is above; {again}")
        return _installed(store, plan, work, activate)


def _run(steps: Sequence[Step], number: int, work: Path) -> int:
    """Runs one step unless the very same was done before; what follows it is then to be done anew."""
    step, count = steps[number], f"{number + 1}/{len(steps)}"
    done, command = _mark(work, step), json.dumps([step.argv, {**step.env, "MAX_JOBS": ""}])
    same = done.exists() and done.read_text(encoding="utf-8") == command
    if same and not step.always:
        print(f"fdl: {count} {step.title}: done before", file=sys.stderr, flush=True)
        return 0
    for later in () if same else steps[number:]:
        _mark(work, later).unlink(missing_ok=True)
    if step.makes and (work / step.makes).exists():
        shutil.rmtree(work / step.makes)
    print(f"fdl: {count} {step.title}", file=sys.stderr, flush=True)
    env = {**os.environ, **step.env}
    with (work / step.told).open("wb") if step.told else nullcontext() as told:
        status = run_child(step.argv, cwd=work, env=env, grace_s=_GRACE_S, stdout=told)
    if status == 0:
        done.write_text(command, encoding="utf-8")
    return status


def _mark(work: Path, step: Step) -> Path:
    return work / f".done-{step.title}"


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    with (work / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"fdl: another fdl builds in {work}: waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed(store: Store, plan: Plan, work: Path, activate: bool) -> Installed:
    """Takes over what the build made, if it is what was planned."""
    prefix = work / "out" / "torch"
    cuda = nvcc_version((work / TOOLKIT).read_text(encoding="utf-8"))
    (prefix / "build-version").write_text(f"{plan.version}+{tag_of(cuda)}\n", encoding="utf-8")
    arch = inspect(prefix, "build")
    has = {(a.capability, a.ptx) for a in parse_list(arch.architectures)}
    lacking = [str(a) for a in plan.architectures if (a.capability, a.ptx) not in has]
    if lacking:
        raise BuildError(
            f"the build ended, but its libraries have code for {' '.join(arch.architectures) or 'no GPU'}, "
            f"not for {' '.join(lacking)}: not installed ({work})"
        )
    with store.changing():
        name, _ = store.name_for("builds", plan.name, arch)
        store.check_free(name)  # before the build is moved to where the next call sweeps
        staged = store.staging()
        prefix.rename(staged / "torch")
        variant = store.install(staged, name, arch)
        if activate:
            store.activate(variant)
    shutil.rmtree(work)
    if not any(work.parent.iterdir()):
        work.parent.rmdir()
    return variant
