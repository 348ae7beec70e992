"""The states of the global random number generators as plain types."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from flodl.errors import CheckpointError, nearest

__all__ = ["rng_state", "set_rng_state"]


def rng_state() -> dict[str, Any]:
    """The states of `python`, `numpy`, `torch` and, where present, `cuda` (a list, one for each device)."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": _arrays_to_lists(np.random.get_state(legacy=False)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore what `rng_state` gave. States of CUDA devices that this machine has not are left out.

    Raises CheckpointError for a generator that is missing, unknown or whose state does not fit.
    """
    setters: dict[str, Callable[[Any], None]] = {
        "python": _set_python,
        "numpy": np.random.set_state,
        "torch": torch.set_rng_state,
        "cuda": _set_cuda,
    }
    for name in state:
        if name not in setters:
            raise CheckpointError(f"There is no random generator {name!r}.{nearest(name, setters)}")
    missing = [name for name in setters if name not in state and name != "cuda"]
    if missing:
        raise CheckpointError(f"The random state lacks {', '.join(missing)}; it has {', '.join(state) or 'nothing'}.")
    for name, value in state.items():
        try:
            setters[name](value)
        except (TypeError, ValueError, KeyError, RuntimeError) as error:
            raise CheckpointError(f"The state of the random generator {name!r} does not fit: {error}") from error


def _arrays_to_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _arrays_to_lists(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _set_python(state: Any) -> None:
    version, numbers, gauss = state
    random.setstate((version, tuple(numbers), gauss))


def _set_cuda(states: list[torch.Tensor]) -> None:
    for device, state in enumerate(states[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, device)
