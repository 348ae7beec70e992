"""The fluent builder: records what the user says; `build()` checks it and lowers it to a module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flodl.errors import FlowError
from flodl.graph.model import Graph
from flodl.graph.parts import Part, part_name

__all__ = ["FlowBuilder", "Step", "flow"]


@dataclass
class Step:
    """One recorded step: `kind` is the builder's method, `parts` what it was given; the rest is filled by later calls."""

    kind: str
    parts: tuple[Part, ...] = ()
    tags: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()
    group: str = ""
    using: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def with_parts(self, parts: tuple[Part, ...]) -> Step:
        """The same step with other parts."""
        return replace(self, parts=parts)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(part_name(p) for p in self.parts)})"


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
        return self._add(Step("split", self._several("split", parts)))

    def merge(self, how: str | Callable[..., Any], dim: int = -1) -> FlowBuilder:
        """Join the branches of the `split` before: `"add"`, `"mean"`, `"cat"` (along `dim`), or a callable that takes them."""
        return self._add(Step("merge", (), options={"how": how, "dim": dim}))

    def loop_body(self, body: Part, *, emits: Sequence[str] = ()) -> FlowBuilder:
        """Repeat `body` on the value; how often is said by `for_n`, `while_cond` or `until_cond`, which comes next.

        `emits` are the names that body or condition give to `fl.emit`, for traces.
        """
        names = tuple(emits) if isinstance(emits, Iterable) and not isinstance(emits, str) else (None,)
        if not all(isinstance(name, str) for name in names):
            raise FlowError(f"{self._next('loop_body', body)}: emits={emits!r}: give a list of names")
        return self._add(Step("loop_body", (body,), options={"emits": names}))

    def for_n(self, n: int) -> FlowBuilder:
        """Run the loop body `n` times."""
        return self._complete("for_n", "loop_body", times=n)

    def while_cond(self, condition: Part, max: int, *, per_sample: bool = False) -> FlowBuilder:
        """Run the loop body while `condition(value)` is true, asked before each of at most `max` iterations.

        The condition gives booleans, one or (batch,); the loop goes on while one of them is true. With `per_sample`
        each sample leaves the loop by itself, with the same result as alone.
        """
        return self._complete("while_cond", "loop_body", condition, times=max, loop="while", per_sample=per_sample)

    def until_cond(self, condition: Part, max: int, *, per_sample: bool = False) -> FlowBuilder:
        """Run the loop body until `condition(value)` is true, asked after each of at most `max` iterations.

        The condition gives booleans, one or (batch,); the loop ends when all of them are true. With `per_sample` each
        sample leaves the loop by itself, with the same result as alone. `LearnedHalt` halts per sample in any case.
        """
        return self._complete("until_cond", "loop_body", condition, times=max, loop="until", per_sample=per_sample)

    def gate(self, router: Part, experts: Sequence[Part]) -> FlowBuilder:
        """Soft routing: all experts run, the value becomes their sum weighted by `router(value): (batch, ..., experts)`."""
        return self._add(Step("gate", (router, *self._several("gate", experts))))

    def switch(self, selector: Part, branches: Sequence[Part], *, per_sample: bool = False) -> FlowBuilder:
        """Hard routing: only the branch that `selector(value)` chooses runs; with `per_sample` each sample has its own.

        The selector gives an integer (per sample: (batch,) integers; booleans count as 0 and 1) or scores (batch, branches).
        """
        parts = (selector, *self._several("switch", branches))
        return self._add(Step("switch", parts, options={"per_sample": per_sample}))

    def map(self, body: Part) -> FlowBuilder:
        """Apply `body` to each element; of what is said by `each`, `over` or `slices`, which comes next."""
        return self._add(Step("map", (body,)))

    def each(self) -> FlowBuilder:
        """Map over the rows of the value: the body gets (1, ...)."""
        return self._complete("each", "map", over="rows")

    def over(self, tag: str) -> FlowBuilder:
        """Map over the rows of a named value; the result goes on as the value."""
        return self._complete("over", "map", over="tag", tag=self._name("over", tag))

    def slices(self, n: int) -> FlowBuilder:
        """Map over `n` equal slices of the last dimension; the results are put side by side again."""
        return self._complete("slices", "map", over="slices", slices=n)

    def batched(self) -> FlowBuilder:
        """Map in one call of the body, with the elements as a batch: for bodies that have no state."""
        return self._complete("batched", "map", batched=True)

    def tag(self, name: str) -> FlowBuilder:
        """Name the value of the step before, for `using`, label paths and observation."""
        self._steps[-1].tags = (*self._steps[-1].tags, self._name("tag", name))
        return self

    def internal(self, name: str) -> FlowBuilder:
        """Name the value of the step before for this flow only: no other flow can address or observe it."""
        self._steps[-1].internal = (*self._steps[-1].internal, self._name("internal", name))
        return self

    def tag_group(self, name: str) -> FlowBuilder:
        """Name the branches of the `split` before: `name_0`, `name_1`, ..."""
        self._steps[-1].group = self._name("tag_group", name)
        return self

    def using(self, *names: str, **renamed: str) -> FlowBuilder:
        """The step before also gets the named values, as keyword arguments: `using("h")` passes `h=h`, `using(key="h")` `key=h`.

        A name is a tag, an input, or a tag of a later step: then it is state, the value of the previous call
        (zeros at first).

        A step that runs each sample by itself (`per_sample=True`, `map`) takes the named values per sample as well: a
        tensor, also inside a tuple, list or dictionary, whose first dimension is the batch gives each sample its row; a
        scalar or a single row is for all of them, and another first dimension is an error. What is the same for every
        sample, a weight matrix say, is therefore passed with a first dimension of 1.
        """
        for name in (*names, *renamed.values()):
            self._name("using", name)
        self._steps[-1].using = {**self._steps[-1].using, **{n: n for n in names}, **renamed}
        return self

    def input(self, *names: str) -> FlowBuilder:
        """Further arguments of `forward`, by name, for `using`."""
        self._inputs.extend(self._name("input", name) for name in names)
        return self

    def label(self, name: str) -> FlowBuilder:
        """Name this flow: inside another one it is addressed by that name."""
        self._label = self._name("label", name)
        return self

    def copy(self) -> FlowBuilder:
        """A second builder with the same steps so far; the modules are shared (tied), not copied."""
        other = FlowBuilder.__new__(FlowBuilder)
        other._steps = [copy.copy(s) for s in self._steps]
        other._inputs = list(self._inputs)
        other._label = self._label
        return other

    def build(self, *, example: Any = None, save_state: bool = False) -> Graph:
        """Check the flow and lower it to a module.

        With an `example` of the input (a tuple for several inputs) the shapes are checked as well, by `Graph.check`: a
        `StepError` names the first step that does not fit. With `save_state` the state carried between calls is part of
        `state_dict`. Raises `FlowError`, naming the step by number and content, when the flow makes no sense.
        """
        from flodl.graph.lower import lower

        try:
            built = lower(self, save_state=save_state)
        except RecursionError:
            raise FlowError(
                "flows are nested too deep for Python's stack: make one flow of the steps instead"
            ) from None
        if example is not None:
            built.check(*(example if isinstance(example, tuple) else (example,)))
        return built

    def _add(self, step: Step) -> FlowBuilder:
        self._steps.append(step)
        return self

    def _complete(self, method: str, kind: str, *parts: Part, **options: Any) -> FlowBuilder:
        """Say more about the step before, which must be of this kind."""
        step = self._steps[-1]
        if step.kind != kind:
            raise FlowError(f"{method} belongs after {kind}; the step before is {len(self._steps)}, {step}")
        for option in options.keys() & step.options.keys():
            raise FlowError(f"step {len(self._steps)}, {step}: {method} comes second, {option!r} is said already")
        self._steps[-1] = replace(step, parts=(*step.parts, *parts), options={**step.options, **options})
        return self

    def _several(self, method: str, parts: Any) -> tuple[Part, ...]:
        """The parts of a step that takes several."""
        if not isinstance(parts, Iterable) or isinstance(parts, (str, Mapping)):
            raise FlowError(f"{self._next(method, parts)}: several parts are needed: give a list, [a, b]")
        return tuple(parts)

    def _name(self, method: str, name: Any) -> str:
        """A name that the user gives to, or wants from, the step before or the flow."""
        if not isinstance(name, str):
            number, step = len(self._steps), self._steps[-1]
            raise FlowError(f"step {number}, {step}: {method} takes a name, not {name!r}: give text")
        return name

    def _next(self, method: str, part: Any) -> str:
        """How messages call the step that is being added."""
        return f"step {len(self._steps) + 1}, {Step(method, (part,))}"

    def __repr__(self) -> str:
        return ".".join(str(s) for s in self._steps)


def flow(first: Part) -> FlowBuilder:
    """Start to describe a model: `fl.flow(nn.Linear(4, 8)).through(nn.ReLU()).build()`."""
    return FlowBuilder(first)
