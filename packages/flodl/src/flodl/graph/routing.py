"""Routing: all experts, weighted (`Gate`), or one branch (`Switch`)."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # as torch.compiler.disable, which imports the compiler at once
from torch.utils import _pytree

from flodl.errors import StepError
from flodl.graph.dry import is_dry
from flodl.graph.parts import pick
from flodl.graph.samples import rows_of

__all__ = ["ArgmaxSelector", "FixedSelector", "Gate", "SigmoidRouter", "SoftmaxRouter", "Switch"]


class SoftmaxRouter(nn.Module):
    """Weights that sum to one: `softmax(Linear(x))`."""

    def __init__(self, features: int, experts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, experts)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, ..., features) -> (batch, ..., experts)"""
        return torch.softmax(self.linear(x), dim=-1)


class SigmoidRouter(nn.Module):
    """Weights between 0 and 1, each expert's by itself: `sigmoid(Linear(x))`."""

    def __init__(self, features: int, experts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, experts)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, ..., features) -> (batch, ..., experts)"""
        return torch.sigmoid(self.linear(x))


class Gate(nn.Module):
    """A mixture of experts: every expert runs, the router weights their outputs.

    The outputs are combined in one batched matrix product, whatever the number of experts.
    """

    def __init__(self, router: nn.Module, experts: Sequence[nn.Module], takes: dict[str, tuple[str, ...]]) -> None:
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)
        self._takes = takes

    def forward(self, x: Tensor, **named: Any) -> Tensor:
        """x: what the parts take; experts give (*lead, *rest), the router (*lead, experts), the result is (*lead, *rest)."""
        weights = self.router(x, **pick(named, self._takes["router"]))
        outputs = [
            expert(x, **pick(named, self._takes[f"experts.{i}"])) if named else expert(x)
            for i, expert in enumerate(self.experts)
        ]
        if weights.shape[-1] != len(outputs):
            raise StepError(f"the router weights {weights.shape[-1]} experts, there are {len(outputs)}")
        lead, shape = weights.ndim - 1, outputs[0].shape
        stacked = torch.stack(outputs, dim=lead)
        # (*lead, experts, rest); rest is one where the experts give one number for each weight
        stacked = stacked.unsqueeze(-1) if stacked.ndim == lead + 1 else stacked.flatten(lead + 1)
        return torch.matmul(weights.unsqueeze(-2), stacked).reshape(shape)


class ArgmaxSelector(nn.Module):
    """The branch with the largest score `Linear(x)`. A choice has no gradient: the scores learn from what you add to the loss."""

    def __init__(self, features: int, branches: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, branches)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, ..., features) -> (batch, branches) scores; averaged over the dimensions between."""
        scores: Tensor = self.linear(x)
        return scores.flatten(1, -2).mean(dim=1) if scores.ndim > 2 else scores


class FixedSelector(nn.Module):
    """Always the branch `index`."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: Any) -> int:
        return self.index

    def extra_repr(self) -> str:
        return f"index={self.index}"


@_disable_dynamo
def _number(choice: Tensor) -> int:
    """The choice as a number of Python: the one place where a compiled model must wait for a value, so one graph break."""
    return int(choice)


@_disable_dynamo
def _groups(choice: Tensor) -> list[tuple[int, Tensor]]:
    """choice: (batch,) -> each chosen branch with the samples that chose it; a graph break for the same reason."""
    if not len(choice):
        return [(0, choice)]  # an empty batch: the first branch tells what comes out
    present, counts = torch.unique(choice, return_counts=True)
    rows = choice.argsort(stable=True)
    return list(zip(present.tolist(), torch.split(rows, counts.tolist()), strict=True))


class Switch(nn.Module):
    """One branch runs: the one the selector chooses for the batch, or with `per_sample` for each sample.

    The selector gives scores, (batch, branches) floating: the best of their mean over the batch is chosen (per sample:
    each sample's best); or the choice itself: an integer, or integers (batch,) with `per_sample`. Booleans count as
    0 and 1.
    Per sample, the samples of a branch run through it together; a branch that mixes samples (BatchNorm in training
    mode) sees only those. Named values must have one row per sample, or be the same for all.
    """

    def __init__(
        self, selector: nn.Module, branches: Sequence[nn.Module], per_sample: bool, takes: dict[str, tuple[str, ...]]
    ) -> None:
        super().__init__()
        self.selector, self.branches, self.per_sample = selector, nn.ModuleList(branches), per_sample
        self._takes = takes

    def forward(self, x: Any, **named: Any) -> Any:
        """x: what the parts take; (batch, ...) with per_sample"""
        choice = self._answer(x, pick(named, self._takes["selector"]))
        if is_dry():
            return self._try_all(choice, x, named)
        if self.per_sample:
            return self._grouped(choice, x, named)
        if isinstance(choice, Tensor):
            self._check_number(choice, x)
            if choice.is_floating_point():
                choice = choice.reshape(-1, choice.shape[-1]).mean(dim=0).argmax()
            choice = self._checked(_number(choice))
        return self._branch(choice, x, named)

    def _answer(self, x: Any, named: dict[str, Any]) -> int | Tensor:
        """The selector's answer: one integer, or a tensor of integers or of scores (batch, ..., branches)."""
        answer = self.selector(x, **named)
        if not isinstance(answer, Tensor):
            if not isinstance(answer, Integral):
                raise StepError(
                    "a selector answers with an integer, integers (batch,) or scores (batch, branches), "
                    f"this one with {type(answer).__name__}"
                )
            return self._checked(int(answer))
        scores = answer.shape[-1] if answer.is_floating_point() and answer.ndim else 0
        if answer.is_floating_point() and scores != len(self.branches):
            raise StepError(
                f"the selector gives scores {tuple(answer.shape)} for {len(self.branches)} branches: the last dimension "
                "is that of the branches"
            )
        return answer.long() if answer.dtype is torch.bool else answer

    def _try_all(self, choice: int | Tensor, x: Any, named: dict[str, Any]) -> Any:
        """A dry run has no values to choose by: every branch must fit, with one shape, and so must the choice's shape."""
        if isinstance(choice, Tensor):
            self._check_number(choice, x)
        outputs = [self._branch(i, x, named) for i in range(len(self.branches))]
        shapes = [str(_pytree.tree_map_only(Tensor, lambda t: tuple(t.shape), y)) for y in outputs]
        if len(set(shapes)) > 1:
            raise StepError(f"the branches give different shapes: {', '.join(shapes)}")
        return outputs[0]

    def _check_number(self, choice: Tensor, x: Any) -> None:
        """One choice is needed, or one for each sample."""
        scores = choice.is_floating_point()
        if self.per_sample:
            numbers = choice.shape[:-1].numel() if scores else choice.numel()
            if numbers != x.shape[0]:
                raise StepError(
                    f"a per_sample selector chooses once per sample: {x.shape[0]} samples, {tuple(choice.shape)} "
                    f"{'scores' if scores else 'choices'}"
                )
        elif not scores and choice.numel() != 1:
            raise StepError(f"the selector chose {choice.numel()} branches for one batch: use per_sample=True")

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self.branches):
            raise StepError(f"the selector chose branch {index}, there are {len(self.branches)}")
        return index

    def _branch(self, index: int, x: Any, named: dict[str, Any]) -> Any:
        return self.branches[index](x, **pick(named, self._takes[f"branches.{index}"]))

    def _grouped(self, choice: Any, x: Tensor, named: dict[str, Any]) -> Tensor:
        batch = x.shape[0]
        if isinstance(choice, int):
            return self._branch(choice, x, named)  # type: ignore[no-any-return]
        self._check_number(choice, x)
        if choice.is_floating_point():
            choice = choice.argmax(dim=-1)
        groups = [(self._checked(i), rows) for i, rows in _groups(choice.reshape(batch))]
        outputs = [self._branch(i, x.index_select(0, rows), rows_of(named, rows, batch)) for i, rows in groups]
        return torch.cat(outputs).index_select(0, torch.cat([rows for _, rows in groups]).argsort())

    def extra_repr(self) -> str:
        return "per_sample" if self.per_sample else ""
