"""`fdl init NAME`: a new project that trains and tests at once."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from flodl_cli.errors import CliError
from flodl_cli.machine.python_torch import missing_modules, project_python
from flodl_cli.project import find_program
from flodl_cli.scaffold.names import parse_name
from flodl_cli.scaffold.templates import project_files
from flodl_cli.scaffold.write import create

__all__ = ["init"]


@click.command()
@click.argument("name")
@click.option("--docker", "form", flag_value="docker", help="The tasks run in a container.")
@click.option("--native", "form", flag_value="native", help="The tasks run with the project's Python (without either).")
@click.option("--with-hf", is_flag=True, help="With a Hugging Face transformer as a second example.")
def init(name: str, form: str | None, with_hf: bool) -> None:
    """Make the folder NAME: a flow model, real images, fdl train and fdl test."""
    docker = form == "docker"
    called = parse_name(name)
    files = project_files(called, docker=docker, hf=with_hf)
    create(called.folder, files)
    print(f"made {called.folder}: {', '.join(files)}")
    for note in _notes(called.folder, docker=docker, hf=with_hf):
        print(f"fdl: {note}", file=sys.stderr)
    first = f"cd {shlex.quote(name)} && " if name not in (".", "./") else ""
    build = "docker compose build && " if docker else ""
    print(f"next: {first}{build}fdl train")


def _notes(folder: Path, *, docker: bool, hf: bool) -> Iterator[str]:
    """What is missing for `fdl train`."""
    if docker:
        if find_program("docker", folder, os.environ) is None:
            yield "docker is not on PATH: the tasks run in a container, so install it first"
        return
    try:
        python, env = project_python(folder.absolute(), os.environ)
    except CliError as error:
        yield str(error)
        return
    missing = missing_modules(python, env, ("flodl", *(["transformers"] if hf else [])))
    if missing:
        yield f"{python} has no {' and no '.join(missing)}: pip install -r requirements.txt"
