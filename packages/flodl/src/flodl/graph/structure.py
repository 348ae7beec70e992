"""A hash of what a model is, whatever it has learned."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flodl.graph.paths import plan_of
from flodl.graph.state import StateCell

__all__ = ["structural_hash"]


def structural_hash(root: nn.Module) -> str:
    """SHA-256 over a text that holds the topology, the kinds of modules and the shapes of parameters and buffers.

    Functions count by name only (all lambdas are alike, a partial by the name of its function), settings of modules that
    show in no shape (a stride, a dropout rate) not at all. A part that stands in two places is described once and
    referred to.
    """
    return hashlib.sha256("\n".join(_lines(root)).encode()).hexdigest()


def _lines(root: nn.Module) -> Iterator[str]:
    seen: dict[int, str] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        if isinstance(module, StateCell):
            continue  # its shape is that of the last batch
        if id(module) in seen:
            yield f"{path} = {seen[id(module)]}"
            continue
        seen[id(module)] = path
        plan = plan_of(module)
        if plan is not None:
            yield f"{path}: Flow\n{plan.source()}"
        else:
            ours = type(module).__module__.startswith("flodl.graph.")
            yield f"{path}: {type(module).__qualname__}({module.extra_repr() if ours else ''})"
            takes = module.__dict__.get("_takes", {}) if ours else {}
            yield from (f"{path}.{part} takes {', '.join(sorted(names))}" for part, names in takes.items() if names)
        for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
            for name, tensor in sorted(tensors.items()):
                if tensor is not None:
                    tied = seen.setdefault(id(tensor), f"{path}.{name}")
                    yield f"{path}.{name}: {kind} {_shape(tensor) if tied == f'{path}.{name}' else f'= {tied}'}"


def _shape(tensor: Tensor) -> str:
    return "lazy" if is_lazy(tensor) else str(tuple(tensor.shape))
