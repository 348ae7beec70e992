"""Low-rank adapters, by peft: added, saved alone, merged."""

from __future__ import annotations

import copy
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from flodl.errors import CheckpointError, ConfigError
from flodl.hf.sources import needed

__all__ = ["added", "is_lora", "like", "loaded", "merged", "save"]

_OUTPUTS = ("classifier", "pre_classifier", "score", "qa_outputs")  # new layers, which train whole


@contextmanager
def _without_notes() -> Iterator[None]:
    """Peft warns of what it sets right itself (the layout of GPT-2's layers), of ties (see `merged`), and by calling
    transformers under old names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for text in (
            "fan_in_fan_out",
            "Model has `tie_word",
            "Model with `tie_word",
            "Input and output embeddings",
        ):
            warnings.filterwarnings("ignore", message=text)
        yield


def is_lora(model: nn.Module) -> bool:
    """Whether there are adapters of peft around it."""
    return hasattr(model, "peft_config")


def added(model: nn.Module, task: str, **fields: Any) -> nn.Module:
    """`model` frozen, with adapters that train. fields: of `peft.LoraConfig`."""
    peft = needed("peft")
    if is_lora(model):
        raise ConfigError("The model has adapters already; merge or drop them first.")
    presets: dict[str, Any] = {"target_modules": "all-linear"}
    if task in ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS"):
        presets["exclude_modules"] = list(_OUTPUTS)
    try:
        config = peft.LoraConfig(task_type=task, **{**presets, **fields})
    except TypeError as error:
        raise ConfigError(f"peft.LoraConfig does not take these options: {error}") from error
    with _without_notes():
        return peft.get_peft_model(model, config)  # type: ignore[no-any-return]


def save(model: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Only the adapters, and weights that train with them."""
    if not is_lora(model):
        raise CheckpointError("There are no adapters to save: call add_lora() first, or export the whole model.")
    with _without_notes():
        model.save_pretrained(os.fspath(folder))  # type: ignore[operator]
    return Path(folder)


def loaded(model: nn.Module, folder: str | os.PathLike[str]) -> nn.Module:
    """`model` with the saved adapters, which train."""
    peft = needed("peft")
    try:
        with _without_notes():
            found = peft.PeftModel.from_pretrained(model, os.fspath(folder), is_trainable=True)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{folder} holds no adapters that fit this model: {error}") from error
    return found  # type: ignore[no-any-return]


def merged(model: nn.Module) -> nn.Module:
    """A copy with the adapters added into its weights; `model` stays as it is.

    An adapter of one of two tied weights (the output layer and the embedding of a language model) unties them: the
    embedding must not get what was learnt for the output. The configuration then says so, or loading would tie them again.
    """
    model = copy.deepcopy(model)
    if not is_lora(model):
        return model
    from peft.tuners.tuners_utils import BaseTunerLayer

    owners = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)
    untied = False
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            base = module.get_base_layer()
            weight = getattr(base, "weight", None)
            if weight is not None and owners[id(weight)] > 1:
                base.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
                untied = True
    with _without_notes():
        whole: Any = model.merge_and_unload()  # type: ignore[operator]
    if untied:
        for config in {id(c): c for c in (whole.config, whole.config.get_text_config())}.values():
            config.tie_word_embeddings = False
    else:
        whole.tie_weights()
    return whole  # type: ignore[no-any-return]


def like(model: nn.Module, folder: str | os.PathLike[str]) -> nn.Module:
    """`model` with new adapters of the same shape as the configuration in `folder` says."""
    peft = needed("peft")
    with _without_notes():
        return peft.get_peft_model(model, peft.PeftConfig.from_pretrained(os.fspath(folder)))  # type: ignore[no-any-return]
