"""`fdl setup`: the torch that fits this machine, installed and tried."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from flodl_cli.call import Call
from flodl_cli.errors import CliError, nearest
from flodl_cli.machine.builds import builds, version_key
from flodl_cli.machine.gpus import Detected, detect
from flodl_cli.machine.python_torch import PythonTorch, ask_torch, project_python
from flodl_cli.machine.setup import misfit, steps
from flodl_cli.machine.variants import TORCH, Refusal, Variant, choose
from flodl_cli.processes import run_child
from flodl_cli.terminal import confirm

__all__ = ["setup"]


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Print what would run.")
@click.option("--cpu", is_flag=True, help="A torch for the CPU, whatever GPUs there are.")
@click.option("--cuda", metavar="X.Y", help="A torch made with this CUDA.")
@click.option("--version", metavar="X.Y", help="This release of torch.")
@click.option("--index", metavar="URL", help="Where torch's wheels are, up to the tag (or FLODL_TORCH_INDEX).")
@click.pass_obj
def setup(
    call: Call, yes: bool, dry_run: bool, cpu: bool, cuda: str | None, version: str | None, index: str | None
) -> int:
    """Install the torch that fits this machine into the project's Python, and try it. A torch that fits is kept."""
    if cpu and cuda:
        raise CliError("--cpu and --cuda exclude each other")
    root = call.root or Path.cwd()
    python, env = project_python(root, os.environ)
    print(f"Python: {python}", flush=True)
    detected = detect(os.environ)
    for gpu in detected.gpus:
        print(f"GPU:    {gpu.title}", flush=True)
    for note in detected.notes:
        print(f"fdl: {note}", file=sys.stderr)
    asked = _asked(cpu, cuda, version)
    torch = ask_torch(python, env, train=True)
    reason = misfit(torch, detected, asked.tag if asked else None)
    if reason is None and version and version_key(torch.version or "")[:2] != version_key(version)[:2]:
        reason = f"torch {torch.version} is not {version}"
    if reason is None:
        print(f"torch:  {torch.version} fits; nothing to install")
        return _told(torch, detected)
    if torch.python_version is None:
        raise CliError(f"{python} does not run: {torch.error}")
    print(f"torch:  {reason}")
    return _install(asked or _chosen(detected, version), torch, root, env, index, yes, dry_run or call.options.dry_run)


def _asked(cpu: bool, cuda: str | None, version: str | None) -> Variant | None:
    """The build that the options name."""
    if cpu:
        found = choose((), None, release=version)
        assert isinstance(found, Variant)
        return found
    if cuda is None:
        return None
    made = builds(version)
    for build in made:
        if build.cuda == cuda:
            return Variant(build.version, build.tag, build.cuda, build.architectures, "as asked for")
    if not made:
        choose((), None, release=version)  # names the releases
    which = f"torch {version} has no" if version else "no release of torch in the table has a"
    raise CliError(f"{which} build for CUDA {cuda}.{nearest(cuda, {b.cuda for b in made})}")


def _chosen(detected: Detected, version: str | None) -> Variant:
    choice = choose(detected.gpus, detected.driver, release=version, words=TORCH)
    if isinstance(choice, Refusal):
        raise Impossible(choice)
    print(f"choice: {choice.reason}")
    return choice


class Impossible(CliError):
    """No build fits: nothing about the call was wrong."""

    exit_code = 1

    def __init__(self, refusal: Refusal) -> None:
        super().__init__("\n".join([refusal.reason, *(f"    {remedy}" for remedy in refusal.remedies)]))


def _install(
    variant: Variant,
    torch: PythonTorch,
    root: Path,
    env: Mapping[str, str],
    index: str | None,
    yes: bool,
    dry_run: bool,
) -> int:
    plan, python = steps(torch, variant, root, env, index)
    for step in plan:
        print(step if dry_run else f"run:    {step}", flush=True)
    if dry_run:
        return 0
    confirm(f"{' and '.join(step.does for step in plan)}?", yes)
    for step in plan:
        status = run_child(step.argv, cwd=root, env=env, grace_s=10.0)
        if status:
            if status < 128:
                print(f"fdl: could not {step.does}; --index names another place for torch's wheels", file=sys.stderr)
            return status
    return _told(ask_torch(python, env, train=True), detect(os.environ))


def _told(torch: PythonTorch, detected: Detected) -> int:
    """What the trial of each device gave."""
    if torch.error:
        raise Failed(f"torch {torch.version or ''} cannot be used: {torch.error}")
    for device, error in torch.trained:
        print(f"tried:  {device}: {error or 'a matrix product and a training step'}")
    failed = [device for device, error in torch.trained if error]
    if failed:
        raise Failed(f"torch {torch.version} fails on {', '.join(failed)}; `fdl diagnose` tells more")
    if detected.gpus and torch.cuda and not torch.available:
        raise Failed(f"torch {torch.version} cannot use the GPU here; `fdl diagnose` tells more")
    return 0


class Failed(CliError):
    """Installed, but it does not work."""

    exit_code = 1
