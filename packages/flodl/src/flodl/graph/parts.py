"""What a flow is made of: the name of a part in messages, how it is called, and a callable as a child module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

__all__ = ["Function", "Part", "part_name", "pick", "signature_of", "takes"]

#: A module, any callable on tensors, or a flow builder that is built where it stands.
Part = Any


class Function(nn.Module):
    """A callable as a child of a composite step."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)

    def extra_repr(self) -> str:
        return part_name(self.function)


def part_name(part: Part) -> str:
    """How messages call a part: a module's class, a function's name, the label of a flow."""
    if isinstance(part, Function):
        return part_name(part.function)
    if isinstance(part, nn.Module):
        return str(getattr(part, "label", "") or type(part).__name__.removeprefix("Graph") or "flow")
    if hasattr(part, "_steps"):  # a FlowBuilder, which imports this module
        return part._label or "flow"
    name = getattr(part, "__name__", None) or type(part).__name__
    return "lambda" if name == "<lambda>" else str(name)


def signature_of(part: Part) -> inspect.Signature | None:
    """How the part is called; None where Python cannot tell (some built-in functions)."""
    if isinstance(part, Function):
        part = part.function
    try:
        return inspect.signature(part.forward if isinstance(part, nn.Module) else part)
    except (TypeError, ValueError):
        return None


def takes(part: Part, name: str) -> bool:
    """Whether the part can be passed the keyword argument `name`."""
    signature = signature_of(part)
    if signature is None:
        return True
    kinds = inspect.Parameter
    found = signature.parameters.get(name)
    if found is not None and found.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
        return True
    return any(p.kind is kinds.VAR_KEYWORD for p in signature.parameters.values())


def pick(named: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The named values that one part of a composite takes."""
    return {name: named[name] for name in names}
