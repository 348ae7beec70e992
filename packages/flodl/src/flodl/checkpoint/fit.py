"""Does what a checkpoint holds fit a model: every difference by name, before anything is copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.checkpoint.keys import plain_name, tied_groups
from flodl.errors import nearest

__all__ = ["LoadReport", "ModelFit", "mismatches", "model_fit"]

_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """The names in a model's state dict, by what became of them; `unexpected` are in the file only. `print` shows it.

    wrong_shape: name -> what is where. structure_differs: all may fit, but the model is built of other kinds of modules, or
    in another topology, than the saved one. optimizer_missing: parameters whose optimizer state starts anew.
    """

    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    wrong_shape: Mapping[str, str] = field(default_factory=dict)
    structure_differs: bool = False
    optimizer_missing: tuple[str, ...] = ()
    optimizer_unexpected: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every name on both sides was loaded."""
        return not (
            self.missing or self.unexpected or self.wrong_shape or self.optimizer_missing or self.optimizer_unexpected
        )

    def __str__(self) -> str:
        lines = [
            f"loaded: {len(self.loaded)} of {len(self.loaded) + len(self.missing) + len(self.wrong_shape)} entries"
        ]
        lines += [f"missing in the file: {name}" for name in self.missing]
        lines += [f"not in the model: {name}" for name in self.unexpected]
        lines += [f"of another shape: {name}: {what}" for name, what in self.wrong_shape.items()]
        lines += [f"no optimizer state in the file: {name}" for name in self.optimizer_missing]
        lines += [f"optimizer state of a parameter that is not here: {name}" for name in self.optimizer_unexpected]
        if self.structure_differs:
            lines.append("the saved model was of another structure")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class ModelFit:
    """`state`: the entries that fit, under the model's names; `problems`: one sentence for each that does not."""

    state: dict[str, Any]
    report: LoadReport
    problems: list[str]


def model_fit(saved: Mapping[str, Any], model: nn.Module) -> ModelFit:
    """Compare the state dict of a file, under plain names, with a model."""
    own = model.state_dict()
    own_name = {plain_name(name): name for name in own}
    missing = [own_name[n] for n in own_name if n not in saved]
    unexpected = [n for n in saved if n not in own_name]
    state: dict[str, Any] = {}
    wrong_shape: dict[str, str] = {}
    for name in (n for n in own_name if n in saved):
        mine, theirs = own[own_name[name]], saved[name]
        if is_lazy(mine) or _shape(mine) == _shape(theirs):
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
        loaded=tuple(state), missing=tuple(missing), unexpected=tuple(unexpected), wrong_shape=wrong_shape
    )
    return ModelFit(state=state, report=report, problems=problems)


def mismatches(
    theirs: Mapping[str, list[Any]], mine: Mapping[str, list[Any]]
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """Missing, unexpected and wrongly shaped names, from what `manifest.describe` gives of both sides."""
    missing = tuple(name for name in mine if name not in theirs)
    unexpected = tuple(name for name in theirs if name not in mine)
    shapes = {n: (tuple(theirs[n][1]), tuple(mine[n][1])) for n in mine if n in theirs}
    wrong = {n: f"{a} in the file, {b} in the model" for n, (a, b) in shapes.items() if a != b}
    return missing, unexpected, wrong


def _shape(value: Any) -> Any:
    """What must be equal: the shape, and whether the numbers are complex."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"complex {tuple(value.shape)}" if value.is_complex() else tuple(value.shape)


def _listed(what: str, names: Iterable[str], more: Callable[[str], str]) -> list[str]:
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
