"""Commands that flodl itself carries out, in the project's Python: fdl does not import it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from flodl_cli.call import Call
from flodl_cli.processes import run_child
from flodl_cli.project import child_environment, find_program

__all__ = ["run_library", "words_of"]

_GRACE_S = 10.0
_PROGRAM = """\
import importlib, os, sys
try:
    main = importlib.import_module(sys.argv[1]).main
except ModuleNotFoundError as error:
    print(f"fdl: this needs flodl in {sys.executable}: pip install flodl ({error})", file=sys.stderr)
    sys.exit(2)
try:
    code = main(sys.argv[2:])
    sys.stdout.flush()
except BrokenPipeError:  # `fdl runs list | head`: nobody reads on
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    code = 141
sys.exit(code)
"""


def run_library(call: Call, module: str, words: Sequence[str]) -> int:
    """The exit code of `main(words)` of a module of flodl, in the project's Python."""
    root = call.root
    env = dict(os.environ) if root is None else child_environment(root, os.environ)
    python = (root and env.get("VIRTUAL_ENV") and find_program("python", root, env)) or sys.executable
    return run_child([python, "-c", _PROGRAM, module, *words], cwd=Path.cwd(), env=env, grace_s=_GRACE_S)


def words_of(context: click.Context) -> Iterator[str]:
    """What was typed, as click understood it."""
    arguments: list[str] = []
    for parameter in context.command.params:
        value = context.params[str(parameter.name)]
        values = [v for v in (value if isinstance(value, tuple) else [value]) if v is not None and v is not False]
        if isinstance(parameter, click.Argument):
            arguments += values
        else:
            for one in values:
                yield parameter.opts[0]
                if one is not True:
                    yield str(one)
    yield from ("--", *arguments) if arguments else ()
