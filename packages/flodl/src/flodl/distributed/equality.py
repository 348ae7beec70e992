"""Whether all ranks are about to train the same."""

from __future__ import annotations

from collections.abc import Mapping

from flodl.distributed.group import Group
from flodl.errors import DistributedError

__all__ = ["check_equal"]


def check_equal(group: Group, facts: Mapping[str, str]) -> None:
    """Raise, on every rank alike, DistributedError that names what differs from rank 0 and where. facts: what -> value."""
    everybody = group.gather(dict(facts))
    first, wrong = everybody[0], []
    for what, value in first.items():
        others = {rank: told.get(what) for rank, told in enumerate(everybody) if told.get(what) != value}
        if others:
            shown = ", ".join(f"{other} on rank {rank}" for rank, other in others.items())
            wrong.append(f"{what} ({value} on rank 0, {shown})")
    if wrong:
        raise DistributedError(f"the ranks do not train the same: they differ in {'; '.join(wrong)}")
