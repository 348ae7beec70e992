"""Who is in a generation of ranks: agreed upon in the launcher's store, which outlives every rank."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from flodl.errors import DistributedError

__all__ = ["FAILED", "GONE", "JOINS", "Rendezvous", "failure"]

GONE = "gone/"  # + uid: its process has ended
JOINS = "joins"  # how many processes have asked to come in
FAILED = "failed"  # why training cannot go on
_POLL_SECONDS = 0.005


class Rendezvous:
    """Generation after generation: each is a list of uids, decided by the first one to come and read by all."""

    def __init__(self, store: Any, uid: int, timeout: float) -> None:
        self.uid = uid
        self._store, self._timeout = store, timeout

    def meet(self, generation: int, *, expected: Sequence[int], joins: int = 0) -> list[int]:
        """The members of `generation`. The first to come waits for those of `expected` that the launcher does not know to
        be gone, up to the timeout, and for newcomers up to number `joins`."""
        store, name = self._store, f"meet/{generation}"
        place = int(store.add(f"{name}/count", 1))
        store.set(f"{name}/{place}", str(self.uid))
        if place == 1:
            store.set(f"{name}/members", json.dumps(self._gathered(name, expected, joins)))
        store.wait([f"{name}/members"], timedelta(seconds=self._timeout + 10))
        members: list[int] = json.loads(store.get(f"{name}/members"))
        return members

    def _gathered(self, name: str, expected: Sequence[int], joins: int) -> list[int]:
        store, until = self._store, time.monotonic() + self._timeout
        newcomers = [int(store.get(f"knock/{n}")) for n in range(1, joins + 1)]
        wanted = {*expected, *newcomers}
        while True:
            here = {int(store.get(f"{name}/{n}")) for n in range(1, int(store.add(f"{name}/count", 0)) + 1)}
            missing = {uid for uid in wanted - here if not store.check([f"{GONE}{uid}"])}
            if not missing or time.monotonic() > until:
                return sorted(here)
            time.sleep(_POLL_SECONDS)

    def knock(self) -> tuple[int, list[int]]:
        """Ask to come in, wait until the members open, and meet them. Returns the generation and its members."""
        store = self._store
        self.uid = 1_000_000 + int(store.add("newcomers", 1))  # after those that started; unique for ever
        number = int(store.add("knocks", 1))
        store.set(f"knock/{number}", str(self.uid))
        store.add(JOINS, 1)
        try:
            store.wait([f"open/{number}"], timedelta(seconds=max(self._timeout, 60.0)))
        except RuntimeError as error:
            raise DistributedError("the training did not let this process in: has it ended?") from error
        found = json.loads(store.get(f"open/{number}"))
        return found["generation"], self.meet(found["generation"], expected=found["members"], joins=found["joins"])

    def open(self, generation: int, members: Sequence[int], joins: int) -> None:
        """Tell all who have asked by now where to come."""
        told = json.dumps({"generation": generation, "members": list(members), "joins": joins})
        for number in range(1, joins + 1):
            self._store.set(f"open/{number}", told)


def failure(store: Any, text: str | None = None) -> str | None:
    """Why training cannot go on: the first text that was told. None: it can."""
    if text is not None:
        store.compare_set(FAILED, "", text)
    return store.get(FAILED).decode() if store.check([FAILED]) else None
