"""Is an exported folder whole: its names, its ties, and its logits against where it came from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flodl.checkpoint.keys import tied_groups
from flodl.errors import CheckpointError
from flodl.hf import lora
from flodl.hf.export import open_checkpoint
from flodl.hf.head import Head
from flodl.hf.sources import needed, pretrained

__all__ = ["Verified", "verify"]


@dataclass(frozen=True, kw_only=True)
class Verified:
    """missing: names that the model has and the files have not (tied ones aside). unexpected: the other way round.
    mismatched: of another shape. ties: names that share their values. largest_difference: of all logits from the
    source's, None without one. tolerance: what of it is let pass."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]
    ties: tuple[tuple[str, ...], ...]
    keys: int
    largest_difference: float | None
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        far = self.largest_difference is not None and not self.largest_difference <= self.tolerance
        return not (self.missing or self.unexpected or self.mismatched or far)

    def __str__(self) -> str:
        lines = [f"names: {self.keys} in the files, {len(self.missing)} missing, {len(self.unexpected)} unexpected"]
        for what in ("missing", "unexpected", "mismatched"):
            lines += [f"  {what}: {name}" for name in getattr(self, what)]
        lines += [f"tied: {' = '.join(group)}" for group in self.ties] or ["tied: none"]
        if self.largest_difference is not None:
            lines.append(
                f"largest difference of the logits: {self.largest_difference:.3g} (allowed {self.tolerance:g})"
            )
        return "\n".join([*lines, "passed" if self.passed else "FAILED"])


def verify(
    folder: str | os.PathLike[str],
    against: Head | str | os.PathLike[str] | None = None,
    *,
    tolerance: float = 1e-5,
) -> Verified:
    """Load an exported folder as transformers does and compare it.

    against: the head, run, checkpoint or other exported folder that it must agree with on tokens drawn at random. Raises
    CheckpointError where one of the two cannot be loaded.
    """
    model, info = _load(Path(folder))
    far = None
    if against is not None:
        far = _largest_difference(model, _other(against))
    names = _names(Path(folder))
    return Verified(
        missing=tuple(sorted(info["missing_keys"])),
        unexpected=tuple(sorted(info["unexpected_keys"])),
        mismatched=tuple(sorted(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"])),
        ties=tuple(sorted(tuple(sorted(group)) for group in tied_groups(model.state_dict()))),
        keys=len(names),
        largest_difference=far,
        tolerance=tolerance,
    )


def _load(folder: Path) -> tuple[Any, dict[str, Any]]:
    transformers = needed("transformers")
    config = pretrained(transformers.AutoConfig, folder)
    kind = (config.architectures or [None])[0]
    factory = getattr(transformers, str(kind), None)
    if factory is None:
        raise CheckpointError(f"{folder / 'config.json'} names the architecture {kind!r}, which transformers has not.")
    model, info = pretrained(factory, folder, output_loading_info=True)
    return model, info


def _other(against: Head | str | os.PathLike[str]) -> Any:
    if isinstance(against, Head):
        return lora.merged(against.model).cpu()
    if (Path(against) / "config.json").exists():
        return _load(Path(against))[0]
    return lora.merged(open_checkpoint(against).model)


@torch.inference_mode()
def _largest_difference(one: Any, other: Any) -> float:
    generator = torch.Generator().manual_seed(0)
    size = min(one.config.vocab_size, other.config.vocab_size)
    ids = torch.randint(size, (2, 16), generator=generator)
    pad = one.config.pad_token_id
    if pad is not None:  # some models find the end of a text by it
        ids[ids == pad] = (pad + 1) % size
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    results = [model.eval()(**inputs).to_tuple() for model in (one, other)]
    differences = [_far(a, b) for a, b in zip(*results, strict=True) if isinstance(a, Tensor)]
    return max(differences)


def _far(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        raise CheckpointError(
            f"The outputs have the shapes {tuple(one.shape)} and {tuple(other.shape)}: another model."
        )
    return float((one.double() - other.double()).abs().max())


def _names(folder: Path) -> set[str]:
    from safetensors import safe_open

    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            names.update(opened.keys())
    for index in folder.glob("*.bin.index.json"):
        names.update(json.loads(index.read_text("utf-8"))["weight_map"])
    return names
