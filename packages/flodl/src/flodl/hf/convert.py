"""Old weights to safetensors, without running what is in them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import warnings
from pathlib import Path

import torch
from torch import Tensor

from flodl.checkpoint.atomic import new_folder
from flodl.errors import CheckpointError
from flodl.hf.sources import needed

__all__ = ["convert"]

_NAME = "pytorch_model.bin"


def convert(folder: str | os.PathLike[str], output: str | os.PathLike[str] | None = None) -> Path:
    """Write the weights in `folder` (`pytorch_model.bin`, or its parts and their index) as safetensors.

    They are read with `weights_only=True`. output: another folder, which then gets everything else of `folder`, too; by
    default `folder` itself, where the old files stay. Tied weights are written once, as transformers does. Raises
    CheckpointError for files that are missing, damaged, or hold more than tensors.
    """
    folder = Path(folder)
    target = folder if output is None else Path(output)
    hub = needed("huggingface_hub")
    state: dict[str, Tensor] = {}
    for file in _files(folder):
        state.update(_read(file))
    if target != folder:
        if target.exists() and any(target.iterdir()):
            raise CheckpointError(f"{target} is not empty: choose another folder.")
        with new_folder(target) as unfinished:
            for file in folder.iterdir():
                if file.is_file() and not file.name.startswith(_NAME.removesuffix(".bin")):
                    shutil.copy2(file, unfinished)
            hub.save_torch_state_dict(state, unfinished)
    else:
        hub.save_torch_state_dict(state, target)
    return target


def _files(folder: Path) -> list[Path]:
    index = folder / f"{_NAME}.index.json"
    names = [_NAME]
    if index.exists():
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"There is no {missing[0]} in {folder}.")
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index} names a file outside of its folder.")
    return [folder / name for name in names]


def _read(file: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")  # what cannot be read is refused
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise CheckpointError(f"{file} is damaged or holds more than weights: {str(error).splitlines()[0]}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"{file} holds {type(state).__name__}, not tensors by name.")
    return state
