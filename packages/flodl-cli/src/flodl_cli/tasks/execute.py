"""Running planned steps, or printing them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flodl_cli.errors import CliError
from flodl_cli.processes import run_child
from flodl_cli.project import find_program
from flodl_cli.tasks.docker import in_service
from flodl_cli.tasks.model import Step

__all__ = ["execute", "printed"]


def execute(steps: Sequence[Step], root: Path) -> int:
    """Runs the steps one after the other up to the first that fails; its exit code."""
    for step in steps:
        with _configuration(step) as config_file:
            argv = _argv(step, root, config_file)
            env = {**step.env, "FDL_CONFIG": config_file} if config_file and not step.docker else step.env
            program = _program(argv[0], step)
            status = run_child(
                (program, *argv[1:]), cwd=root if step.docker else step.cwd, env=env, grace_s=step.grace_s
            )
        if status:
            return status
    return 0


def printed(steps: Sequence[Step], root: Path) -> Iterator[str]:
    """The steps as lines for a shell."""
    for step in steps:
        yield f"# {step.title}"
        if step.config:
            yield f"# FDL_CONFIG: {json.dumps(step.config['values'], ensure_ascii=False)}"
        variables = "".join(f"{name}={shlex.quote(step.env[name])} " for name in step.added)
        config_file = "$FDL_CONFIG" if step.config else ""
        cwd = root if step.docker else step.cwd
        yield f"(cd {shlex.quote(str(cwd))} && {variables}{shlex.join(_argv(step, root, config_file))})"


def _argv(step: Step, root: Path, config_file: str) -> tuple[str, ...]:
    if not step.docker:
        return step.argv
    folder = os.path.relpath(step.cwd, root)
    return in_service(step.docker, step.argv, folder=folder, names=step.added, config_file=config_file)


def _program(name: str, step: Step) -> str:
    found = find_program(name, step.cwd, step.env)
    if found is None:
        raise CliError(f"{step.title}: there is no program '{name}'" + ("" if "/" in name else " on PATH"))
    return found


@contextmanager
def _configuration(step: Step) -> Iterator[str]:
    """The file that FDL_CONFIG names, while the step runs; an empty name when there is nothing to tell."""
    if not step.config:
        yield ""
        return
    import tempfile

    descriptor, name = tempfile.mkstemp(prefix="fdl-config-", suffix=".json")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(step.config, file, ensure_ascii=False, indent=1)
        os.chmod(name, 0o644)  # a container's user reads it, too
        sys.stdout.flush()
        yield name
    finally:
        os.unlink(name)
