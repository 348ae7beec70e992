"""`fdl add`: more examples for a project."""

from __future__ import annotations

from pathlib import Path

import click

from flodl_cli.call import Call
from flodl_cli.errors import CliError
from flodl_cli.project import MANIFEST
from flodl_cli.scaffold.manifest import with_command
from flodl_cli.scaffold.templates import HF_COMMAND, HF_NAME, REQUIRED_BY_HF, hf_files
from flodl_cli.scaffold.write import create, replace_text

__all__ = ["add"]


@click.group()
def add() -> None:
    """Add to the project."""


@add.command()
@click.pass_obj
def hf(call: Call) -> None:
    """Add the folder hf, a Hugging Face transformer under the same trainer, and the command `fdl finetune`."""
    manifest = call.loader.load()  # a broken one is told, and left as it is
    root = manifest.root
    command = manifest.commands().get(HF_NAME)
    if command is not None and (command.kind != "path" or command.folder != root / "hf"):
        raise CliError(
            f"this project has a command '{HF_NAME}' already, which is none of a folder hf: {command.node.place.text}"
        )
    done = []
    text = _text(root / MANIFEST)
    if command is None:
        text = with_command(text, HF_NAME, HF_COMMAND)  # before anything is written
    requirements = _required(root / "requirements.txt")
    if not (root / "hf" / MANIFEST).exists():
        create(root / "hf", {name.removeprefix("hf/"): content for name, content in hf_files().items()})
        done.append("hf/")
    if requirements is not None:
        replace_text(root / "requirements.txt", requirements)
        done.append("requirements.txt")
    if command is None:
        replace_text(root / MANIFEST, text)
        done.append(MANIFEST)
    print(
        f"added: {', '.join(done)}; `fdl {HF_NAME}` trains it" if done else "hf is there already; nothing was changed"
    )


def _required(path: Path) -> str | None:
    """The new text of requirements.txt; None where there is no such file or it names it already."""
    if not path.is_file():
        return None
    text = _text(path)
    if any(line.strip().lower().startswith("flodl[hf]") for line in text.splitlines()):
        return None
    return text + ("" if text.endswith("\n") or not text else "\n") + REQUIRED_BY_HF + "\n"


def _text(path: Path) -> str:
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()
