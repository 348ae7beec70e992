"""What does not fit is named, and nothing is loaded then."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flodl import CheckpointError
from flodl.checkpoint import load, save


def net(**layers: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(layers))


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_missing_unexpected_and_wrong_shapes_are_all_named_in_one_error(tmp_path: Path) -> None:
    path = save(tmp_path / "c.pt", model=net(a=nn.Linear(4, 4), encoder=nn.Linear(4, 2), head=nn.Linear(2, 3)))
    model = net(a=nn.Linear(4, 4), encoders=nn.Linear(4, 2), head=nn.Linear(2, 5))
    before = snapshot(model)
    with pytest.raises(CheckpointError) as caught:
        load(path, model=model)
    message = str(caught.value)
    assert str(path) in message
    assert "nothing was loaded" in message
    assert "missing in the file: 'encoders.weight' Did you mean 'encoder.weight'" in message
    assert "not in the model: 'encoder.bias' Did you mean 'encoders.bias'" in message
    assert "of another shape: 'head.weight': (3, 2) in the file, (5, 2) in the model" in message
    assert "of another shape: 'head.bias': (3,) in the file, (5,) in the model" in message
    assert unchanged(model, before)


def test_without_strict_what_fits_is_loaded_and_the_rest_reported(tmp_path: Path) -> None:
    saved = net(a=nn.Linear(4, 4), encoder=nn.Linear(4, 2), head=nn.Linear(2, 3))
    model = net(a=nn.Linear(4, 4), encoders=nn.Linear(4, 2), head=nn.Linear(2, 5))
    before = snapshot(model)
    report = load(save(tmp_path / "c.pt", model=saved), model=model, strict=False).report
    assert report.loaded == ("a.weight", "a.bias")
    assert report.missing == ("encoders.weight", "encoders.bias")
    assert report.unexpected == ("encoder.weight", "encoder.bias")
    assert list(report.wrong_shape) == ["head.weight", "head.bias"]
    after = model.state_dict()
    assert torch.equal(after["a.weight"], saved.state_dict()["a.weight"])
    assert torch.equal(after["head.weight"], before["head.weight"])


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    path = save(tmp_path / "c.pt", model=net(**{f"layer{i}": nn.Linear(1, 1) for i in range(40)}))
    with pytest.raises(CheckpointError, match="not in the model: 68 more"):
        load(path, model=net(other=nn.Linear(1, 1)))


class Tied(nn.Module):
    def __init__(self, tie: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        if tie:
            self.head.weight = self.embed.weight


def test_tied_weights_are_written_once_and_come_back_tied(tmp_path: Path) -> None:
    model = Tied(tie=True)
    tied = save(tmp_path / "tied.pt", model=model)
    separate = save(tmp_path / "separate.pt", model=Tied(tie=False))
    assert separate.stat().st_size - tied.stat().st_size >= 50 * 8 * 4
    other = Tied(tie=True)
    load(tied, model=other)
    assert other.head.weight is other.embed.weight
    assert torch.equal(other.head.weight, model.head.weight)
    state = load(tied).model
    assert state is not None
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()


def test_tied_weights_that_diverged_can_be_looked_at(tmp_path: Path) -> None:
    model = Tied(tie=True)
    nn.init.constant_(model.head.weight, float("nan"))
    other = Tied(tie=True)
    load(save(tmp_path / "c.pt", model=model), model=other)
    assert other.head.weight.isnan().all()


def test_a_tie_on_one_side_only_is_never_lost_silently(tmp_path: Path) -> None:
    tied = save(tmp_path / "tied.pt", model=Tied(tie=True))
    with pytest.raises(
        CheckpointError, match=r"tied in the file, separate in the model: 'embed.weight', 'head.weight'"
    ):
        load(tied, model=Tied(tie=False))
    separate = save(tmp_path / "separate.pt", model=Tied(tie=False))
    with pytest.raises(CheckpointError, match="tied in the model, of different values in the file"):
        load(separate, model=Tied(tie=True))


def optimizer_over(model: nn.Module, kind: Any = torch.optim.AdamW) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = kind(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def test_an_optimizer_that_is_not_the_saved_one_is_refused_before_the_model_is_touched(tmp_path: Path) -> None:
    saved = net(a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    path = save(tmp_path / "c.pt", model=saved, optimizer=optimizer_over(saved))
    model = net(a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    before = snapshot(model)
    a, b = (list(model.get_submodule(name).parameters()) for name in "ab")
    cases: list[tuple[torch.optim.Optimizer, str]] = [
        (torch.optim.SGD(a + b, lr=0.1), "its optimizer is AdamW, this one is SGD"),
        (torch.optim.AdamW([{"params": a}, {"params": b}]), "1 parameter groups in the file and 2 here"),
        (torch.optim.AdamW(a), "parameter 'b.weight' of group 0 in the file is not in this optimizer"),
        (torch.optim.AdamW([*a, *b, nn.Parameter(torch.zeros(1))]), "parameter '0.4' of .* is missing in the file"),
    ]
    for optimizer, message in cases:
        with pytest.raises(CheckpointError, match=message):
            load(path, model=model, optimizer=optimizer)
        assert not optimizer.state
    assert unchanged(model, before)


@pytest.mark.parametrize("name", ["c", "c.pt"])
def test_the_order_of_the_parameters_in_an_optimizer_does_not_matter(tmp_path: Path, name: str) -> None:
    saved, model = (net(a=nn.Linear(4, 3), b=nn.Linear(3, 4)) for _ in range(2))
    original = optimizer_over(saved)
    a, b = (list(model.get_submodule(part).parameters()) for part in "ab")
    optimizer = torch.optim.AdamW(b[::-1] + a)
    load(save(tmp_path / name, model=saved, optimizer=original), model=model, optimizer=optimizer)
    for mine, theirs in zip(model.parameters(), saved.parameters(), strict=True):
        assert torch.equal(optimizer.state[mine]["exp_avg"], original.state[theirs]["exp_avg"])
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_without_strict_an_optimizer_takes_what_fits(tmp_path: Path) -> None:
    saved = net(a=nn.Linear(4, 3), b=nn.Linear(3, 4))
    path = save(tmp_path / "c", model=saved, optimizer=optimizer_over(saved))
    model = net(a=nn.Linear(4, 3), c=nn.Linear(3, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    report = load(path, model=model, optimizer=optimizer, strict=False).report
    assert report.optimizer_missing == ("c.weight", "c.bias")
    assert report.optimizer_unexpected == ("b.weight", "b.bias")
    assert set(optimizer.state) == set(list(model.parameters())[:2])
    assert str(report).splitlines() == [
        "loaded: 2 of 4 entries",
        "missing in the file: c.weight",
        "missing in the file: c.bias",
        "not in the model: b.weight",
        "not in the model: b.bias",
        "no optimizer state in the file: c.weight",
        "no optimizer state in the file: c.bias",
        "optimizer state of a parameter that is not here: b.weight",
        "optimizer state of a parameter that is not here: b.bias",
        "the saved model was of another structure",
    ]


def test_an_optimizer_of_other_shapes_is_refused_without_a_model_too(tmp_path: Path) -> None:
    saved = net(a=nn.Linear(4, 4))
    path = save(tmp_path / "c.pt", model=saved, optimizer=optimizer_over(saved))
    with pytest.raises(
        CheckpointError, match=r"parameter 0 .* is of shape \[4, 4\] in the file and of shape \[2, 4\] here"
    ):
        load(path, optimizer=torch.optim.AdamW(net(a=nn.Linear(4, 2)).parameters()))
    with pytest.raises(CheckpointError, match="holds no optimizer state"):
        load(save(tmp_path / "d.pt", model=saved), model=saved, optimizer=optimizer_over(saved))
