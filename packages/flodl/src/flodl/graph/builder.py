"""The fluent builder: records what the user says; `build()` checks it and lowers it to a module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from flodl.graph.model import Graph

__all__ = ["FlowBuilder", "Step", "flow"]

#: What a flow is made of: a module, any callable on tensors, or a flow that is built on the spot.
Part = Any


@dataclass
class Step:
    """One recorded step: `kind` is the builder's method, `parts` what it was given; the rest is filled by later calls."""

    kind: str
    parts: tuple[Part, ...] = ()
    tags: tuple[str, ...] = ()
    group: str = ""
    using: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(part_name(p) for p in self.parts)})"


def part_name(part: Part) -> str:
    """How messages call a part: a module's class, a function's name, the label of a flow."""
    if isinstance(part, FlowBuilder):
        return part._label or "flow"
    if isinstance(part, nn.Module):
        return getattr(part, "label", "") or type(part).__name__
    name = getattr(part, "__name__", None) or type(part).__name__
    return "lambda" if name == "<lambda>" else str(name)


class FlowBuilder:
    """A model described as the flow of one value through steps. Calls are chained; `build()` returns an `nn.Module`.

    A builder is one flow and each call adds to it; `copy()` lets two flows share a beginning (and its modules).
    """

    def __init__(self, first: Part) -> None:
        self._steps: list[Step] = [Step("flow", (first,))]
        self._inputs: list[str] = []
        self._label = ""

    @classmethod
    def from_(cls, first: Part) -> FlowBuilder:
        """Start a flow with its first step; `fl.flow(first)` is the same."""
        return cls(first)

    def through(self, part: Part) -> FlowBuilder:
        """The value becomes `part(value)`."""
        return self._add(Step("through", (part,)))

    def also(self, part: Part) -> FlowBuilder:
        """Residual: the value becomes `value + part(value)`."""
        return self._add(Step("also", (part,)))

    def also_with(self, skip: Part, main: Part) -> FlowBuilder:
        """Residual with a projection: the value becomes `skip(value) + main(value)`."""
        return self._add(Step("also_with", (skip, main)))

    def fork(self, part: Part) -> FlowBuilder:
        """Side branch: compute `part(value)` (name it with `tag`); the value goes on unchanged."""
        return self._add(Step("fork", (part,)))

    def split(self, parts: Sequence[Part]) -> FlowBuilder:
        """Each part gets the value; `merge` joins the results."""
        return self._add(Step("split", tuple(parts)))

    def merge(self, how: str | Callable[..., Any], dim: int = -1) -> FlowBuilder:
        """Join the branches of the `split` before: `"add"`, `"mean"`, `"cat"` (along `dim`), or a callable that takes them."""
        return self._add(Step("merge", (), options={"how": how, "dim": dim}))

    def tag(self, name: str) -> FlowBuilder:
        """Name the value of the step before, for `using`, label paths and observation."""
        self._steps[-1].tags = (*self._steps[-1].tags, name)
        return self

    def tag_group(self, name: str) -> FlowBuilder:
        """Name the branches of the `split` before: `name_0`, `name_1`, ..."""
        self._steps[-1].group = name
        return self

    def using(self, *names: str, **renamed: str) -> FlowBuilder:
        """The step before also gets the named values, as keyword arguments: `using("h")` passes `h=h`, `using(key="h")` `key=h`.

        A name is a tag, an input, or a tag of a later step: then it is state, the value of the previous call
        (zeros at first).
        """
        self._steps[-1].using = {**self._steps[-1].using, **{n: n for n in names}, **renamed}
        return self

    def input(self, *names: str) -> FlowBuilder:
        """Further arguments of `forward`, by name, for `using`."""
        self._inputs.extend(names)
        return self

    def label(self, name: str) -> FlowBuilder:
        """Name this flow: inside another one it is addressed by that name."""
        self._label = name
        return self

    def copy(self) -> FlowBuilder:
        """A second builder with the same steps so far; the modules are shared (tied), not copied."""
        other = FlowBuilder.__new__(FlowBuilder)
        other._steps = [copy.copy(s) for s in self._steps]
        other._inputs = list(self._inputs)
        other._label = self._label
        return other

    def build(self) -> Graph:
        """Check the flow and lower it to a module.

        Raises `FlowError`, naming the step by number and content, when the flow makes no sense.
        """
        from flodl.graph.lower import lower

        return lower(self._steps, tuple(self._inputs), self._label)

    def _add(self, step: Step) -> FlowBuilder:
        self._steps.append(step)
        return self

    def __repr__(self) -> str:
        return ".".join(str(s) for s in self._steps)


def flow(first: Part) -> FlowBuilder:
    """Start to describe a model: `fl.flow(nn.Linear(4, 8)).through(nn.ReLU()).build()`."""
    return FlowBuilder(first)
