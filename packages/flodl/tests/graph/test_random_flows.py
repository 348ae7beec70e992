"""Random flows, freely nested, against a naive interpreter of the recorded steps."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import flodl as fl
from flodl.graph.builder import FlowBuilder, Step

from .parity import F64, linear

ROWS, WIDTH = 3, 4


def plus(x: Tensor, **named: Tensor) -> Tensor:
    for value in named.values():
        x = x + torch.tanh(value)
    return x


def half(x: Tensor) -> Tensor:
    return 0.5 * x


def large(x: Tensor) -> Tensor:
    return x.norm(dim=1) > 1.0


def sign(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long()


def soft(x: Tensor) -> Tensor:
    return torch.softmax(x[:, :2], dim=1)


# -- the naive meaning of the recorded steps: one sample at a time where samples are treated each by itself


class Naive:
    """Interprets the steps of a builder; carried values of this and nested flows live as long as the object."""

    def __init__(self, builder: FlowBuilder) -> None:
        self.builder = builder
        self.carried: dict[str, Tensor] = {}
        self.nested: dict[int, Naive] = {}

    def __call__(self, x: Tensor) -> Tensor:
        values: dict[str, Tensor] = {}
        branches: list[Tensor] = []
        for step in self.builder._steps:
            named = {
                k: values[v] if v in values else self.carried.get(v, torch.zeros_like(x)) for k, v in step.using.items()
            }
            if step.kind == "split":
                branches = [self.call(p, x, named) for p in step.parts]
                if step.group:
                    values.update({f"{step.group}_{i}": b for i, b in enumerate(branches)})
                continue
            result = self.step(step, x, named, values, branches)
            for tag in (*step.tags, *step.internal):
                values[tag] = result
            x = x if step.kind == "fork" else result
        self.carried.update(values)
        return x

    def call(self, part: Any, x: Tensor, named: dict[str, Tensor]) -> Tensor:
        if isinstance(part, FlowBuilder):
            return self.nested.setdefault(id(part), Naive(part))(x)
        return part(x, **named) if part is plus else part(x)  # type: ignore[no-any-return]

    def step(
        self, step: Step, x: Tensor, named: dict[str, Tensor], values: dict[str, Tensor], branches: list[Tensor]
    ) -> Tensor:
        o, parts = step.options, step.parts
        if step.kind in ("flow", "through", "fork"):
            return self.call(parts[0], x, named)
        if step.kind == "also":
            return x + self.call(parts[0], x, named)
        if step.kind == "also_with":
            return self.call(parts[0], x, named) + self.call(parts[1], x, named)
        if step.kind == "merge":
            total = sum(branches[1:], branches[0])
            return total if o["how"] == "add" else total / len(branches)
        if step.kind == "gate":
            weights = parts[0](x)
            outputs = [self.call(p, x, named) for p in parts[1:]]
            return sum((weights[:, i : i + 1] * y for i, y in enumerate(outputs)), torch.zeros_like(x))
        if step.kind == "switch":
            rows = []
            for i, choice in enumerate(parts[0](x).tolist()):
                one = {k: v[i : i + 1] for k, v in named.items()}
                rows.append(self.call(parts[1 + choice], x[i : i + 1], one))
            return torch.cat(rows)
        if step.kind == "map":
            source = values[o["tag"]] if o["over"] == "tag" else x
            if o["over"] == "slices":
                return torch.cat([parts[0](s) for s in source.chunk(o["slices"], dim=1)], dim=1)
            return torch.cat([self.call(parts[0], row, {}) for row in source.split(1)])
        assert step.kind == "loop_body"
        if "loop" not in o:
            for _ in range(o["times"]):
                x = self.call(parts[0], x, named)
            return x
        alone = []
        for i, row in enumerate(x.split(1)):
            one = {k: v[i : i + 1] for k, v in named.items()}
            for _ in range(o["times"]):
                if o["loop"] == "while" and not large(row).item():
                    break
                row = self.call(parts[0], row, one)
                if o["loop"] == "until" and large(row).item():
                    break
            alone.append(row)
        return torch.cat(alone)


# -- random flows


@st.composite
def flows(draw: st.DrawFn, depth: int = 0) -> FlowBuilder:
    counter = iter(range(1000))
    tags: list[str] = []

    def part() -> Any:
        kinds: list[Callable[[], Any]] = [linear, nn.Tanh, lambda: torch.tanh, lambda: half]
        if depth < 2:
            kinds.append(lambda: draw(flows(depth + 1)))
        return draw(st.sampled_from(kinds))()

    def stateless() -> Any:
        return draw(st.sampled_from([linear, nn.Tanh, lambda: torch.tanh, lambda: half]))()

    def through() -> None:
        builder.through(part())

    def also() -> None:
        builder.also(part())

    def also_with() -> None:
        builder.also_with(part(), part())

    def fork() -> None:
        builder.fork(part())
        tag()

    def split() -> None:
        builder.split([part() for _ in range(draw(st.integers(1, 3)))])
        if draw(st.booleans()):
            name = f"g{next(counter)}"
            tags.extend(f"{name}_{i}" for i in range(len(builder._steps[-1].parts)))
            builder.tag_group(name)
        builder.merge(draw(st.sampled_from(["add", "mean"])))

    def using() -> None:
        if tags:
            names = draw(st.lists(st.sampled_from(tags), min_size=1, max_size=2, unique=True))
            kind = draw(st.integers(0, 4))
            if kind == 0:
                builder.through(plus)
            elif kind == 1:
                builder.gate(soft, [plus, stateless()])
            elif kind == 2:
                builder.switch(sign, [plus, stateless()], per_sample=True)
            elif kind == 3:
                builder.loop_body(plus).for_n(2)
            else:
                builder.loop_body(plus).until_cond(large, 3, per_sample=True)
            builder.using(*names)

    def loop() -> None:
        builder.loop_body(part()).for_n(draw(st.integers(1, 3)))

    def conditional() -> None:
        builder.loop_body(stateless())
        method = draw(st.sampled_from([FlowBuilder.while_cond, FlowBuilder.until_cond]))
        method(builder, large, draw(st.integers(1, 4)), per_sample=True)

    def gate() -> None:
        builder.gate(soft, [part(), part()])

    def switch() -> None:
        builder.switch(sign, [stateless(), stateless()], per_sample=True)

    def map_() -> None:
        over = draw(st.integers(0, 2))
        builder.map(linear(2, 2) if over == 1 else stateless())
        if over == 1:
            builder.slices(2)
        elif over == 2 and tags:
            builder.over(draw(st.sampled_from(tags)))
        else:
            builder.each()
        if draw(st.booleans()):
            builder.batched()

    def feedback() -> None:
        name = f"s{next(counter)}"
        builder.through(plus).using(name).through(part()).tag(name)

    def tag() -> None:
        if builder._steps[-1].kind != "split" and not builder._steps[-1].tags:
            name = f"t{next(counter)}"
            draw(st.sampled_from([builder.tag, builder.internal]))(name)
            tags.append(name)

    builder = fl.flow(part())
    actions = [
        through,
        also,
        also_with,
        fork,
        split,
        using,
        using,
        loop,
        conditional,
        gate,
        switch,
        map_,
        feedback,
        tag,
    ]
    for action in draw(st.lists(st.sampled_from(actions), max_size=6 if depth == 0 else 3)):
        action()
    return builder


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(flows(), st.integers(0, 1000))
def test_a_built_flow_means_what_was_recorded(builder: FlowBuilder, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model, naive = builder.build(), Naive(builder)
    for _ in range(2):  # the second call reads what the first one carried
        x = torch.randn(ROWS, WIDTH, dtype=F64, generator=generator).requires_grad_()
        got, expected = model(x), naive(x)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
        weight = torch.randn(got.shape, dtype=F64, generator=generator)
        if got.requires_grad:
            of = [x, *model.parameters()]
            gradients = (
                torch.autograd.grad(y, of, weight, allow_unused=True, retain_graph=True) for y in (got, expected)
            )
            for leaf, *pair in zip(of, *gradients, strict=True):
                # A branch that no sample chose gives zeros in one, nothing in the other.
                a, b = (torch.zeros_like(leaf) if g is None else g for g in pair)
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    assert model.check(x) == f"({ROWS}, {WIDTH}) float64"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = copy.deepcopy(model)
    y = torch.randn(ROWS, WIDTH, dtype=F64, generator=generator)
    torch.testing.assert_close(other(y), naive(y), rtol=1e-9, atol=1e-9)
    assert "output" in model.dot()
