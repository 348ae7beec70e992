"""Torch's own optimizers in functional form, so that an update can be traced into one graph with the step's gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.nadam import nadam
from torch.optim.radam import radam
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

__all__ = ["GroupUpdate", "group_updates", "supported"]


class _Rule(NamedTuple):
    """A functional optimizer, and the names in `optimizer.state` of the lists that it takes after parameters and gradients."""

    update: Callable[..., None]
    state: tuple[str, ...]


_SCALARS = ("step", "mu_product")  # one number a parameter
_ADAM = _Rule(adam, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"))
_RULES: dict[type[Optimizer], _Rule] = {
    SGD: _Rule(sgd, ("momentum_buffer",)),
    Adam: _ADAM,
    AdamW: _ADAM,
    RMSprop: _Rule(rmsprop, ("square_avg", "grad_avg", "momentum_buffer", "step")),
    Adagrad: _Rule(adagrad, ("sum", "step")),
    NAdam: _Rule(nadam, ("exp_avg", "exp_avg_sq", "mu_product", "step")),
    RAdam: _Rule(radam, ("exp_avg", "exp_avg_sq", "step")),
}


def supported(optimizer: Optimizer) -> bool:
    """Whether this very class has a functional form (a subclass may do anything in its `step`)."""
    return type(optimizer) in _RULES


class GroupUpdate(NamedTuple):
    """The update of one parameter group, in place on the parameters and the optimizer's own state.

    `apply(gradients, lr)`: a gradient per parameter (None: it has none and stays), and the learning rate as a tensor `()`,
    so that a schedule never compiles anew. All other settings are constants of the graph.
    """

    group: dict[str, Any]
    parameters: list[Tensor]
    apply: Callable[[Sequence[Tensor | None], Tensor], None]


def group_updates(optimizer: Optimizer) -> list[GroupUpdate]:
    """One update per group with something to train, over the parameters that the last eager step gave a state to.

    Take a step with the optimizer itself before: it makes the state.
    """
    rule = _RULES[type(optimizer)]
    takes = inspect.signature(rule.update).parameters
    updates = []
    for group in optimizer.param_groups:
        stateless = type(optimizer) is SGD and group["momentum"] == 0
        parameters = [p for p in group["params"] if p.requires_grad and (p in optimizer.state or stateless)]
        if not parameters:
            continue
        settings = {name: group[name] for name in takes if name in group and name not in ("params", "lr")}
        if "beta1" in takes:
            settings["beta1"], settings["beta2"] = group["betas"]
        settings.update(foreach=False, has_complex=any(p.is_complex() for p in parameters))
        if "capturable" in takes:
            settings["capturable"] = True  # the step count stays a tensor: a number would be a constant of the graph
        for name in ("fused", "differentiable"):
            if name in takes:
                settings[name] = False
        if "has_complex" not in takes:
            del settings["has_complex"]
        states = [optimizer.state.get(p, {}) for p in parameters]
        # a list that this optimizer's settings leave out is empty; only SGD takes a None for "no buffer"
        lists = {name: [state.get(name) for state in states] for name in rule.state}
        lists = {name: v if rule.update is sgd or v[0] is not None else [] for name, v in lists.items()}
        updates.append(GroupUpdate(group, parameters, _closure(rule.update, parameters, lists, settings)))
    return updates


def _closure(
    update: Callable[..., None],
    parameters: list[Tensor],
    all_lists: dict[str, list[Tensor | None]],
    settings: dict[str, Any],
) -> Callable[[Sequence[Tensor | None], Tensor], None]:
    decay = 0.0
    if not settings.get("decoupled_weight_decay"):
        # Added here as a product: inductor (torch 2.13) fuses mm and add(..., alpha) to addmm and loses the alpha.
        decay, settings = (
            settings["weight_decay"] * (-1 if settings["maximize"] else 1),
            {**settings, "weight_decay": 0.0},
        )

    def apply(gradients: Sequence[Tensor | None], lr: Tensor) -> None:
        used = [i for i, g in enumerate(gradients) if g is not None]  # as the eager optimizer leaves out the others
        trained = [parameters[i] for i in used]
        decayed = [g for g in gradients if g is not None]
        if decay:
            decayed = [g + decay * p for g, p in zip(decayed, trained, strict=True)]
        lists = {name: [values[i] for i in used] if values else [] for name, values in all_lists.items()}
        # Scalars in float64, as the eager optimizer has them in Python: float32 bias corrections drift by 1e-5 in 50 steps.
        scalars = {name: [t.double() for t in lists[name] if t is not None] for name in _SCALARS if name in lists}
        state = [scalars.get(name, values) for name, values in lists.items()]
        update(trained, decayed, *state, lr=lr, **settings)
        for name, wide in scalars.items():
            for kept, value in zip(lists[name], wide, strict=True):
                if kept is not None:
                    kept.copy_(value)

    return apply
