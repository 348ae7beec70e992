"""State that is spread over processes: two write it, one, two and three read it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl import CheckpointError
from flodl.checkpoint import load, load_sharded, save, save_sharded

# Forks the processes: importing torch for each would take longer than the rest.
PROCESSES = textwrap.dedent(
    """
    import os, sys, warnings
    from pathlib import Path
    import torch
    from torch import distributed, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from flodl import CheckpointError
    from flodl.checkpoint import load_sharded, save, save_sharded

    torch.set_num_threads(1)
    folder, path = Path(sys.argv[1]), Path(sys.argv[1]) / "c"

    def model_and_optimizer(processes, seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))
        mesh = init_device_mesh("cpu", (processes,))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model, optimizer, steps):
        for step in range(steps):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()

    def whole(model):
        return {name: value.full_tensor() for name, value in model.state_dict().items()}

    def write(rank, processes):
        model, optimizer = model_and_optimizer(processes, 0)
        train(model, optimizer, 2)
        save_sharded(path, model=model, optimizer=optimizer, step=2, position={"epoch": 1, "sample": 3},
                     metrics={"loss": 0.5}, extra={"rank": rank})
        train(model, optimizer, 2)
        state = whole(model)
        if rank == 0:
            save(folder / "expected.pt", model=state)
        try:
            save(folder / "one", model=model)
        except CheckpointError as error:
            assert "save_sharded" in str(error), error
        else:
            raise AssertionError("a part of the weights was saved as the whole")
        distributed.barrier()
        before = sorted(os.listdir(folder))
        distributed.barrier()
        try:  # one process fails: all raise, what was there stays
            save_sharded(path, model=model, extra={"x": object()})
        except CheckpointError as error:
            assert "failed in process 0" in str(error) and "is of type object" in str(error), error
        else:
            raise AssertionError("no error")
        distributed.barrier()
        assert sorted(os.listdir(folder)) == before

    def read(rank, processes):
        model, optimizer = model_and_optimizer(processes, 5)
        found = load_sharded(path, model=model, optimizer=optimizer)
        assert found.extra == {"rank": 0} and found.step == 2 and found.position == {"epoch": 1, "sample": 3}
        assert found.report.complete and len(found.report.loaded) == 4
        train(model, optimizer, 2)
        state = whole(model)
        if rank == 0:
            from flodl.checkpoint import load
            expected = load(folder / "expected.pt").model
            for name, value in state.items():
                torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)
            print("agrees", processes)
        distributed.barrier()

    def run(work, processes, init):
        children = []
        for rank in range(processes):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    distributed.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=processes)
                    work(rank, processes)
                    distributed.destroy_process_group()
                    code = 0
                except BaseException:
                    import traceback
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            children.append(child)
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)

    run(write, 2, folder / "init")
    for processes in (1, 2, 3):
        run(read, processes, folder / f"init{processes}")
    """
)


def test_written_by_two_processes_and_read_by_one_two_and_three(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROCESSES, str(tmp_path)], capture_output=True, text=True, check=False, timeout=250
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[:3] == ["agrees 1", "agrees 2", "agrees 3"]
    with pytest.raises(CheckpointError, match=r"was written by save_sharded: .*load_sharded"):
        load(tmp_path / "c")
    data = next((tmp_path / "c").glob("__1*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"damaged: the content of {data.name}"):
        load_sharded(tmp_path / "c", model=nn.Linear(2, 2))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_one_process_without_a_group(tmp_path: Path) -> None:
    model, optimizer = trained()
    path = save_sharded(tmp_path / "c", model=model, optimizer=optimizer)
    assert os.listdir(tmp_path) == ["c"]
    other, again = trained()
    load_sharded(path, model=other, optimizer=again)
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(again.state[mine]["exp_avg"], optimizer.state[theirs]["exp_avg"])


def test_a_fresh_optimizer_stays_fresh(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer, other = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(model.parameters())
    path = save_sharded(tmp_path / "c", model=model, optimizer=optimizer)
    load_sharded(path, model=model, optimizer=other)
    assert not optimizer.state
    assert not other.state


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    model, optimizer = trained()
    path = save_sharded(tmp_path / "c", model=model, optimizer=optimizer)
    other = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(3, 1))
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"missing in the file: '2.weight'[^$]*of another shape: '1.weight'"):
        load_sharded(path, model=other)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    report = load_sharded(path, model=other, strict=False).report
    assert report.loaded == ("0.weight", "0.bias")
    assert report.missing == ("2.weight", "2.bias")
    assert torch.equal(other.get_parameter("0.weight"), model.get_parameter("0.weight"))
    with pytest.raises(CheckpointError, match="holds the state of AdamW; this optimizer is SGD"):
        load_sharded(path, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(CheckpointError, match=r"was written by save: .*fl\.checkpoint\.load"):
        load_sharded(save(tmp_path / "plain", model=model), model=model)
    with pytest.raises(CheckpointError, match=r"no complete checkpoint"):
        load_sharded(tmp_path / "nothing", model=model)
