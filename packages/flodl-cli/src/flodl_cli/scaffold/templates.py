"""The files of a new project, from the folder `files`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from flodl_cli.project import MANIFEST
from flodl_cli.scaffold.manifest import with_command
from flodl_cli.scaffold.names import Name

__all__ = ["HF_COMMAND", "HF_NAME", "REQUIRED_BY_HF", "hf_files", "project_files"]

_FILES = Path(__file__).parent / "files"
_HIDDEN = {
    "gitignore": ".gitignore",
    "dockerignore": ".dockerignore",
}  # here without the dot, so that they hide nothing
REQUIRED_BY_HF = "flodl[hf]>=0.1"
HF_NAME = "finetune"  # of the command; `fdl hf` is fdl's own
HF_COMMAND = {"description": "a Hugging Face transformer under the same trainer", "path": "hf"}

_NATIVE = "pip install -r requirements.txt   # once; `fdl setup` installs the torch that fits this machine"
_DOCKER = "docker compose build  # once"
_DOCKER_FILES = "| `Dockerfile`, `compose.yaml` | where the tasks run: the service `dev` |\n"
_HF_FILES = "| `hf/` | a Hugging Face transformer under the same trainer: `fdl finetune` |\n"


def project_files(name: Name, *, docker: bool, hf: bool) -> dict[str, str]:
    """Path and text of every file."""
    files = _DOCKER_FILES * docker + _HF_FILES * hf
    values = {
        "@title@": name.title,
        "@title:json@": json.dumps(name.title, ensure_ascii=False),
        "@slug@": name.slug,
        "@docker@": "docker: dev\n" if docker else "",
        "@prepare@": _DOCKER if docker else _NATIVE,
        "@files@\n": f"{files}\n",
    }
    made = {**_read("project", values), **(_read("docker", values) if docker else {}), **(hf_files() if hf else {})}
    if hf:
        made["requirements.txt"] += REQUIRED_BY_HF + "\n"
        made[MANIFEST] = with_command(made[MANIFEST], HF_NAME, HF_COMMAND)
    return dict(sorted(made.items()))


def hf_files() -> dict[str, str]:
    """The folder `hf`."""
    return _read("hf", {})


def _read(kind: str, values: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for path in sorted((_FILES / kind).rglob("*.in")):
        text = path.read_text(encoding="utf-8")
        for mark, value in values.items():
            text = text.replace(mark, value)
        target = path.relative_to(_FILES / kind).with_suffix("")
        found[str(target.with_name(_HIDDEN.get(target.name, target.name)))] = text
    return found
