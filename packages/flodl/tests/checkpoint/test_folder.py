"""The folder of a checkpoint: what is in it, what comes back, what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import flodl as fl
from flodl import CheckpointError
from flodl.checkpoint import load, read_manifest, rng_state, save, verify

FILES = ["manifest.json", "model.safetensors", "state.pt", "state.safetensors"]


def trained(kind: Any = torch.optim.AdamW) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer: torch.optim.Optimizer = kind(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def test_the_files_and_what_the_manifest_says_of_them(tmp_path: Path) -> None:
    model, optimizer = trained()
    path = save(
        tmp_path / "c", model=model, optimizer=optimizer, position={"epoch": 1, "sample": 5}, step=3,
        metrics={"loss": 0.5, "bad": float("nan")}, extra={"rng": rng_state()},
    )  # fmt: skip
    assert sorted(os.listdir(path)) == FILES
    assert os.listdir(tmp_path) == ["c"]
    (tmp_path / "c" / "plain").touch()
    assert len({stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}) == 1
    document = json.loads((path / "manifest.json").read_text())
    for name, facts in document["files"].items():
        content = (path / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert sorted([*document["files"], "manifest.json"]) == FILES
    assert document["versions"]["torch"] == torch.__version__
    assert document["structure"] == fl.Graph.of(model).structural_hash()
    assert document["tensors"]["0.weight"] == ["float32", [8, 4]]
    manifest = read_manifest(path)
    assert (manifest.step, manifest.position, manifest.metrics["loss"]) == (3, {"epoch": 1, "sample": 5}, 0.5)
    assert manifest.metrics["bad"] != manifest.metrics["bad"]
    # Other programs read the weights, and the state without running code.
    assert set(load_file(path / "model.safetensors")) == set(model.state_dict())
    assert set(torch.load(path / "state.pt", weights_only=True)) == {"rest", "optimizer", "extra"}


def test_training_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    model, optimizer = trained()
    path = save(tmp_path / "c", model=model, optimizer=optimizer)
    other, again = trained()
    loaded = load(path, model=other, optimizer=again)
    for m, o in ((model, optimizer), (other, again)):
        torch.manual_seed(5)
        for _ in range(3):
            o.zero_grad()
            m(torch.randn(16, 4)).square().mean().backward()
            o.step()
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    assert loaded.report.complete
    assert loaded.model is None


class Zoo(nn.Module):
    """Every kind of tensor that a state dict may hold."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        make = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(4, 6, generator=make).bfloat16())
        self.tied = self.weight
        self.turned = nn.Parameter(torch.randn(3, 5, generator=make).t())
        self.image = nn.Parameter(torch.randn(2, 3, 4, 4, generator=make).contiguous(memory_format=torch.channels_last))
        for name, value in {
            "zero_dim": torch.randn((), generator=make),
            "empty": torch.zeros(0, 3),
            "expanded": torch.randn(1, 3, generator=make).expand(4, 3),
            "part": torch.randn(100, generator=make)[10:13],
            "complex": torch.randn(3, dtype=torch.complex64, generator=make),
            "wide_complex": torch.randn(3, dtype=torch.complex128, generator=make),
            "conjugate": torch.randn(3, dtype=torch.complex64, generator=make).conj(),
            "float16": torch.randn(3, generator=make).half(),
            "float64": torch.randn(3, dtype=torch.float64, generator=make),
            "flags": torch.randn(5, generator=make) > 0,
            "uint8": torch.randint(255, (3,), dtype=torch.uint8, generator=make),
            "int64": torch.randint(2**40, (3,), generator=make),
            "sparse": torch.eye(3).mul(seed).to_sparse(),
        }.items():
            self.register_buffer(name, value)


@pytest.mark.parametrize("name", ["c", "c.pt"])
def test_every_kind_of_tensor_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    model, other = Zoo(1), Zoo(2)
    path = save(tmp_path / name, model=model)
    state = load(path).model
    assert state is not None
    assert set(state) == set(model.state_dict())
    for key, value in model.state_dict().items():
        assert state[key].dtype == value.dtype, key
        assert torch.equal(state[key].to_dense(), value.to_dense()), key
    assert state["tied"].data_ptr() == state["weight"].data_ptr()
    other.expanded = other.expanded.contiguous()  # one memory for several places cannot be written to
    load(path, model=other)
    assert other.tied is other.weight
    assert other.image.is_contiguous(memory_format=torch.channels_last)
    for key, value in other.state_dict().items():
        assert torch.equal(value.to_dense(), model.state_dict()[key].to_dense()), key


def test_extra_of_any_depth_and_shared_tensors(tmp_path: Path) -> None:
    shared = torch.arange(3)
    extra = {
        "a": [shared, {"b": (shared, None, 1 + 2j, b"x")}],
        "a/b": torch.ones(2),
        4: {1, 2},
        "count": Counter({3: 2}),
        "dtype": torch.bfloat16,
        "wide": torch.ones(2, dtype=torch.complex128),
        "row": torch.zeros(1_000_000)[:10],
    }
    path = save(tmp_path / "c", model={}, extra=extra)
    assert sum(file.stat().st_size for file in path.iterdir()) < 20_000
    got = load(path).extra
    assert torch.equal(got["a"][0], shared)
    assert got["a"][1]["b"][0].data_ptr() == got["a"][0].data_ptr()
    assert got["a"][1]["b"][1:] == (None, 1 + 2j, b"x")
    assert torch.equal(got["a/b"], torch.ones(2))
    assert got[4] == {1, 2}
    assert got["count"] == Counter({3: 2})
    assert type(got["count"]) is Counter
    assert got["dtype"] == torch.bfloat16
    assert torch.equal(got["wide"], extra["wide"])  # type: ignore[arg-type]


def test_optimizer_state_keeps_its_types_and_the_memory_format_of_the_weights(tmp_path: Path) -> None:
    model = nn.Conv2d(3, 8, 3).bfloat16().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters())
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    optimizer.state[model.weight]["exp_avg"] = optimizer.state[model.weight]["exp_avg"].float() + 1e-6
    other = nn.Conv2d(3, 8, 3).bfloat16().to(memory_format=torch.channels_last)
    again = torch.optim.AdamW(other.parameters())
    load(save(tmp_path / "c", model=model, optimizer=optimizer), model=other, optimizer=again)
    mine, theirs = again.state[other.weight], optimizer.state[model.weight]
    assert mine["exp_avg"].dtype == torch.float32
    assert torch.equal(mine["exp_avg"], theirs["exp_avg"])
    assert mine["exp_avg_sq"].dtype == torch.bfloat16
    assert mine["exp_avg"].stride() == other.weight.stride()


def test_what_has_no_values_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\['weight'\] is lazy .*run a batch"):
        save(tmp_path / "c", model=nn.LazyLinear(3))
    with pytest.raises(CheckpointError, match=r"model\['weight'\] is on the meta device"):
        save(tmp_path / "c", model=nn.Linear(3, 3, device="meta"))
    assert os.listdir(tmp_path) == []


def test_complex_numbers_do_not_become_real_ones(tmp_path: Path) -> None:
    path = save(tmp_path / "c", model={"w": torch.ones(3, dtype=torch.complex64)})

    class Real(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(3))

    with pytest.raises(CheckpointError, match=r"'w': complex \(3,\) in the file, \(3,\) in the model"):
        load(path, model=Real())


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def cut(path: Path, to: int) -> None:
    path.write_bytes(path.read_bytes()[:to])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda c: (c / "manifest.json").unlink(), r"no complete checkpoint: it has no manifest\.json"),
    "half a manifest": (lambda c: cut(c / "manifest.json", 300), r"manifest\.json is damaged"),
    "an empty manifest": (lambda c: cut(c / "manifest.json", 0), r"manifest\.json is damaged"),
    "another manifest": (lambda c: (c / "manifest.json").write_text("[1]"), "was not written by flodl"),
    "a digit of the manifest": (
        lambda c: (c / "manifest.json").write_text((c / "manifest.json").read_text().replace('"step": 3', '"step": 4')),
        r"manifest\.json is damaged: its checksum",
    ),
    **{
        f"no {name}": (lambda c, name=name: (c / name).unlink(), f"incomplete: {name} is missing")  # type: ignore[misc]
        for name in FILES[1:]
    },
    **{
        f"half of {name}": (
            lambda c, name=name: cut(c / name, (c / name).stat().st_size // 2),  # type: ignore[misc]
            rf"incomplete: {name} has \d+ bytes instead of \d+",
        )
        for name in FILES[1:]
    },
    **{
        f"a bit of {name}": (
            lambda c, name=name: flip(c / name, (c / name).stat().st_size - 9),  # type: ignore[misc]
            f"damaged: the content of {name} is not what was written",
        )
        for name in FILES[1:]
    },
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_of_each_kind_is_named_and_nothing_is_loaded(tmp_path: Path, kind: str) -> None:
    model, optimizer = trained()
    path = save(tmp_path / "c", model=model, optimizer=optimizer, step=3)
    verify(path)
    damage, message = DAMAGE[kind]
    damage(path)
    other, again = trained()
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=message) as caught:
        load(path, model=other, optimizer=again)
    assert str(path) in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_a_newer_format_says_to_upgrade(tmp_path: Path) -> None:
    path = save(tmp_path / "c", model={})
    document = json.loads((path / "manifest.json").read_text())
    document["format_version"] = 99
    document["versions"]["flodl"] = "9.0"
    (path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"format 99, written by flodl 9\.0; .*Upgrade"):
        load(path)


def test_a_folder_of_checkpoints_is_not_one(tmp_path: Path) -> None:
    save(tmp_path / "run" / "checkpoints" / "step-00000003", model={}, step=3)
    newest = save(tmp_path / "run" / "checkpoints" / "step-00000012", model={}, step=12)
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        with pytest.raises(CheckpointError, match=f"holds some: load {newest}"):
            load(folder)


def test_what_is_not_a_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    for name in ("file", "folder"):
        with pytest.raises(CheckpointError, match=rf"Cannot write the checkpoint .*{name}: .*Choose another name"):
            save(tmp_path / name, model={})
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "thesis.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", model={})


def test_a_checkpoint_is_replaced_whole_and_other_files_in_it_stay(tmp_path: Path) -> None:
    path = save(tmp_path / "c", model={"w": torch.zeros(3)}, step=1)
    (path / "notes.txt").write_text("mine")
    link = tmp_path / "last"
    link.symlink_to(path)
    save(link, model={"w": torch.ones(3)}, step=2)
    assert link.is_symlink()
    assert sorted(os.listdir(path)) == sorted([*FILES, "notes.txt"])
    assert sorted(os.listdir(tmp_path)) == ["c", "last"]
    assert load(path).step == 2


def test_where_names_cannot_be_exchanged_the_old_one_is_moved_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flodl.checkpoint.atomic._exchange", lambda *_: False)
    path = save(tmp_path / "c", model={"w": torch.zeros(3)}, step=1)
    (path / "notes.txt").write_text("mine")
    save(path, model={"w": torch.ones(3)}, step=2)
    assert load(path).step == 2
    assert (path / "notes.txt").exists()
    assert os.listdir(tmp_path) == ["c"]


# One process that forks the writers: importing torch for each would take longer than all the saves.
KILLER = textwrap.dedent(
    """
    import os, random, signal, sys, time
    from pathlib import Path
    import torch
    from flodl.checkpoint import load, read_manifest, save

    torch.set_num_threads(1)
    path, moments, left = Path(sys.argv[1]), random.Random(0), 0
    save(path, model={"w": torch.zeros(3)}, extra={"value": 0})
    for value in range(1, 41):
        before = load(path).extra["value"]
        child = os.fork()
        if child == 0:
            state = {f"w{i}": torch.full((100_000,), float(value)) for i in range(8)}
            while True:
                save(path, model=state, extra={"value": value})
        time.sleep(moments.uniform(0.001, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        checkpoint = load(path)
        found = checkpoint.extra["value"]
        assert found in (before, value), (before, value, found)
        assert all((tensor == found).all() for tensor in checkpoint.model.values())
        left += len(os.listdir(path.parent)) > 1
    save(path, model={})
    print(left, os.listdir(path.parent))
    """
)


def test_killed_at_any_moment_the_folder_is_whole(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path / "c")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    left_behind, files = run.stdout.split(maxsplit=1)
    assert int(left_behind) > 0, "no kill fell into a save: the test shows nothing"
    assert files == "['c']\n", "the next save did not clear what the killed ones left"
