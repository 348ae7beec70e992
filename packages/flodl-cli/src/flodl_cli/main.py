"""Entry point of `fdl`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from flodl_cli.errors import CliError

__all__ = ["main"]


def main() -> None:
    """Runs `fdl` with the arguments of this process and ends it."""
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """One call; its exit code."""
    try:
        return dispatch(argv)
    except CliError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def dispatch(argv: Sequence[str]) -> int:
    from flodl_cli.config.source import read_source
    from flodl_cli.config.yaml import parse_yaml
    from flodl_cli.processes import run_child
    from flodl_cli.project import MANIFEST, child_environment, find_root
    from flodl_cli.tasks.model import Manifest
    from flodl_cli.tasks.plan import plan

    def load(folder: Path, root: Path, words: tuple[str, ...]) -> Manifest:
        path = folder / MANIFEST
        return Manifest(folder, root, parse_yaml(read_source(path, os.path.relpath(path, root))), words)

    root = find_root(Path.cwd(), os.environ)
    if root is None:
        raise CliError(f"no {MANIFEST} here or in a folder above")
    manifest = load(root, root, ())
    if not argv or argv[0] in ("-h", "--help"):
        print("Commands:")
        for name, command in manifest.commands().items():
            print(f"  {name:14} {command.description}")
        return 0
    for step in plan(manifest, argv, load, child_environment(root, os.environ)):
        if shutil.which(step.argv[0], path=step.env.get("PATH")) is None:
            raise CliError(f"{step.title}: no program '{step.argv[0]}' on PATH")
        program = shutil.which(step.argv[0], path=step.env.get("PATH")) or step.argv[0]
        status = run_child((program, *step.argv[1:]), cwd=step.cwd, env=step.env, grace_s=step.grace_s)
        if status:
            return status
    return 0
