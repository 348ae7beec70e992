"""An optimizer's state by the names of its parameters, so that their order in it does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint.keys import plain_name, unwrapped
from flodl.errors import CheckpointError, nearest

__all__ = ["OptimizerFit", "named_state", "optimizer_fit", "optimizer_state", "put_optimizer"]

_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class OptimizerFit:
    """`state_dict`: what the optimizer loads. `missing`: its parameters that the file has no entry for; `unexpected`: the
    file's that it has not; `problems`: sentences; those in `fatal` cannot be left aside."""

    state_dict: dict[str, Any]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    fatal: tuple[str, ...] = ()


def optimizer_state(optimizer: Optimizer, model: nn.Module | Mapping[str, Any]) -> dict[str, Any]:
    """Plain but for its tensors, which are the optimizer's own.

    `groups`: the settings of each group, with the names (`params`) and `shapes` of its parameters. `state`: name -> what
    the optimizer keeps for it. `named`: whether the names are the model's or only places.

    Raises CheckpointError for an optimizer whose state is spread over processes.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    if any(type(m).__name__ == "FullyShardedDataParallel" and getattr(m, "world_size", 1) > 1 for m in modules):
        raise CheckpointError(
            "FSDP keeps the optimizer's state in parts: use fl.checkpoint.save_sharded in all processes."
        )
    return named_state(
        optimizer.state_dict(),
        kind=type(optimizer).__name__,
        names=_names(optimizer, model) if isinstance(model, nn.Module) else None,
        shapes=_shapes(optimizer),
    )


def named_state(
    state_dict: dict[str, Any], *, kind: str, names: list[list[str | None]] | None, shapes: list[list[list[int]]]
) -> dict[str, Any]:
    """From torch's form, in which parameters are numbers."""
    groups: list[dict[str, Any]] = []
    name_of: dict[Any, str] = {}
    for i, group in enumerate(state_dict["param_groups"]):
        own = [(names[i][j] if names else None) or f"{i}.{j}" for j in range(len(group["params"]))]
        name_of.update(zip(group["params"], own, strict=True))
        groups.append({**group, "params": own, "shapes": shapes[i]})
    state = {name_of.get(key, key): value for key, value in state_dict["state"].items()}
    return {"type": kind, "named": names is not None, "groups": groups, "state": state}


def optimizer_fit(
    saved: dict[str, Any] | None, optimizer: Optimizer, model: nn.Module | None, rename: Mapping[str, str] | None = None
) -> OptimizerFit:
    """Match a saved state with `optimizer`: by name where both sides have names, else by place.

    rename: names in the file -> names in the model.
    """
    if saved is None:
        return OptimizerFit(
            state_dict={}, fatal=("it holds no optimizer state: save(..., optimizer=optimizer) writes it",)
        )
    kind = type(optimizer).__name__
    if saved["type"] != kind:
        return OptimizerFit(state_dict={}, fatal=(f"its optimizer is {saved['type']}, this one is {kind}",))
    theirs, shapes = saved["groups"], _shapes(optimizer)
    if len(theirs) != len(shapes):
        count = f"the optimizer has {len(theirs)} parameter groups in the file and {len(shapes)} here"
        return OptimizerFit(state_dict={}, fatal=(count,))
    names = _names(optimizer, model) if model is not None and saved["named"] else None
    place: dict[str, tuple[str, int, list[int]]] = {}  # name on this side -> the file's name, its group, its shape
    for i, group in enumerate(theirs):
        for j, name in enumerate(group["params"]):
            here = (rename or {}).get(name, name) if names else f"{i}.{j}"
            place[here] = (name, i, list(group["shapes"][j]))
    known = {name for name, _, _ in place.values()}
    state: dict[Any, Any] = {key: value for key, value in saved["state"].items() if key not in known}
    problems: list[str] = []
    missing: list[str] = []
    groups, number = [], 0
    for i, group in enumerate(optimizer.state_dict()["param_groups"]):
        for j in range(len(group["params"])):
            name = (names[i][j] if names else None) or f"{i}.{j}"
            label = f"parameter {name!r}" if names else f"parameter {j}"
            found = place.pop(name, None)
            if found is None:
                missing.append(name)
                problems.append(f"{label} of the optimizer's group {i} is missing in the file")
            elif found[2] != shapes[i][j]:
                missing.append(name)
                shape = f"{found[2]} in the file and of shape {shapes[i][j]} here"
                problems.append(f"{label} of the optimizer's group {i} is of shape {shape}")
            else:
                if found[1] != i:
                    problems.append(
                        f"{label} is in group {found[1]} of the optimizer in the file and in group {i} here"
                    )
                if found[0] in saved["state"]:
                    state[number] = saved["state"][found[0]]
            number += 1
        settings = {k: v for k, v in theirs[i].items() if k not in ("params", "shapes", "param_names")}
        groups.append({**group, **settings})
    unexpected = list(place)
    problems += [
        f"parameter {name!r} of group {i} in the file is not in this optimizer{nearest(name, missing) if missing else ''}"
        for name, (_, i, _) in place.items()
    ]
    if len(problems) > _SHOWN:
        problems = [*problems[:_SHOWN], f"{len(problems) - _SHOWN} more differences between the optimizers"]
    return OptimizerFit(
        state_dict={"state": state, "param_groups": groups},
        missing=tuple(missing),
        unexpected=tuple(unexpected),
        problems=tuple(problems),
    )


def put_optimizer(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Load torch's form, and keep what `Optimizer.load_state_dict` changes: types other than the parameter's, strides."""
    optimizer.load_state_dict(state_dict)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, saved in state_dict["state"].items():
        if not isinstance(number, int) or not isinstance(saved, dict):
            continue
        parameter = parameters[number]
        state = optimizer.state[parameter]
        for key, value in saved.items():
            if not isinstance(value, Tensor) or key == "step":
                continue
            if value.shape == parameter.shape:  # in the parameter's memory format, which the update is fastest in
                state[key] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
            elif state[key].dtype != value.dtype:
                state[key] = value.to(parameter.device)


def _shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(parameter.shape) for parameter in group["params"]] for group in optimizer.param_groups]


def _names(optimizer: Optimizer, model: nn.Module) -> list[list[str | None]]:
    """For each parameter group the names of its parameters in `model`; None for a parameter of something else."""
    parameters = dict(unwrapped(model).named_parameters())
    by_id = {id(parameter): plain_name(name) for name, parameter in parameters.items()}
    return [[by_id.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]
