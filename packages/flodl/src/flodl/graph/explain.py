"""Turns an error inside a flow's forward into one that names the step and the shapes."""

from __future__ import annotations

import dis
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flodl.errors import FlodlError, StepError
from flodl.graph.plan import Call, Ref

if TYPE_CHECKING:
    from flodl.graph.model import Graph

__all__ = ["explain", "shape_of"]

_TORCH = os.path.dirname(torch.__file__)
_OURS = os.path.dirname(__file__)
#: What torch raises for tensors that do not fit; anything else keeps its type.
_MISFITS = (RuntimeError, TypeError, ValueError, IndexError)


def explain(error: Exception, model: Graph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception:
    """The error to raise for `error`, which came out of `model(*args, **kwargs)`.

    Torch's complaint about tensors that do not fit becomes a `StepError` of a few lines. An error of the user's own code
    keeps its type and traceback and gets a note (Python 3.11 and later).
    """
    where = f"flow '{model.label}'" if model.label else "flow"
    place = _failing_line(error.__traceback__, model)
    if place is None:
        if type(error) is TypeError and _innermost(error.__traceback__).startswith(_TORCH):
            given = ", ".join([*map(shape_of, args), *kwargs])
            return StepError(f"{where} takes ({', '.join(model._plan.inputs)}), was called with ({given})")
        return error
    line, variables = place
    tag = f" '{line.tags[0]}'" if line.tags else ""
    step = f"step {line.step}{tag} ({model._plan.steps[line.step - 1]})"
    inputs = ", ".join(f"{n} {shape_of(variables[n])}" for n in _names(line.value) if n in variables)
    if isinstance(error, StepError) and str(error).startswith("flow"):  # of a nested flow, says where already
        return StepError(f"{where}, {step}\n  in {error}")
    ours = isinstance(error, StepError)  # of one of our modules
    if ours or (type(error) in _MISFITS and not isinstance(error, FlodlError) and _from_torch(error)):
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return StepError(f"{where}, {step}: {first}\n  input: {inputs}{_inner_part(error.__traceback__, model)}")
    if hasattr(error, "add_note"):
        error.add_note(f"in {where}, {step}, input: {inputs}")
    return error


def shape_of(value: Any) -> str:
    """A value's shape for messages: `(32, 64)` for a tensor, nested for containers, the type's name otherwise."""
    if isinstance(value, Tensor):
        kind = "" if value.dtype == torch.float32 else f" {str(value.dtype).removeprefix('torch.')}"
        return f"{tuple(value.shape)}{kind}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(shape_of(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {shape_of(v)}" for k, v in value.items()) + "}"
    return type(value).__name__


def _names(value: Any) -> list[str]:
    """The variables that an expression reads, each once."""
    if isinstance(value, Ref):
        return [value.name]
    if isinstance(value, Call):
        inner = [n for part in (*value.args, *(v for _, v in value.kwargs)) for n in _names(part)]
        return list(dict.fromkeys(inner))
    if isinstance(value, tuple):
        return list(dict.fromkeys(n for part in value for n in _names(part)))
    return []


def _failing_line(trace: TracebackType | None, model: Graph) -> Any:
    """The plan's line that raised, with the forward's variables at that moment; None when the forward was not reached."""
    code = type(model).forward.__code__
    while trace is not None:
        if trace.tb_frame.f_code is code:
            step = model._plan.line_at(trace.tb_lineno, model._observed)
            return None if step is None else (step, dict(trace.tb_frame.f_locals))
        trace = trace.tb_next
    return None


def _inner_part(trace: TracebackType | None, model: Graph) -> str:
    """A line that names the part of a step's module where it failed; nothing when it is the module itself."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = ""
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        found = paths.get(id(owner)) or found
        trace = trace.tb_next
    if "." not in found:
        return ""
    part = model.get_submodule(found)
    return f"\n  in {found}: {type(part).__name__ if list(part.children()) else part}"


def _innermost(trace: TracebackType | None) -> str:
    """The file of the frame that raised."""
    return _last(trace).tb_frame.f_code.co_filename if trace is not None else ""


def _last(trace: TracebackType) -> TracebackType:
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _from_torch(error: Exception) -> bool:
    trace = error.__traceback__
    if _innermost(trace).startswith((_TORCH, _OURS, "<flow ")):
        return True
    if trace is None or type(error) is not RuntimeError:
        return False
    # A tensor's operators have no frame of their own: in a user's `x + h` the last frame is the user's. It is torch's
    # error all the same, unless that frame is at a `raise`.
    last = _last(trace)
    return dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] != "RAISE_VARARGS"
