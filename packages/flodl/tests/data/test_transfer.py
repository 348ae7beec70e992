from __future__ import annotations

import os
from collections import namedtuple
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from flodl.data.transfer import receive, send

Pair = namedtuple("Pair", "x y")


def through(value: Any) -> Any:
    ours, theirs = Pipe()
    try:
        send(theirs, value)
        return receive(ours)
    finally:
        ours.close(), theirs.close()


@given(
    sizes=st.lists(st.integers(0, 9000), max_size=5),
    dtype=st.sampled_from(
        [
            torch.float32,
            torch.float64,
            torch.bfloat16,
            torch.float16,
            torch.int64,
            torch.int8,
            torch.bool,
            torch.complex64,
        ]
    ),
)
def test_any_tensors_arrive_as_they_were(sizes: list[int], dtype: torch.dtype) -> None:
    sent = [torch.randint(0, 2, (size, 3)).to(dtype) for size in sizes]
    got = through(sent)
    assert [t.dtype for t in got] == [t.dtype for t in sent]
    assert [t.shape for t in got] == [t.shape for t in sent]
    assert all(torch.equal(a, b) for a, b in zip(got, sent, strict=True))


@pytest.mark.parametrize("size", [3, 20_000], ids=["in the pipe", "in shared memory"])
def test_structures_views_and_other_objects(size: int) -> None:
    x = torch.arange(2.0 * size).view(size, 2)
    got = through(
        {
            "p": Pair(x.t(), None),
            "n": (1, "text"),
            "scalar": torch.tensor(7),
            "same": x.t(),
            "expanded": x[:, :1].expand(-1, 4),
        }
    )
    assert type(got["p"]) is Pair
    assert torch.equal(got["p"].x, x.t())
    assert got["p"].y is None
    assert got["n"] == (1, "text")
    assert got["scalar"].item() == 7
    assert torch.equal(got["expanded"], x[:, :1].expand(-1, 4))
    got["p"].x.add_(1)  # writable, as the batch of any loader
    assert torch.equal(x, torch.arange(2.0 * size).view(size, 2))


def test_one_tensor_named_twice_is_sent_once() -> None:
    x = torch.ones(20_000)
    a, b = through((x, x))
    assert a is b


def test_tensors_inside_other_objects_and_sparse_ones() -> None:
    packed = through(pack_sequence([torch.ones(9000, 2), torch.ones(5, 2)]))
    assert isinstance(packed, PackedSequence)
    assert packed.data.shape == (9005, 2)
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(through(sparse).to_dense(), torch.eye(3))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="anonymous shared memory is Linux's")
def test_shared_memory_has_no_name_and_no_descriptor_and_is_freed() -> None:
    names = set(Path("/dev/shm").iterdir())
    process = psutil.Process()
    descriptors = process.num_fds()
    batches = [through(torch.ones(500_000)) for _ in range(10)]
    assert set(Path("/dev/shm").iterdir()) == names
    assert process.num_fds() <= descriptors + len(batches), "a map may keep one, no more"
    mapped = sum("flodl-batch" in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert mapped == 10
    del batches
    assert "flodl-batch" not in Path("/proc/self/maps").read_text()
    assert process.num_fds() == descriptors


def test_the_end_of_the_other_side_is_an_end_of_file() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(EOFError):
        receive(ours)
    ours.close()
