"""Where a forward spends its time, node by node."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from flodl.graph.paths import flows
from flodl.graph.plan import Call, Plan, Ref

__all__ = ["measure_ms"]


def measure_ms(root: nn.Module, inputs: tuple[Any, ...], *, rounds: int = 10) -> dict[str, float]:
    """Median milliseconds of each part of a forward: modules by path, calls of a flow by `path/line.call`.

    Runs `root(*inputs)` without gradients, in its present mode; buffers and random numbers are afterwards as before.
    """
    buffers = [(b, b.clone()) for b in root.buffers()]
    state = [(m, dict(m._buffers)) for m in root.modules()]
    samples: defaultdict[str, list[float]] = defaultdict(list)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            for number in range(rounds + 2):
                spent: defaultdict[str, float] = defaultdict(float)
                with _clocks(root, spent):
                    root(*inputs)
                for key, seconds in spent.items() if number >= 2 else ():  # the first two warm up
                    samples[key].append(1e3 * seconds)
    finally:
        for module, held in state:
            module._buffers.update(held)
        for buffer, value in buffers:
            buffer.copy_(value)
    return {key: statistics.median(values) for key, values in samples.items()}


@contextmanager
def _clocks(root: nn.Module, spent: defaultdict[str, float]) -> Iterator[None]:
    """Run flows call by call with a clock on each, and put clocks around all other modules."""
    started: dict[str, float] = {}
    handles, replaced = [], []
    of_flow = {id(flow): (path, plan) for path, flow, plan in flows(root)}
    for path, module in root.named_modules():
        if id(module) in of_flow:
            prefix, plan = of_flow[id(module)]
            module.forward = _Stepwise(module, plan, prefix, spent)
            replaced.append(module)

        def before(module: nn.Module, args: Any, path: str = path) -> None:
            started[path] = _now()

        def after(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
            spent[path] += _now() - started[path]

        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in replaced:
            del module.forward


class _Stepwise:
    """A flow's forward, evaluated call by call."""

    def __init__(self, flow: nn.Module, plan: Plan, path: str, spent: defaultdict[str, float]) -> None:
        self.flow, self.plan, self.path, self.spent = flow, plan, path, spent

    def __call__(self, *args: Any, **named: Any) -> Any:
        values = dict(zip(self.plan.inputs, args, strict=False)) | named
        for number, line in enumerate(self.plan.lines):
            self._calls = 0
            result = self._evaluate(line.value, values, number)
            if line.out:
                values[line.out] = result
        return values[self.plan.output]

    def _evaluate(self, value: Any, values: dict[str, Any], number: int) -> Any:
        if isinstance(value, Ref):
            return values[value.name]
        if isinstance(value, Call):
            key = f"{self.path}/{number}.{self._calls}"
            self._calls += 1
            args = [self._evaluate(a, values, number) for a in value.args]
            named = {k: self._evaluate(v, values, number) for k, v in value.kwargs}
            target: Any = value.target
            if isinstance(target, str):
                target = self.flow.get_submodule(target)
                target = getattr(target, value.method) if value.method else target
            start = _now()
            result = target(*args, **named)
            self.spent[key] += _now() - start
            return result
        if isinstance(value, tuple):
            return [self._evaluate(v, values, number) for v in value]
        return value


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
