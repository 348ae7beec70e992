"""Loops: a body repeated a fixed number of times, or as long as a condition says."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # as torch.compiler.disable, which imports the compiler at once

from flodl.errors import StepError
from flodl.graph.dry import is_dry
from flodl.graph.parts import pick
from flodl.graph.samples import rows_of
from flodl.graph.traces import Trace

__all__ = ["ConditionalLoop", "Loop"]


class Loop(nn.Module):
    """`x = body(x)`, `n` times."""

    def __init__(self, body: nn.Module, n: int, emits: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.body, self.n, self.emits = body, n, emits
        self._trace: Trace | None = None

    def forward(self, x: Any, **named: Any) -> Any:
        """x: whatever the body maps to its own kind."""
        if self._trace is None:
            body = self.body  # looked up once: `nn.Module` does that in Python
            for _ in range(self.n):
                x = body(x, **named)
            return x
        with self._trace.run():
            for _ in range(self.n):
                x = self.body(x, **named)
                self._trace.next_iteration()
        return x

    def extra_repr(self) -> str:
        return f"n={self.n}"


# Where a compiled model must wait for a value: graph breaks, as few as the decisions.


@_disable_dynamo
def _is_any(answer: Tensor) -> bool:
    return bool(answer.any())


@_disable_dynamo
def _parted(stays: Tensor) -> tuple[Tensor, Tensor]:
    """stays: (samples,) booleans -> the numbers of those that stay, and of those that leave"""
    return stays.nonzero().flatten(), (~stays).nonzero().flatten()


class ConditionalLoop(nn.Module):
    """`x = body(x)` while, or until, a condition on the current value holds, at most `max` times.

    `while` asks before each iteration, `until` after it. Gradients flow through every iteration that ran; the decision
    itself has none (see `LearnedHalt` for one that learns).

    The condition answers with booleans, one for all or one per sample. The loop goes on for the whole batch as long as
    one sample needs it, unless `per_sample`: then each sample leaves when its own condition says so and later
    iterations run on the samples that are left, so the result is that of each sample alone, and a sample that has
    halted costs nothing. A body that mixes samples (BatchNorm in training mode) sees the samples that still run, so it
    differs from each alone; in `eval` mode, or with LayerNorm or GroupNorm, it does not.
    """

    def __init__(
        self,
        body: nn.Module,
        condition: nn.Module,
        kind: Literal["while", "until"],
        max: int,
        per_sample: bool,
        takes: dict[str, tuple[str, ...]],
        emits: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.body, self.condition, self.kind, self.max = body, condition, kind, max
        self.per_sample, self.emits = per_sample, emits
        self._takes = takes
        self._trace: Trace | None = None

    def forward(self, x: Tensor, **named: Any) -> Tensor:
        """x: (batch, ...) -> (batch, ...)"""
        if is_dry():
            return self._try(x, named)
        run = self._run_per_sample if self.per_sample else self._run
        if self._trace is None:
            return run(x, named)
        with self._trace.run():
            return run(x, named)

    def _try(self, x: Tensor, named: dict[str, Any]) -> Tensor:
        """A dry run has no values to decide by: every part must fit, the body also on what it gives itself."""
        first = x
        for iteration in range(min(self.max, 2)):
            if self.kind == "while":
                self._answer(x, pick(named, self._takes["condition"]))
            y = self.body(x, **pick(named, self._takes["body"]))
            if self.kind == "until":
                self._answer(y, pick(named, self._takes["condition"]))
            # Samples that leave at different iterations are put together again.
            if self.per_sample and (self.kind == "while" or iteration) and y.shape != x.shape:
                raise StepError(
                    f"the body of a per_sample loop keeps the shape: it got {tuple(x.shape)}, gave {tuple(y.shape)}"
                )
            if iteration == 0:
                first = y
            x = y
        return first

    def _run(self, x: Tensor, named: dict[str, Any]) -> Tensor:
        body_named, condition_named = pick(named, self._takes["body"]), pick(named, self._takes["condition"])
        for iteration in range(self.max):
            if self.kind == "while" and not _is_any(self._answer(x, condition_named)):
                break
            x = self.body(x, **body_named)
            # After the last iteration the answer changes nothing, but a trace wants it as well.
            last = iteration == self.max - 1 and self._trace is None
            halt = self.kind == "until" and not last and not _is_any(~self._answer(x, condition_named))
            if self._trace is not None:
                self._trace.next_iteration()
            if halt:
                break
        return x

    def _run_per_sample(self, x: Tensor, named: dict[str, Any]) -> Tensor:
        batch = x.shape[0]
        rows = torch.arange(batch, device=x.device)  # the samples that still run; x holds these only
        done: list[tuple[Tensor, Tensor]] = []
        for _ in range(self.max):
            if self.kind == "while":
                x, rows = self._part(x, rows, named, batch, done, go_on=True)
            if not len(rows):
                break
            x = self.body(x, **rows_of(pick(named, self._takes["body"]), rows, batch))
            if self.kind == "until":
                x, rows = self._part(x, rows, named, batch, done, go_on=False)
            if self._trace is not None:
                self._trace.next_iteration()
        done.append((x, rows))
        order = torch.cat([r for _, r in done]).argsort()
        return torch.cat([values for values, r in done if len(r)] or [x]).index_select(0, order)

    def _part(
        self, x: Tensor, rows: Tensor, named: dict[str, Any], batch: int, done: list[tuple[Tensor, Tensor]], go_on: bool
    ) -> tuple[Tensor, Tensor]:
        """Moves the samples that the condition halts to `done`; the others, and which they are."""
        if not len(rows):
            return x, rows
        answer = self._answer(x, rows_of(pick(named, self._takes["condition"]), rows, batch))
        if answer.numel() != len(rows):
            raise StepError(
                f"the condition of a per_sample loop answers once per sample: {len(rows)} samples, answer "
                f"{tuple(answer.shape)}"
            )
        stays = (answer if go_on else ~answer).reshape(len(rows))
        stay, leave = _parted(stays)
        if len(leave):
            done.append((x.index_select(0, leave), rows.index_select(0, leave)))
            x, rows = x.index_select(0, stay), rows.index_select(0, stay)
        return x, rows

    def _answer(self, x: Tensor, named: dict[str, Any]) -> Tensor:
        answer = self.condition(x, **named)
        if isinstance(answer, bool):
            return torch.tensor(answer)
        if not isinstance(answer, Tensor) or answer.dtype is not torch.bool:
            kind = answer.dtype if isinstance(answer, Tensor) else type(answer).__name__
            raise StepError(f"the condition answers with {kind}, not with booleans: compare with a threshold")
        return answer

    def extra_repr(self) -> str:
        return f"{self.kind}, max={self.max}" + (", per_sample" if self.per_sample else "")
