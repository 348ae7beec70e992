from __future__ import annotations

import os
import stat
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flodl import CheckpointError
from flodl.checkpoint import load, rng_state, save


def net(width: int = 8) -> nn.Module:
    return nn.Sequential(OrderedDict(encoder=nn.Linear(4, width), norm=nn.BatchNorm1d(width), head=nn.Linear(width, 3)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 4, generator=generator)
        y = torch.randint(3, (16,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def same(a: nn.Module, b: nn.Module) -> bool:
    mine, theirs = a.state_dict(), b.state_dict()
    return list(mine) == list(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "nadam": lambda p: torch.optim.NAdam(p),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path, kind: str) -> None:
    model = net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, optimizer, 5, seed=1)
    save(tmp_path / "c.pt", model=model, optimizer=optimizer, position={"epoch": 2, "sample": 80})
    train(model, optimizer, 5, seed=2)

    resumed = net()
    again = OPTIMIZERS[kind](resumed.parameters())
    checkpoint = load(tmp_path / "c.pt", model=resumed, optimizer=again)
    train(resumed, again, 5, seed=2)
    assert same(model, resumed)
    assert checkpoint.position == {"epoch": 2, "sample": 80}
    assert checkpoint.model is None
    assert checkpoint.optimizer is None
    assert checkpoint.report.loaded == tuple(resumed.state_dict())
    assert checkpoint.versions["torch"] == str(torch.__version__)


def test_extra_comes_back_as_it_was(tmp_path: Path) -> None:
    extra = {
        "rng": rng_state(),
        "best": np.float32(0.5),
        "names": ["é", b"x", None, True, 3, 2.5],
        "nested": OrderedDict(a=(1, torch.arange(3))),
        4: {1, 2},
    }
    path = save(tmp_path / "c.pt", model=net(), extra=extra)
    got = load(path).extra
    assert got["best"] == 0.5
    assert type(got["best"]) is float
    assert got["names"] == extra["names"]
    assert type(got["nested"]) is dict
    assert got["nested"]["a"][0] == 1
    assert torch.equal(got["nested"]["a"][1], torch.arange(3))
    assert got[4] == {1, 2}
    assert torch.load(path, weights_only=True)["format"] == "flodl.checkpoint"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (nn.ReLU(), r"extra\['a'\]\['b'\]\[1\] is of type ReLU"),
        (np.arange(3), r"is of type ndarray.*torch.from_numpy"),
        (Path("x"), r"is of type PosixPath"),
    ],
)
def test_what_is_not_plain_is_named_with_its_place(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path / "c.pt", model=net(), extra={"a": {"b": [0, value]}})
    assert os.listdir(tmp_path) == []


def test_without_objects_the_state_dicts_come_back(tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    train(model, optimizer, 1, seed=1)
    checkpoint = load(save(tmp_path / "c.pt", model=model.state_dict(), optimizer=optimizer))
    assert checkpoint.model is not None
    assert checkpoint.optimizer is not None
    assert torch.equal(checkpoint.model["head.weight"], model.state_dict()["head.weight"])
    assert len(checkpoint.optimizer["state"]) == 6
    other = net()
    other.load_state_dict(checkpoint.model)
    assert same(model, other)


def test_a_small_part_of_a_large_tensor_takes_its_own_size(tmp_path: Path) -> None:
    path = save(tmp_path / "c.pt", model={}, extra={"row": torch.zeros(1_000_000)[:10]})
    assert path.stat().st_size < 10_000
    assert load(path).extra["row"].shape == (10,)


def test_folders_are_made_links_kept_and_permissions_those_of_any_file(tmp_path: Path) -> None:
    path = save(tmp_path / "runs" / "a" / "c.pt", model=net())
    assert sorted(os.listdir(path.parent)) == ["c.pt"]
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    link = tmp_path / "last.pt"
    link.symlink_to(path)
    model = net()
    save(link, model=model)
    assert link.is_symlink()
    assert torch.equal(load(path).model["head.bias"], model.state_dict()["head.bias"])  # type: ignore[index]


def test_the_model_may_be_lower_precision_or_on_another_device(tmp_path: Path) -> None:
    model = net()
    path = save(tmp_path / "c.pt", model=model)
    half = net().bfloat16()
    load(path, model=half)
    assert half.state_dict()["head.weight"].dtype == torch.bfloat16
    assert torch.equal(half.state_dict()["head.weight"], model.state_dict()["head.weight"].bfloat16())


def test_extra_state_of_modules_travels(tmp_path: Path) -> None:
    class Counting(nn.Module):
        count = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"count": self.count}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    model, other = Counting(), Counting()
    model.count = 5
    load(save(tmp_path / "c.pt", model=model), model=other)
    assert other.count == 5


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="model is of type int"):
        save(tmp_path / "c.pt", model=3)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_saved_on_the_gpu_resumed_on_the_cpu_and_back(tmp_path: Path) -> None:
    model = net().cuda()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    path = save(tmp_path / "c.pt", model=model, optimizer=optimizer, extra={"rng": rng_state()})
    for device in ("cpu", "cuda"):
        other = net().to(device)
        again = OPTIMIZERS["adamw"](other.parameters())
        load(path, model=other, optimizer=again)
        assert all(p.device.type == device for p in other.parameters())
        assert all(s["exp_avg"].device.type == device for s in again.state.values())
        assert torch.equal(other.get_parameter("head.weight").cpu(), model.get_parameter("head.weight").cpu())
