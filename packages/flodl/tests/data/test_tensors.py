from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from flodl import DataError
from flodl.data import Tensors


def test_a_list_of_indices_gives_a_batch_of_the_same_structure() -> None:
    x, y = torch.arange(12.0).view(4, 3), torch.arange(4)
    for ds, pick in [
        (Tensors(x, y), lambda b: b),
        (Tensors((x, y)), lambda b: b),
        (Tensors({"x": x, "y": y}), lambda b: (b["x"], b["y"])),
        (Tensors({"in": [x], "out": (y, None)}), lambda b: (b["in"][0], b["out"][0])),
    ]:
        got_x, got_y = pick(ds[[3, 1]])
        assert torch.equal(got_x, x[[3, 1]])
        assert torch.equal(got_y, y[[3, 1]])
        fetched_x, fetched_y = pick(ds.fetch(torch.tensor([3, 1])))
        assert torch.equal(fetched_x, x[[3, 1]])
        assert torch.equal(fetched_y, y[[3, 1]])
        assert len(ds) == 4
    assert torch.equal(Tensors(x)[[2]], x[[2]])
    assert torch.equal(Tensors(x).fetch(torch.tensor([2])), x[[2]])


def test_one_sample_slices_arrays_and_iteration_follow_python() -> None:
    x = torch.arange(4)
    ds = Tensors(x, x)
    assert ds[-1] == (torch.tensor(3), torch.tensor(3))
    assert torch.equal(ds[1:3][0], torch.tensor([1, 2]))
    assert torch.equal(ds[np.array([0, 2])][0], torch.tensor([0, 2]))
    assert torch.equal(ds[torch.tensor([0, 2])][0], torch.tensor([0, 2]))
    assert torch.equal(ds[[-1]][0], torch.tensor([3]))
    assert ds[[]][0].shape == (0,)
    assert [int(a) for a, _ in ds] == [0, 1, 2, 3]
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=f"sample {wrong} of a dataset of 4"):
            ds[wrong]
    with pytest.raises(IndexError):
        ds[[0, 4]]


def test_torch_dataloader_takes_it() -> None:
    x, y = torch.arange(12.0).view(4, 3), torch.arange(4)
    got = list(DataLoader(Tensors(x, y), batch_size=3))
    assert torch.equal(torch.cat([b[0] for b in got]), x)
    assert torch.equal(torch.cat([b[1] for b in got]), y)


def test_it_can_be_sent_to_another_process() -> None:
    ds = pickle.loads(pickle.dumps(Tensors(torch.arange(4.0), torch.arange(4), classes=4)))
    assert torch.equal(ds.fetch(torch.tensor([3, 1]))[1], torch.tensor([3, 1]))
    assert ds.classes == 4


def test_tensors_and_arrays_are_shared_not_copied(tmp_path: Path) -> None:
    x, y = torch.zeros(4, 3), np.zeros(4, dtype=np.int64)
    ds = Tensors(x, y)
    assert ds.structure[0].data_ptr() == x.data_ptr()
    y[2] = 7
    assert ds[2][1] == 7
    assert ds.to("cpu").structure[0].data_ptr() == x.data_ptr()
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")  # not writable: torch would warn
    assert torch.equal(Tensors(mapped)[[2]], torch.tensor([[4.0, 5.0]], dtype=torch.float64))
    assert torch.equal(Tensors(np.arange(3)[::-1])[0], torch.tensor(2))


def test_a_batch_carries_no_gradient_into_the_dataset() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    assert not Tensors(x, x * 2)[[0]][1].requires_grad


def test_size_and_device() -> None:
    ds = Tensors(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), classes=1)
    assert ds.nbytes == 4 * 3 * 4 + 4 * 8
    assert ds.device.type == "cpu"
    moved = ds.to("meta")
    assert moved.device.type == "meta"
    assert moved.classes == 1
    assert moved.fetch(torch.zeros(2, dtype=torch.int64, device="meta"))[0].device.type == "meta"
    assert ds.device.type == "cpu", "the original was moved"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((), "got no tensor"),
        (((),), "at least one tensor; got an empty tuple"),
        ((torch.zeros(3, 2), torch.zeros(4)), r"same number of samples: \[0\] has 3, \[1\] has 4"),
        (({"x": torch.zeros(3), "y": torch.zeros(2)},), r"\['x'\] has 3, \['y'\] has 2"),
        ((torch.zeros(0, 2), torch.zeros(0)), r"empty dataset.*\[0\] \(0, 2\), \[1\] \(0,\)"),
        ((torch.zeros(2), torch.tensor(1.0)), r"\[1\] is a single number"),
        ((torch.zeros(2), [0, 1]), r"tensors or numpy arrays; \[1\]\[0\] is 0 of type int"),
        (("abc",), "the argument is 'abc' of type str"),
        ((np.array(["a", "b"]),), "dtype <U1 cannot be a tensor"),
    ],
)
def test_what_is_no_dataset_is_refused_by_name(columns: tuple[object, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Tensors(*columns)


def test_labels_out_of_range_are_named_with_their_index() -> None:
    x, y = torch.zeros(5, 2), torch.tensor([0, 9, -100, 10, 12])
    with pytest.raises(DataError, match=re.escape("Label 10 of sample 3 is outside 0..9 (2 of 5 labels are")):
        Tensors(x, y, classes=10)
    y[3:] = 3
    assert Tensors(x, y, classes=10).classes == 10
    y[0] = -1
    with pytest.raises(DataError, match=re.escape("Label -1 of sample 0 is outside 0..9")):
        Tensors({"pixels": x, "labels": y}, classes=10)
    with pytest.raises(DataError, match=re.escape("Label 5 of sample (1, 0) is outside 0..4")):
        Tensors(x, torch.tensor([[0, 1], [5, 1], [0, 0], [0, 0], [0, 0]]), classes=5)


def test_labels_in_bytes_do_not_wrap_around() -> None:
    x, y = torch.zeros(2, 2), torch.tensor([156, 0], dtype=torch.uint8)  # 156 is -100 as a byte
    with pytest.raises(DataError, match="Label 156 of sample 0"):
        Tensors(x, y, classes=10)
    assert Tensors(x, y, classes=1000).classes == 1000


def test_labels_must_be_integers_and_be_found() -> None:
    x = torch.zeros(5, 2)
    with pytest.raises(DataError, match=r"integers; \[1\] is torch.float32"):
        Tensors(x, torch.zeros(5), classes=10)
    with pytest.raises(DataError, match="'pixels', 'kind'"):
        Tensors({"pixels": x, "kind": torch.zeros(5)}, classes=10)
