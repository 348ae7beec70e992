"""The file itself: whole or not there, and refused when it is not what it should be."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl import CheckpointError
from flodl.checkpoint import load, save


def test_a_file_that_is_not_there_offers_its_neighbours(tmp_path: Path) -> None:
    save(tmp_path / "last.pt", model={})
    with pytest.raises(CheckpointError, match=r"There is no checkpoint .*lst\.pt\. Did you mean 'last.pt'"):
        load(tmp_path / "lst.pt")
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        load(tmp_path / "none" / "last.pt")
    with pytest.raises(CheckpointError, match=r"is no complete checkpoint: it has no manifest\.json"):
        load(tmp_path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "c.pt", model=nn.Linear(8, 8))
    content = path.read_bytes()
    for length in [0, 1, 100, len(content) // 2, len(content) - 100, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"c\.pt is no checkpoint, or a truncated one"):
            load(path)


def test_a_flipped_bit_in_a_tensor_is_noticed(tmp_path: Path) -> None:
    weights = torch.arange(1000.0)
    path = save(tmp_path / "c.pt", model={"w": weights})
    content = bytearray(path.read_bytes())
    content[content.index(weights[500:510].numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"c\.pt is damaged: the checksum of its record"):
        load(path)


def test_checksums_are_written_even_where_torch_was_told_not_to(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        load(save(tmp_path / "c.pt", model=nn.Linear(2, 2)))
        assert torch.serialization.get_crc32_options() is False
    finally:
        torch.serialization.set_crc32_options(True)


def test_files_of_others_are_named_for_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("not a checkpoint")
    with pytest.raises(CheckpointError, match=r"text\.pt is no checkpoint"):
        load(tmp_path / "text.pt")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "state.pt")
    with pytest.raises(
        CheckpointError, match=r"state\.pt was not written by flodl: .* 'weight', 'bias'.*load_state_dict"
    ):
        load(tmp_path / "state.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(CheckpointError, match=r"module\.pt is no checkpoint"):
        load(tmp_path / "module.pt")


def test_a_newer_format_says_to_upgrade(tmp_path: Path) -> None:
    path = save(tmp_path / "c.pt", model={})
    payload = torch.load(path, weights_only=True)
    payload["format_version"] = 99
    payload["versions"]["flodl"] = "9.0"
    torch.save(payload, path)
    with pytest.raises(CheckpointError, match=r"format 99, written by flodl 9\.0; .*Upgrade"):
        load(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_leaves_the_previous_file_and_nothing_else(small_disk: Path) -> None:
    path = save(small_disk / "c.pt", model={"w": torch.arange(1000.0)})
    with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*c\.pt: No space left on device"):
        save(path, model={"w": torch.zeros(1_000_000)})
    assert os.listdir(small_disk) == ["c.pt"]
    assert torch.equal(load(path).model["w"], torch.arange(1000.0))  # type: ignore[index]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    path = save(tmp_path / "c.pt", model={"w": torch.zeros(1)})
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*c\.pt: Permission denied"):
            save(path, model={"w": torch.ones(1)})
    finally:
        tmp_path.chmod(0o700)
    assert load(path).model["w"] == 0  # type: ignore[index]


def test_a_read_only_file_system(small_disk: Path) -> None:
    path = save(small_disk / "c.pt", model={"w": torch.zeros(1)})
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*c\.pt: Read-only file system"):
        save(path, model={"w": torch.ones(1)})
    assert load(path).model["w"] == 0  # type: ignore[index]


def test_a_path_through_a_file_and_a_path_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*(Not a directory|File exists)"):
        save(tmp_path / "file" / "c.pt", model={})
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint .*Is a directory"):
        save(tmp_path / "folder.pt", model={})
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.pt"]


WRITER = textwrap.dedent(
    """
    import sys, torch
    from flodl.checkpoint import save
    path, value, times = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    state = {f"w{i}": torch.full((50_000,), value) for i in range(8)}
    for _ in range(times):
        save(path, model=state, extra={"value": value})
    """
)


def writer(path: Path, value: float, times: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(value), str(times)], text=True)


def whole(path: Path) -> float:
    """The value that one writer gave to every tensor of the file."""
    checkpoint = load(path)
    value: float = checkpoint.extra["value"]
    assert checkpoint.model is not None
    assert all(bool((tensor == value).all()) for tensor in checkpoint.model.values())
    return value


def test_two_processes_that_save_the_same_path_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    writers = [writer(path, 1.0, 15), writer(path, 2.0, 15)]
    while any(process.poll() is None for process in writers):
        if path.exists():
            assert whole(path) in (1.0, 2.0)
    for process in writers:
        process.communicate()
        assert process.returncode == 0
    assert os.listdir(tmp_path) == ["c.pt"]


# One process that forks the writers: importing torch for each would take longer than all the saves.
KILLER = textwrap.dedent(
    """
    import os, random, signal, sys, time
    from pathlib import Path
    import torch
    from flodl.checkpoint import load, save

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


def test_killed_at_any_moment_the_file_is_whole(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path / "c.pt")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    left_behind, files = run.stdout.split(maxsplit=1)
    assert int(left_behind) > 0, "no kill fell into a save: the test shows nothing"
    assert files == "['c.pt']\n", "the next save did not clear what the killed ones left"


def test_ctrl_c_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = save(tmp_path / "c.pt", model={"w": torch.zeros(1)})

    class Interrupting(torch.Tensor):
        def __reduce_ex__(self, protocol: object) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(path, model={"w": torch.ones(1).as_subclass(Interrupting)})
    assert os.listdir(tmp_path) == ["c.pt"]
    assert load(path).model["w"] == 0  # type: ignore[index]
