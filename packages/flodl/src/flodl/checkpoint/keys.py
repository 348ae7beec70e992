"""Names in a state dict: without the prefixes of wrappers, compared with those of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from flodl.checkpoint.plain import plain
from flodl.errors import CheckpointError

__all__ = ["model_state", "plain_names", "tied_groups", "unwrapped"]

_COMPILED = "_orig_mod"


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile`, DistributedDataParallel and DataParallel, in any nesting."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(getattr(model, _COMPILED, None), nn.Module):
            model = getattr(model, _COMPILED)
        else:
            return model


def model_state(model: nn.Module | Mapping[str, Any]) -> dict[str, Any]:
    """The state dict of `model` under plain names, tensors detached; tied weights share their storage."""
    if isinstance(model, nn.Module):
        # The wrappers are known, so a child that is really called `module` keeps its name.
        state = {_without_compiled(name): value for name, value in unwrapped(model).state_dict().items()}
    elif isinstance(model, Mapping):
        state = {short: model[name] for name, short in plain_names(model).items()}
    else:
        raise CheckpointError(f"model is of type {type(model).__name__}: give an nn.Module or its state dict.")
    # Not `plain` for tensors: it copies parts of a larger storage, and tied weights would be two.
    return {
        name: value.detach() if isinstance(value, Tensor) else plain(value, f"model[{name!r}]")
        for name, value in state.items()
    }


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Each name -> that name without `torch.compile`'s `_orig_mod.`, and without `module.` where all begin with it."""
    result = {name: _without_compiled(name) for name in names}
    while result and all(short.startswith("module.") for short in result.values()):
        result = {name: short.removeprefix("module.") for name, short in result.items()}
    return result


def _without_compiled(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def tied_groups(state: Mapping[str, Any]) -> set[frozenset[str]]:
    """The names that are one and the same tensor (same memory, shape and strides), in groups of two and more."""
    groups: dict[tuple[Any, ...], set[str]] = {}
    for name, value in state.items():
        if isinstance(value, Tensor) and value.numel() and value.device.type != "meta":
            memory = (value.device, value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
            groups.setdefault(memory, set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}
