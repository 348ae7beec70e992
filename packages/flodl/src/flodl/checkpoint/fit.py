"""Does what a checkpoint holds fit a model and an optimizer: every difference by name, before anything is copied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from flodl.checkpoint.keys import plain_names, tied_groups
from flodl.checkpoint.save import optimizer_names, optimizer_shapes
from flodl.errors import nearest

__all__ = ["LoadReport", "ModelFit", "model_fit", "optimizer_misfits"]

_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """The names in a model's state dict, by what became of them; `unexpected` are in the file only."""

    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    wrong_shape: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelFit:
    """`state`: the entries that fit, under the model's names; `problems`: one sentence for each that does not."""

    state: dict[str, Any]
    report: LoadReport
    problems: list[str]


def model_fit(saved: dict[str, Any], model: nn.Module) -> ModelFit:
    """Compare the state dict of a file with a model."""
    own = model.state_dict()
    # Both sides lose wrapper prefixes by the same rule, so it does not matter which of them was wrapped.
    own_name = {plain: name for name, plain in plain_names(own).items()}
    saved_name = {plain: name for name, plain in plain_names(saved).items()}
    missing = [own_name[n] for n in own_name if n not in saved_name]
    unexpected = [saved_name[n] for n in saved_name if n not in own_name]
    state: dict[str, Any] = {}
    wrong_shape: dict[str, str] = {}
    for name in (n for n in own_name if n in saved_name):
        mine, theirs = own[own_name[name]], saved[saved_name[name]]
        if _shape(mine) == _shape(theirs) or is_lazy(mine):
            state[own_name[name]] = theirs
        else:
            wrong_shape[own_name[name]] = f"{_shape(theirs)} in the file, {_shape(mine)} in the model"
    problems = [
        *_listed("missing in the file", missing, lambda n: nearest(n, unexpected) if unexpected else ""),
        *_listed("not in the model", unexpected, lambda n: nearest(n, missing) if missing else ""),
        *_listed("of another shape", wrong_shape, lambda n: f": {wrong_shape[n]}"),
        *_tie_problems(state, own),
    ]
    report = LoadReport(
        loaded=tuple(state), missing=tuple(missing), unexpected=tuple(unexpected), wrong_shape=tuple(wrong_shape)
    )
    return ModelFit(state=state, report=report, problems=problems)


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _listed(what: str, names: Iterable[str], more: Any) -> list[str]:
    names = list(names)
    lines = [f"{what}: {name!r}{more(name)}" for name in names[:_SHOWN]]
    return lines + ([f"{what}: {len(names) - _SHOWN} more"] if len(names) > _SHOWN else [])


def _tie_problems(state: dict[str, Any], own: dict[str, Any]) -> list[str]:
    """Weights tied on one side only: loading would lose either the tie or one of two different values, silently."""
    problems = []
    tied_here = tied_groups(own)
    for group in tied_groups(state):
        if not any(group <= here for here in tied_here):
            problems.append(f"tied in the file, separate in the model: {_names(group)}. Tie them, then load.")
    for group in tied_here:
        first, *others = [state[n] for n in sorted(group) if n in state] or [None]
        # One memory is equal to itself, also where a diverged run wrote NaN.
        if any(t.data_ptr() != first.data_ptr() and not torch.equal(t, first) for t in others):
            problems.append(f"tied in the model, of different values in the file: {_names(group)}")
    return problems


def _names(group: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(group))


def optimizer_misfits(saved: dict[str, Any] | None, optimizer: Optimizer, model: nn.Module | None) -> list[str]:
    """One sentence for each way in which the saved state is not that of `optimizer`."""
    if saved is None:
        return ["it holds no optimizer state: save(..., optimizer=optimizer) writes it"]
    kind = type(optimizer).__name__
    if saved["type"] != kind:
        return [f"its optimizer is {saved['type']}, this one is {kind}"]
    theirs, mine = saved["state_dict"]["param_groups"], optimizer.param_groups
    if len(theirs) != len(mine):
        return [f"the optimizer has {len(theirs)} parameter groups in the file and {len(mine)} here"]
    problems = [
        f"group {i} of the optimizer has {len(a['params'])} parameters in the file and {len(b['params'])} here"
        for i, (a, b) in enumerate(zip(theirs, mine, strict=True))
        if len(a["params"]) != len(b["params"])
    ]
    if problems:
        return problems
    if model is not None and saved["names"] is not None:
        problems = _differences("", saved["names"], optimizer_names(optimizer, model))
    return problems or _differences("of shape ", saved["shapes"], optimizer_shapes(optimizer))


def _differences(what: str, theirs: list[list[Any]], mine: list[list[Any]]) -> list[str]:
    """What differs between two lists with an entry for each parameter of each group."""
    return [
        f"parameter {j} of the optimizer's group {i} is {what}{x!r} in the file and {what}{y!r} here"
        for i, (a, b) in enumerate(zip(theirs, mine, strict=True))
        for j, (x, y) in enumerate(zip(a, b, strict=True))
        if x != y
    ][:_SHOWN]
