from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flodl import CheckpointError
from flodl.checkpoint import load, rng_state, save, set_rng_state


def draw() -> tuple[Any, ...]:
    numbers = (random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist())
    return (*numbers, torch.rand(3, device="cuda").tolist()) if torch.cuda.is_available() else numbers


def test_every_generator_goes_on_where_it_stood(tmp_path: Path) -> None:
    draw()  # an odd number of gaussians: the second of each pair is kept inside the generators
    path = save(tmp_path / "c.pt", model={}, extra={"rng": rng_state()})
    expected = [draw(), draw()]
    set_rng_state(load(path).extra["rng"])
    assert [draw(), draw()] == expected


def test_a_state_that_does_not_fit_is_named() -> None:
    state = rng_state()
    with pytest.raises(CheckpointError, match=r"no random generator 'pyton'. Did you mean 'python'"):
        set_rng_state({**state, "pyton": 1})
    with pytest.raises(CheckpointError, match="lacks numpy, torch; it has python"):
        set_rng_state({"python": state["python"]})
    for name, wrong in [
        ("python", (3, [1, 2], None)),
        ("numpy", {"bit_generator": "MT19937"}),
        ("torch", torch.zeros(3)),
    ]:
        with pytest.raises(CheckpointError, match=f"random generator '{name}' does not fit"):
            set_rng_state({**state, name: wrong})
    set_rng_state(state)


def test_more_gpus_saved_than_there_are(tmp_path: Path) -> None:
    state = rng_state()
    states = state.get("cuda", [])
    set_rng_state({**state, "cuda": [*states, *([torch.zeros(16, dtype=torch.uint8)] * 2)]})
    assert torch.equal(torch.get_rng_state(), state["torch"])
