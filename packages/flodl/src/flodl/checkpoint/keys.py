"""Names in a state dict: without the prefixes of wrappers, renamed, and of one part of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.checkpoint.plain import plain
from flodl.errors import CheckpointError, FlowError, nearest
from flodl.graph.paths import find_module

__all__ = [
    "Migration",
    "memory_of",
    "model_state",
    "part_of",
    "plain_name",
    "plain_names",
    "renamed",
    "tied_groups",
    "unwrapped",
]

Migration = Mapping[str, str] | Callable[[str], str | None]
"""Old beginnings of names -> new ones, or a function from a name to its new name (None leaves it out)."""

_COMPILED = "_orig_mod"
_WRAPPERS = (_COMPILED, "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile`, DistributedDataParallel, DataParallel and FSDP, in any nesting."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
            continue
        inner = next((model._modules[name] for name in _WRAPPERS if model._modules.get(name) is not None), None)
        if inner is None:
            return model
        model = inner


def part_of(model: nn.Module, path: str | None) -> nn.Module:
    """The module at the label path `path` (None or empty: all of it), inside its wrappers."""
    root = unwrapped(model)
    try:
        return unwrapped(find_module(root, path or ""))
    except FlowError as error:
        module, wrapped = root, False
        for name in str(path).split("."):  # a wrapper may stand in the middle of the path
            child = module._modules.get(name)
            if child is None:
                break
            module = unwrapped(child)
            wrapped = wrapped or module is not child
        else:
            if wrapped:
                return module
        raise CheckpointError(f"The model has no such part: {error}") from error


def model_state(model: nn.Module | Mapping[str, Any]) -> dict[str, Any]:
    """The state dict of `model` under plain names, tensors detached; tied weights share their storage.

    Raises CheckpointError for what has no values to be saved here: lazy parameters, the meta device, sharded tensors.
    """
    if isinstance(model, nn.Module):
        # The wrappers are known, so a child that is really called `module` keeps its name.
        state = {plain_name(name): value for name, value in unwrapped(model).state_dict().items()}
    elif isinstance(model, Mapping):
        state = {short: model[name] for name, short in plain_names(model).items()}
    else:
        raise CheckpointError(f"model is of type {type(model).__name__}: give an nn.Module or its state dict.")
    for name, value in state.items():
        if isinstance(value, Tensor) and (reason := _without_values(value)):
            raise CheckpointError(f"model[{name!r}] {reason}")
    # Not `plain` for tensors: it copies parts of a larger storage, and tied weights would be two.
    return {
        name: value.detach() if isinstance(value, Tensor) else plain(value, f"model[{name!r}]")
        for name, value in state.items()
    }


def _without_values(tensor: Tensor) -> str:
    if is_lazy(tensor):
        return "is lazy and has no values yet: run a batch through the model first."
    if tensor.device.type == "meta":
        return "is on the meta device, without values."
    if hasattr(tensor, "full_tensor"):
        return "is sharded over several processes: use fl.checkpoint.save_sharded in all of them."
    return ""


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Each name -> that name without the wrappers' parts, and without `module.` where all begin with it."""
    result = {name: plain_name(name) for name in names}
    while result and all(short.startswith("module.") for short in result.values()):
        result = {name: short.removeprefix("module.") for name, short in result.items()}
    return result


def plain_name(name: str) -> str:
    """The name without what `torch.compile`, FSDP and activation checkpointing put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def renamed(names: Iterable[str], migrate: Migration | None, *, strict: bool = True) -> dict[str, str]:
    """Each name -> its name after `migrate`; the longest beginning that fits counts. What maps to None is left out.

    Raises CheckpointError for two names that become one, and with `strict` for a beginning that no name has.
    """
    names = list(names)
    if migrate is None:
        return {name: name for name in names}
    result = {}
    used = set()
    for name in names:
        if isinstance(migrate, Mapping):
            old = max((old for old in migrate if name.startswith(old)), key=len, default=None)
            used.add(old)
            new = name if old is None else migrate[old] + name[len(old) :]
        else:
            new = migrate(name)  # type: ignore[assignment]
            if new is not None and not isinstance(new, str):
                raise CheckpointError(f"migrate({name!r}) gave {new!r}: it must give a name, or None to leave it out.")
        if new is not None:
            result[name] = new
    if isinstance(migrate, Mapping) and strict and (unused := [old for old in migrate if old not in used]):
        raise CheckpointError(f"migrate: no name in the file begins with {unused[0]!r}.{nearest(unused[0], names)}")
    seen: dict[str, str] = {}
    for name, new in result.items():
        if new in seen:
            raise CheckpointError(f"migrate gives {seen[new]!r} and {name!r} the same name {new!r}.")
        seen[new] = name
    return result


def memory_of(tensor: Tensor) -> tuple[Any, ...] | None:
    """Equal for two tensors exactly if they are one and the same (memory, shape, strides, type); None without memory."""
    if tensor.layout != torch.strided or not tensor.numel() or tensor.device.type == "meta":
        return None
    return (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def tied_groups(state: Mapping[str, Any]) -> set[frozenset[str]]:
    """The names that are one and the same tensor, in groups of two and more."""
    groups: dict[tuple[Any, ...], set[str]] = {}
    for name, value in state.items():
        if isinstance(value, Tensor) and (memory := memory_of(value)) is not None:
            groups.setdefault(memory, set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}
