"""Parts of a model by label path, names that have changed, files of earlier versions."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

import flodl as fl
from flodl import CheckpointError
from flodl.checkpoint import load, read_manifest, save
from flodl.checkpoint.keys import plain_name, unwrapped

BOTH = pytest.mark.parametrize("name", ["c", "c.pt"])


def net(**layers: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(layers))


def flow(width: int = 3) -> fl.Graph:
    encoder = fl.flow(nn.Linear(4, width)).tag("scan").through(nn.LayerNorm(width)).label("encoder").build()
    return fl.flow(encoder).through(nn.Linear(width, 2)).build()


def equal(a: nn.Module, b: nn.Module) -> bool:
    mine, theirs = a.state_dict(), b.state_dict()
    return list(mine) == list(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)


@BOTH
def test_a_part_by_its_label_path_goes_into_a_part_of_another_model(tmp_path: Path, name: str) -> None:
    graph, other = flow(), net(vision=net(encoder=flow().subgraph("encoder")), head=nn.Linear(3, 5))
    before = other.head.weight.clone()  # type: ignore[union-attr,operator]
    path = save(tmp_path / name, model=graph, only="encoder")
    state = load(path).model
    assert state is not None
    assert set(state) == set(graph.subgraph("encoder").state_dict())
    load(path, model=other, into="vision.encoder")
    assert equal(other.get_submodule("vision.encoder"), graph.subgraph("encoder"))
    assert torch.equal(other.head.weight, before)  # type: ignore[union-attr,arg-type]
    alone = flow().subgraph("encoder")
    assert load(path, model=alone).report.complete
    assert equal(alone, graph.subgraph("encoder"))
    with pytest.raises(CheckpointError, match=r"it holds the part 'encoder' of a model: into='encoder' loads it there"):
        load(path, model=flow())
    with pytest.raises(CheckpointError, match=r"no such part: .*'encodr'.*Did you mean 'encoder'"):
        load(path, model=flow(), into="encodr")


@BOTH
def test_only_a_part_of_a_whole_file(tmp_path: Path, name: str) -> None:
    graph, other = flow(), flow()
    path = save(tmp_path / name, model=graph)
    load(path, model=other, only="encoder")
    assert equal(other.subgraph("encoder"), graph.subgraph("encoder"))
    assert not equal(other, graph)
    far = net(deep=net(enc=flow().subgraph("encoder")))
    load(path, model=far, only="encoder", into="deep.enc")
    assert equal(far.get_submodule("deep.enc"), graph.subgraph("encoder"))
    with pytest.raises(CheckpointError, match=r"holds no part 'encodr'.* Did you mean 'encoder'"):
        load(path, model=other, only="encodr")


def test_a_tag_names_the_module_that_makes_its_value(tmp_path: Path) -> None:
    graph = flow()
    path = save(tmp_path / "c", model=graph, only="encoder.scan")
    linear = nn.Linear(4, 3)
    load(path, model=linear)
    assert equal(linear, graph.subgraph("encoder.scan"))
    assert read_manifest(path).part == "encoder.scan"


def test_a_part_has_no_optimizer(tmp_path: Path) -> None:
    graph = flow()
    optimizer = torch.optim.SGD(graph.parameters(), lr=0.1)
    for name in ("c", "c.pt"):
        with pytest.raises(CheckpointError, match="only='encoder' saves a part"):
            save(tmp_path / name, model=graph, optimizer=optimizer, only="encoder")
        with pytest.raises(CheckpointError, match="only='encoder' "):
            save(tmp_path / name, model=graph.state_dict(), only="encoder")
        with pytest.raises(CheckpointError, match="A part of a model has no optimizer state"):
            load(save(tmp_path / name, model=graph), model=graph, optimizer=optimizer, only="encoder")


def trained(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


@BOTH
@pytest.mark.parametrize(
    "migrate",
    [
        {"enc.": "encoder.", "enc.out.": "encoder.top."},
        lambda name: name.replace("enc.out.", "encoder.top.").replace("enc.", "encoder."),
    ],
    ids=["map", "function"],
)
def test_names_that_have_changed(tmp_path: Path, name: str, migrate: Any) -> None:
    old = net(enc=net(first=nn.Linear(4, 3), out=nn.Linear(3, 3)), head=nn.Linear(3, 2))
    new = net(encoder=net(first=nn.Linear(4, 3), top=nn.Linear(3, 3)), head=nn.Linear(3, 2))
    before = trained(old)
    path = save(tmp_path / name, model=old, optimizer=before)
    after = torch.optim.AdamW(new.parameters())
    with pytest.raises(CheckpointError, match="missing in the file: 'encoder.first.weight'"):
        load(path, model=new, optimizer=after)
    assert load(path, model=new, optimizer=after, migrate=migrate).report.complete
    for mine, theirs in zip(new.parameters(), old.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(after.state[mine]["exp_avg"], before.state[theirs]["exp_avg"])


def test_migrations_that_are_wrong_are_named(tmp_path: Path) -> None:
    path = save(tmp_path / "c", model=net(enc=nn.Linear(4, 3), head=nn.Linear(3, 2)))
    model = net(enc=nn.Linear(4, 3))
    with pytest.raises(CheckpointError, match=r"no name in the file begins with 'encoder\.'"):
        load(path, model=model, migrate={"encoder.": "enc."})
    with pytest.raises(CheckpointError, match=r"gives 'enc.weight' and 'head.weight' the same name"):
        load(path, model=model, migrate={"head.": "enc."})
    with pytest.raises(CheckpointError, match=r"migrate\('enc.weight'\) gave 3"):
        load(path, model=model, migrate=lambda name: 3)  # type: ignore[arg-type,return-value]
    kept = load(path, model=model, migrate=lambda name: name if name.startswith("enc") else None).report
    assert kept.complete


def test_a_model_of_another_structure_whose_weights_fit_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path / "c", model=net(a=nn.Linear(2, 2), act=nn.ReLU()))
    assert not load(path, model=net(a=nn.Linear(2, 2), act=nn.ReLU())).report.structure_differs
    assert load(path, model=net(a=nn.Linear(2, 2), act=nn.GELU())).report.structure_differs


def test_files_of_the_first_version_are_read(tmp_path: Path) -> None:
    """As version 1 wrote them: the optimizer's parameters are numbers, their names stand beside."""
    saved = net(a=nn.Linear(4, 3), b=nn.Linear(3, 2))
    optimizer = trained(saved)
    names = [[name for name, _ in saved.named_parameters()]]
    payload = {
        "format": "flodl.checkpoint",
        "format_version": 1,
        "versions": {"flodl": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "model": saved.state_dict(),
        "optimizer": {
            "type": "AdamW",
            "names": names,
            "shapes": [[list(p.shape) for p in saved.parameters()]],
            "state_dict": optimizer.state_dict(),
        },
        "position": {"epoch": 2, "sample": 5},
        "extra": {"step": 7},
    }
    torch.save(payload, tmp_path / "c.pt")
    model = net(a=nn.Linear(4, 3), b=nn.Linear(3, 2))
    again = torch.optim.AdamW(list(model.parameters())[::-1])
    found = load(tmp_path / "c.pt", model=model, optimizer=again)
    assert equal(model, saved)
    assert (found.step, found.position, found.extra) == (7, {"epoch": 2, "sample": 5}, {"step": 7})
    for mine, theirs in zip(model.parameters(), saved.parameters(), strict=True):
        assert torch.equal(again.state[mine]["exp_avg"], optimizer.state[theirs]["exp_avg"])


def compiled_inside() -> nn.Module:
    model = net(encoder=net(scan=nn.Linear(4, 3)), head=nn.Linear(3, 2))
    model.encoder = torch.compile(model.encoder, backend="eager")  # type: ignore[assignment]
    return model


def test_wrappers_in_the_middle_of_a_path(tmp_path: Path) -> None:
    model = torch.compile(nn.DataParallel(compiled_inside()), backend="eager")
    path = save(tmp_path / "c", model=model, only="encoder.scan")  # type: ignore[arg-type]
    assert set(load(path).model or ()) == {"weight", "bias"}
    whole = save(tmp_path / "whole", model=model)  # type: ignore[arg-type]
    assert set(load(whole).model or ()) == {
        "encoder.scan.weight", "encoder.scan.bias", "head.weight", "head.bias",
    }  # fmt: skip
    other = compiled_inside()
    load(path, model=other, into="encoder.scan")
    load(whole, model=other)


@pytest.mark.filterwarnings("ignore")  # of FSDP, that one process shards nothing
def test_fsdp_and_activation_checkpointing_leave_no_names(tmp_path: Path) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import FullyShardedDataParallel

    assert plain_name("_fsdp_wrapped_module.a._checkpoint_wrapped_module.w") == "a.w"
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/init", rank=0, world_size=1)
    try:
        inner = net(a=checkpoint_wrapper(nn.Linear(4, 3)), b=nn.Linear(3, 2))
        model = FullyShardedDataParallel(inner, device_id=torch.device("cpu"), use_orig_params=True)
        assert unwrapped(model) is inner
        optimizer = trained(model)
        path = save(tmp_path / "c", model=model, optimizer=optimizer)
        model.world_size = 2
        with pytest.raises(CheckpointError, match="FSDP keeps the optimizer's state in parts: use .*save_sharded"):
            save(tmp_path / "d", model=model, optimizer=optimizer)
        bias = optimizer.state[inner.b.bias]["exp_avg"].clone()  # type: ignore[index,union-attr]
        del model, inner
    finally:
        distributed.destroy_process_group()
    found = load(path)
    assert list(found.model or ()) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    plain = net(a=nn.Linear(4, 3), b=nn.Linear(3, 2))
    again = torch.optim.AdamW(plain.parameters())
    load(path, model=plain, optimizer=again)
    assert torch.equal(again.state[plain.b.bias]["exp_avg"], bias)  # type: ignore[index,union-attr]
