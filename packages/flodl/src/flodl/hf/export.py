"""A folder that `transformers.AutoModelFor...` loads, from a head or from a training's checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from flodl import checkpoint
from flodl.checkpoint.atomic import new_folder
from flodl.errors import CheckpointError
from flodl.hf import lora
from flodl.hf.head import Head
from flodl.hf.sources import needed
from flodl.train.resuming import CHECKPOINTS, locate

__all__ = ["describe", "export", "open_checkpoint"]

_ABOUT = "flodl_head.json"


def export(source: Head | str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Write weights, configuration, labels, generation settings and tokenizer to `folder`, whole or not at all.

    source: a head, or a run's folder or checkpoint of a training by `Trainer.setup_head`. Adapters are merged into the
    weights. Raises CheckpointError where `folder` holds something else, or `source` cannot be read.
    """
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and ((folder / "config.json").exists() or not any(folder.iterdir()))):
        raise CheckpointError(f"{folder} exists and holds no exported model: choose another folder.")
    head = source if isinstance(source, Head) else open_checkpoint(source)
    model: Any = lora.merged(head.model)
    model.config.architectures = [type(model).__name__]
    with new_folder(folder) as unfinished:
        model.save_pretrained(unfinished)
        head.tokenizer.save_pretrained(unfinished)
    return folder


def open_checkpoint(path: str | os.PathLike[str]) -> Head:
    """The head of a training by `Trainer.setup_head`, from its run's folder (the newest checkpoint) or one checkpoint.

    Raises CheckpointError where there is none, or the run does not say what head it trained.
    """
    file = locate(Path(path))
    run = next((p for p in (file, *file.parents[:2]) if (p / "head" / _ABOUT).exists()), None)
    if run is None:
        raise CheckpointError(
            f"{file} is of no run with a folder `head`, which Trainer.setup_head writes: keep a checkpoint in its run's "
            f"folder (RUN/{CHECKPOINTS}/...), or load it into a head with fl.checkpoint.load and export that."
        )
    transformers = needed("transformers")
    from flodl import hf

    folder = run / "head"
    about = json.loads((folder / _ABOUT).read_text("utf-8"))
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = getattr(transformers, about["head"]).from_config(config)
    if (folder / "generation_config.json").exists():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
    head: Head = getattr(hf, about["head"])(model, tokenizer, max_length=about["max_length"])
    if (folder / "adapter_config.json").exists():
        head.model = lora.like(model, folder)
    checkpoint.load(file, model=head.model)
    return head


def describe(head: Head, folder: Path) -> None:
    """Write all of a head but its weights."""
    model: Any = head.model
    kind = next(cls.__name__ for cls in type(head).__mro__ if cls.__module__.startswith("flodl.hf."))
    with new_folder(folder) as unfinished:
        head.config.save_pretrained(unfinished)
        head.tokenizer.save_pretrained(unfinished)
        if lora.is_lora(model):
            model.peft_config[model.active_adapter].save_pretrained(unfinished)
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.save_pretrained(unfinished)
        about = {"head": kind, "max_length": head.max_length}
        (unfinished / _ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
