"""What was learnt about steps on this machine, kept in the user's cache: a JSON file a model, which `fdl cache` shows.

The cache makes a start faster and nothing else: whatever is wrong with it is said once and otherwise ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import nn

from flodl.graph.structure import structural_hash
from flodl.train.machine import identity
from flodl.train.recipes import Recipe

__all__ = ["Remembered", "folder", "key_of"]

VERSION = 1  # of the files' form; another one is ignored


def folder() -> Path:
    """`FLODL_CACHE`, or `flodl` in the user's cache; steps are in `steps` there."""
    given = os.environ.get("FLODL_CACHE")
    return (Path(given) if given else platformdirs.user_cache_path("flodl", appauthor=False)) / "steps"


def key_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, threads: int, more: str = ""
) -> dict[str, str]:
    """What a choice depends on: model, optimizer, shapes and dtypes of a batch, machine, version, threads."""
    first = next(iter(model.parameters()), None)
    return {
        "model": structural_hash(model)[:16],
        "optimizer": type(optimizer).__name__ + more,
        "batch": str(batch),
        "dtype": str(first.dtype if first is not None else None),
        "device": str(first.device.type if first is not None else None),
        "machine": identity(),
        "torch": torch.__version__,
        "threads": str(threads),
    }


class Remembered:
    """The file of one key. `recipe`: the last choice, None if there is none; `seconds`: of each recipe, as measured."""

    def __init__(self, key: dict[str, str], where: Path | None = None) -> None:
        self.problem = ""
        self.recipe: Recipe | None = None
        self.complete = False
        """Whether everything was tried."""
        self.compile_seconds: float | None = None
        self._key = key
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
        self._path = (folder() if where is None else where) / f"{name}.json"
        self._read()

    def _read(self) -> None:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return
        except (OSError, UnicodeError) as error:
            self.problem = f"the cache {self._path} cannot be read ({error})"
            return
        try:
            document = json.loads(text)
            if document["version"] != VERSION:
                self.problem = f"the cache {self._path} was written by another version of flodl"
                return
            if document["key"] != self._key:
                return  # two keys with one name
            seconds = document["compile_seconds"]
            self.recipe, self.complete = Recipe.parse(document["recipe"]), bool(document["complete"])
            self.compile_seconds = None if seconds is None else float(seconds)
        except Exception as error:  # whatever a damaged file leads to
            self.recipe = None
            self.problem = f"the cache {self._path} is damaged ({type(error).__name__}: {error})"

    def write(self, recipe: Recipe, complete: bool, report: dict[str, Any], compile_seconds: float | None) -> None:
        """Keep a choice and how it came about."""
        self.recipe, self.compile_seconds = recipe, compile_seconds
        document = {
            "version": VERSION,
            "key": self._key,
            "recipe": str(recipe),
            "complete": complete,
            "compile_seconds": compile_seconds,
            "written": time.time(),
            **report,
        }
        temporary = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self._path.parent, prefix=".writing-", delete=False
            ) as file:
                temporary = file.name
                json.dump(document, file, indent=1)
                file.write("\n")
            os.replace(temporary, self._path)  # two processes at once: one of the two files, whole
        except OSError as error:
            self.problem = f"the choice of the step is not remembered: {error}"
            if temporary is not None:
                with suppress(OSError):
                    os.unlink(temporary)
