"""Observing a model: values of tags and modules, their means by epoch, their trends; for a flow and for any module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from flodl.errors import FlowError, nearest
from flodl.graph.paths import Place, check_path, find_module, find_value, flows, plan_of
from flodl.graph.records import Hook, Records
from flodl.graph.traces import Trace
from flodl.graph.trend import Trend, Trends

__all__ = ["Observed"]


class Observed:
    """Methods that observe values by name.

    A name is a tag, a tag group, or a path to one in a part (`encoder.scan`), or the path of a module, which is its output.
    What is not observed costs nothing; values are detached when they are seen. Values belong to the flow that makes
    them, so a part's own `trend("scan")` and the whole's `trend("encoder.scan")` are one.
    """

    _records: Records
    _hooks: dict[str, RemovableHandle]

    @property
    def _root(self) -> nn.Module:
        """The module at the top."""
        raise NotImplementedError

    def observe(self, *names: str) -> None:
        """From the next forward on, keep the last value of these names for `tagged`, and those of a loop for `traces`."""
        for place in self._places(names):
            self._watch(place)
            if place.kind != "emitted":
                records, name = self._home(place)
                records.last.setdefault(name, None)

    def collect(self, *names: str) -> None:
        """From the next forward on, average these values over all forwards until `flush`, whose means `trend` tells.

        Calling it again changes nothing: once before training is enough, at every batch does no harm. Forwards in
        evaluation count as well: flush before them, or `release`.
        """
        for place in self._places(names):
            if place.kind == "emitted":
                raise FlowError(f"'{place.path}' is emitted inside a loop: observe it and read its traces")
            self._watch(place)
            records, name = self._home(place)
            records.collected.add(name)

    def release(self, *names: str) -> None:
        """Observe these names no longer (without names: nothing at all, in the whole tree). Trends stay."""
        places = self._places(names) if names else [*self._watched()]
        for place in places:
            if place.kind == "emitted":
                place.owner._trace = None  # type: ignore[assignment]
                continue
            records, name = self._home(place)
            records.last.pop(name, None)
            records.collected.discard(name)
            for trace, called in records.traces.pop(name, []):
                trace.values.pop(called, None)
            if place.kind == "module":
                if place.path in self._hooks:
                    self._hooks.pop(place.path).remove()
            else:
                _flow(place.owner)._see_only(place.owner._observed - {name})  # type: ignore[operator]

    def tagged(self, path: str) -> Any:
        """The last value of an observed name, detached; None before the first forward."""
        place = find_value(self._root, path)
        records, name = self._home(place)
        if name not in records.last:
            raise FlowError(f"'{path}' is not observed: call observe('{path}') before the forward")
        return records.last[name]

    def traces(self, path: str) -> list[Any]:
        """The values of an observed name at each iteration of the loop around it, in the loop's last run.

        None stands where an iteration gave no value. Under `per_sample` a value has the samples that still ran.
        """
        place = find_value(self._root, path)
        if not place.loops:
            raise FlowError(f"'{path}' is not inside a loop: its last value is tagged('{path}')")
        loop, called = place.loops[-1]
        trace: Any = loop._trace
        if trace is None or called not in trace.values:
            raise FlowError(f"'{path}' is not observed: call observe('{path}') before the forward")
        return list(trace.values[called])

    def record(self, name: str, value: Tensor | float) -> None:
        """Add a number of your own (a loss) under any name; a dotted name belongs to the part that it begins with."""
        check_path(name)
        part, _, last = name.rpartition(".")
        records, prefix = self._part_records(part)
        records.record(prefix + last, value.detach() if isinstance(value, Tensor) else value)

    def flush(self) -> dict[str, float]:
        """End an epoch, here and in all flows below: the mean of everything collected and recorded since the last flush."""
        means = dict(self._records.flush())
        for path, flow, _ in flows(self._root):
            if flow.__dict__["_records"] is not self._records:
                means.update({f"{path}.{name}": v for name, v in flow.__dict__["_records"].flush().items()})
        return means

    def trend(self, name: str) -> Trend:
        """The means of a collected or recorded name, one for each flush."""
        check_path(name)
        part, _, last = name.rpartition(".")
        known: dict[str, Trend] = {}
        for path, records in [("", self._records), *((p, f.__dict__["_records"]) for p, f, _ in flows(self._root))]:
            known.update({f"{path}.{n}" if path else n: t for n, t in records.trends.items()})
        if name not in known:
            short = [n for n in known if n.endswith(f".{last}")] if not part else []
            if len(short) != 1:
                raise FlowError(f"nothing was flushed under the name '{name}'.{nearest(name, known)}")
            name = short[0]
        return known[name]

    def trends(self, *names: str) -> Trends:
        """Several trends as one; a tag group stands for its tags."""
        expanded = [n for name in names for n in self._expanded(name)]
        if not expanded:
            raise FlowError("trends of what? Name at least one")
        return Trends({name: self.trend(name) for name in expanded})

    tagged_at = tagged
    record_at = record
    trend_at = trend

    # -- where values are kept

    def _expanded(self, name: str) -> list[str]:
        """A tag group gives its tags, with the same beginning."""
        check_path(name)
        part, _, last = name.rpartition(".")
        try:
            plan = plan_of(find_module(self._root, part))
        except FlowError:
            plan = None  # no part of that name: the lookup of the value says so, or finds a trend of that name
        members = plan.groups.get(last) if plan is not None else None
        return [name] if members is None else [f"{part}.{m}" if part else m for m in members]

    def _places(self, names: tuple[str, ...]) -> list[Place]:
        return [find_value(self._root, n) for name in names for n in self._expanded(name)]

    def _home(self, place: Place) -> tuple[Records, str]:
        """The records that hold the value, and its name there."""
        if place.kind == "tag":
            return place.owner.__dict__["_records"], place.name
        return self._records, place.path

    def _part_records(self, part: str) -> tuple[Records, str]:
        module = find_module(self._root, part)
        if plan_of(module) is not None:
            return module.__dict__["_records"], ""
        return self._records, f"{part}." if part else ""

    def _watch(self, place: Place) -> None:
        """Let the value be seen: in the generated forward of its flow, by the loop around it, or by a hook."""
        if place.loops:
            loop, called = place.loops[-1]
            trace: Trace = loop._trace or Trace()  # type: ignore[assignment]
            trace.want(called)
            loop._trace = trace  # type: ignore[assignment]
            if place.kind != "emitted":
                records, name = self._home(place)
                if (trace, called) not in records.traces.setdefault(name, []):
                    records.traces[name].append((trace, called))
        if place.kind == "tag":
            _flow(place.owner)._see_only(place.owner._observed | {place.name})  # type: ignore[operator]
        elif place.kind == "module" and place.path not in self._hooks:
            self._hooks[place.path] = place.owner.register_forward_hook(Hook(self._records, place.path))

    def _watched(self) -> list[Place]:
        """Everything that is observed in the tree."""
        places = [find_value(self._root, path) for path in self._hooks]
        for path, module in self._root.named_modules():
            prefix = f"{path}." if path else ""
            if plan_of(module) is not None:
                places += [Place("tag", module, t, prefix + t) for t in sorted(module.__dict__["_observed"])]
            elif module.__dict__.get("_trace") is not None:
                places.append(Place("emitted", module, "", path))
        return places


def _flow(module: nn.Module) -> Any:
    see_only: Callable[[frozenset[str]], None] = module._see_only  # type: ignore[assignment]
    assert callable(see_only)
    return module
