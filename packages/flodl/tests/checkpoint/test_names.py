"""Wrapper prefixes never reach a file, and do not matter when one is loaded."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from flodl.checkpoint import load, save


def net() -> nn.Module:
    return nn.Sequential(OrderedDict(encoder=nn.Linear(4, 2), head=nn.Linear(2, 3)))


NAMES = ["encoder.weight", "encoder.bias", "head.weight", "head.bias"]


def compiled_child() -> nn.Module:
    model = net()
    model.encoder = torch.compile(model.encoder, backend="eager")  # type: ignore[assignment]
    return model


WRAPPED = {
    "compiled": lambda: torch.compile(net(), backend="eager"),
    "compiled child": compiled_child,
    "data parallel": lambda: nn.DataParallel(net()),
    "both": lambda: torch.compile(nn.DataParallel(net()), backend="eager"),
    "both the other way": lambda: nn.DataParallel(torch.compile(net(), backend="eager")),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_wrappers_leave_no_trace(tmp_path: Path, kind: str) -> None:
    model = WRAPPED[kind]()
    assert list(model.state_dict()) != NAMES
    for source in (model, model.state_dict()):
        path = save(tmp_path / "c.pt", model=source)
        assert list(load(path).model or ()) == NAMES
        plain, wrapped = net(), WRAPPED[kind]()
        for target in (plain, wrapped):
            load(path, model=target)
            for mine, theirs in zip(model.state_dict().values(), target.state_dict().values(), strict=True):
                assert torch.equal(mine, theirs)


def test_distributed_data_parallel_and_its_optimizer(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/init", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        path = save(tmp_path / "c.pt", model=model, optimizer=optimizer)
        state = {name: value.clone() for name, value in model.module.state_dict().items()}
        del model
    finally:
        distributed.destroy_process_group()
    other = net()
    load(path, model=other, optimizer=torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9))
    assert list(load(path).model or ()) == NAMES
    assert all(torch.equal(other.state_dict()[name], value) for name, value in state.items())


def test_a_child_that_is_called_module_keeps_its_name(tmp_path: Path) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    model, other = Holder(), Holder()
    path = save(tmp_path / "c.pt", model=model)
    assert list(load(path).model or ()) == ["module.weight", "module.bias"]
    load(path, model=other)
    assert torch.equal(other.module.weight, model.module.weight)
