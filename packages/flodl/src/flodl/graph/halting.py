"""When a loop ends: by a threshold, or by a learned decision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flodl.graph.dry import is_dry
from flodl.graph.parts import pick
from flodl.graph.traces import Trace

__all__ = ["AdaptiveLoop", "LearnedHalt", "ThresholdHalt"]


class ThresholdHalt(nn.Module):
    """True for the samples whose Euclidean norm is above `threshold` (below it with `above=False`)."""

    def __init__(self, threshold: float, *, above: bool = True) -> None:
        super().__init__()
        self.threshold, self.above = threshold, above

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, ...) -> (batch,) of booleans"""
        norm: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
        return norm > self.threshold if self.above else norm < self.threshold

    def extra_repr(self) -> str:
        return f"{'above' if self.above else 'below'} {self.threshold}"


class LearnedHalt(nn.Module):
    """A halting probability per sample, for `until_cond`: adaptive computation time (Graves 2016, arXiv:1603.08983).

    A sample halts when its probabilities add up to `1 - epsilon`. The loop's result is the mean of the sample's states
    weighted with the probabilities (the last one gets the remainder), which is how the decision gets a gradient.
    `ponder_cost` of the last run, (batch,), is the paper's: iterations plus remainder; add `weight * halt.ponder_cost.mean()`
    to the loss to pay for iterations.
    """

    ponder_cost: Tensor | None

    def __init__(self, features: int, *, epsilon: float = 0.01) -> None:
        super().__init__()
        self.features, self.epsilon = features, epsilon
        self.linear = nn.Linear(features, 1)
        # The paper starts with a positive bias, that is with few iterations.
        nn.init.constant_(self.linear.bias, 1.0)
        self.ponder_cost = None

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, ..., features) -> (batch,) probabilities; the features are averaged over the dimensions between."""
        pooled = x.flatten(1, -2).mean(dim=1) if x.ndim > 2 else x
        return torch.sigmoid(self.linear(pooled)).squeeze(-1)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no history: tensors with one can be neither copied nor pickled.
        return {**self.__dict__, "ponder_cost": None}

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}"


class AdaptiveLoop(nn.Module):
    """The loop of `until_cond(LearnedHalt(...), max)`: each sample halts by itself and the halting learns.

    The result of a sample is that of the sample alone: after it has halted, its weight is zero.
    """

    condition: LearnedHalt

    def __init__(
        self,
        body: nn.Module,
        condition: LearnedHalt,
        max: int,
        takes: dict[str, tuple[str, ...]],
        emits: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.body, self.condition, self.max, self.emits = body, condition, max, emits
        self._takes = takes
        self._trace: Trace | None = None

    def forward(self, x: Tensor, **named: Any) -> Tensor:
        """x: (batch, ..., features) -> the same"""
        if self._trace is None:
            return self._run(x, named)
        with self._trace.run():
            return self._run(x, named)

    def _run(self, x: Tensor, named: dict[str, Any]) -> Tensor:
        body_named = pick(named, self._takes["body"])
        spent = x.new_zeros(x.shape[0])  # the probability that each sample has used up
        iterations, remainder = torch.zeros_like(spent), torch.zeros_like(spent)
        running = torch.ones_like(spent, dtype=torch.bool)
        mean: Tensor | None = None
        for iteration in range(self.max):
            x = self.body(x, **body_named)
            p = self.condition(x)
            last = running & ((spent + p >= 1 - self.condition.epsilon) | (iteration == self.max - 1))
            left = 1 - spent
            weight = torch.where(last, left, torch.where(running, p, torch.zeros_like(p)))
            remainder = torch.where(last, left, remainder)
            iterations = iterations + running
            # `where`, not a product alone: a state that overflows after its sample has halted must not matter.
            shaped = weight.reshape(-1, *[1] * (x.ndim - 1))
            kept = torch.where(running.reshape(shaped.shape), x, torch.zeros_like(x))
            mean = shaped * kept if mean is None else mean + shaped * kept
            spent = spent + weight
            running = running & ~last
            if self._trace is not None:
                self._trace.next_iteration()
            # A dry run has no values to decide by: the body must fit what it gives itself, so two iterations tell.
            if (is_dry() and iteration > 0) or (not is_dry() and not running.any()):
                break
        if not is_dry():
            self.condition.ponder_cost = iterations + remainder
        return x if mean is None else mean

    def extra_repr(self) -> str:
        return f"max={self.max}"
