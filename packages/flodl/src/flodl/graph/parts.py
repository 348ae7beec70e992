"""What a flow is made of: the name of a part in messages, how it is called, and a callable as a child module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

__all__ = ["REMEDY", "Function", "Part", "misfit", "part_name", "pick", "signature_of", "takers"]

#: A module, any callable on tensors, or a flow builder that is built where it stands.
Part = Any

#: What to do when a part takes no argument of the name that `using` gives it.
REMEDY = 'rename it with .using(argument="tag"), or give the part a parameter of that name'


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
    if isinstance(part, partial):
        return f"partial_{part_name(part.func)}"
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


def takers(parts: Mapping[str, Part], name: str) -> list[str]:
    """Which of the parts, by role, can be passed the keyword argument `name`.

    Parts whose signature Python cannot tell count only where no other part takes the name.
    """
    signatures = {role: signature_of(part) for role, part in parts.items()}
    known = [role for role, signature in signatures.items() if signature is not None and _takes(signature, name)]
    return known or [role for role, signature in signatures.items() if signature is None]


def _takes(signature: inspect.Signature, name: str) -> bool:
    kinds = inspect.Parameter
    found = signature.parameters.get(name)
    if found is not None and found.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
        return True
    return any(p.kind is kinds.VAR_KEYWORD for p in signature.parameters.values())


def pick(named: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The named values that one part of a composite takes."""
    return {name: named[name] for name in names}


def misfit(part: Part, positional: int, names: Sequence[str]) -> str:
    """Why the part cannot be a step that gets `positional` values and these named ones; empty when it can."""
    if isinstance(part, type):
        return f"{part.__name__} is a class: write {part.__name__}(...)"
    if not callable(part):
        return f"{part!r} is not callable on tensors"
    if isinstance(part, nn.Module):
        for name, parameter in part.named_parameters():
            if not is_lazy(parameter) and parameter.numel() == 0:
                return f"parameter {name!r} has shape {tuple(parameter.shape)}: a layer without weights learns nothing"
        if type(part).forward is nn.Module.forward and "forward" not in part.__dict__:
            return f"{type(part).__name__} has no forward: chain modules with nn.Sequential, or run them with split or gate"
    signature = signature_of(part)
    if signature is None:
        return ""
    try:
        signature.bind(*range(positional), **dict.fromkeys(names))
    except TypeError as error:
        hint = f"; {REMEDY}" if names else "; name further values with .using(...)"
        return f"{part_name(part)} takes ({', '.join(signature.parameters)}): {error}{hint}"
    return ""
