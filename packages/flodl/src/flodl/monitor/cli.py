"""What `fdl dash` and `fdl runs` do: `python -m flodl.monitor.cli`."""

from __future__ import annotations

import argparse
import getpass
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flodl.errors import StoreError
from flodl.monitor.control import Action, request
from flodl.monitor.exports import export_csv, export_tensorboard, write_log
from flodl.monitor.format import format_duration, format_name, format_value, one_line
from flodl.monitor.report import save_html
from flodl.monitor.runs import UnknownRun, compare_runs, find_run, prunable, remove_run
from flodl.monitor.schema import FILE_NAME
from flodl.monitor.serve import serve
from flodl.monitor.store import RunView

__all__ = ["main"]

_EXPORTS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "html": (save_html, ".html"),
    "csv": (export_csv, ".csv"),
    "log": (write_log, ".log"),
    "tensorboard": (export_tensorboard, "-tensorboard"),
}
_SHOWN_METRICS = 4


def main(words: Sequence[str]) -> int:
    """One call; its exit code: 2 for a wrong call, 1 for what could not be done."""
    options = _parser().parse_args(words)
    try:
        return int(options.run(options) or 0)
    except UnknownRun as error:
        print(f"fdl: {error}", file=sys.stderr)
        return 2
    except StoreError as error:
        print(f"fdl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fdl", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    dash = commands.add_parser("dash")
    dash.add_argument("folder", nargs="?", type=Path)
    dash.add_argument("--port", type=int, default=3000)
    dash.add_argument("--host", default="127.0.0.1")
    dash.add_argument("--open", action="store_true")
    dash.add_argument("--allowed-host", action="append", default=[])
    dash.add_argument("--token")
    dash.set_defaults(run=_dash)
    runs = commands.add_parser("runs").add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], object], *, ids: str | None = None
    ) -> argparse.ArgumentParser:
        command = runs.add_parser(name)
        command.add_argument("--folder", type=Path, default=Path("runs"))
        command.add_argument("--json", action="store_true")
        if ids is not None:
            command.add_argument("id" if not ids else "ids", nargs=ids or None)
        command.set_defaults(run=run)
        return command

    add("list", _list)
    add("show", _show, ids="")
    add("compare", _compare, ids="+")
    export = add("export", _export, ids="")
    export.add_argument("--format", choices=list(_EXPORTS), default="html")
    export.add_argument("--output", type=Path)
    add("stop", _ask("stop"), ids="")
    add("save", _ask("save"), ids="")
    prune = add("prune", _prune, ids="*")
    prune.add_argument("--keep", type=int)
    prune.add_argument("--older-than", type=float)
    prune.add_argument("--state", action="append", choices=["finished", "stopped", "failed", "stale"], default=[])
    prune.add_argument("--yes", action="store_true")
    return parser


def _dash(options: argparse.Namespace) -> int:
    folder = options.folder or Path("runs")
    if options.folder is not None and not folder.is_dir():
        raise UnknownRun(f"there is no folder {folder}")
    if (folder / FILE_NAME).is_file():  # one run: shown among its neighbours
        folder = folder.absolute().parent
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with serve(
        options.port,
        folder=folder,
        host=options.host,
        token=options.token,
        allowed_hosts=options.allowed_host,
        open=options.open,
    ) as dashboard:
        if not folder.is_dir():
            print(f"there are no runs in {folder} yet; they are shown as soon as there are", file=sys.stderr)
        status = dashboard.process.wait()
    raise StoreError(f"the server ended by itself (exit code {status})")


def _list(options: argparse.Namespace) -> None:
    from flodl.monitor.server.folder import RunFolder

    rows = RunFolder(options.folder).rows()
    if options.json:
        _print_json(rows)
    elif not rows:
        print(f"there are no runs in {options.folder}")
    else:
        _print_table(["run", "state", "started", "took", "epochs", "steps", "metrics"], [_listed(row) for row in rows])


def _listed(row: dict[str, Any]) -> list[str]:
    name = format_name(row["id"]) + (f" ({format_name(row['name'])})" if row["name"] else "")
    if row["problem"] is not None:
        return [name, "unreadable", "", "", "", "", row["problem"]]
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["started"]))
    epochs = _of(None if row["epoch"] is None else row["epoch"] + 1, row["total_epochs"])
    return [
        name,
        row["state"],
        started,
        format_duration(row["seconds"]),
        epochs,
        _of(row["step"], row["total_steps"]),
        _metrics(row["last"]),
    ]


def _of(done: int | None, total: int | None) -> str:
    return f"{'-' if done is None else done}{f'/{total}' if total else ''}"


def _metrics(values: dict[str, Any]) -> str:
    shown = [f"{format_name(name)}={_value(value)}" for name, value in list(values.items())[:_SHOWN_METRICS]]
    return "  ".join(shown + (["..."] if len(values) > _SHOWN_METRICS else []))


def _value(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else format_value(value)


def _show(options: argparse.Namespace) -> None:
    from flodl.monitor.server import answers

    with RunView(find_run(options.folder, options.id)) as view:
        row, detail = answers.run_row(view), answers.run_detail(view)
    if options.json:
        _print_json({**row, **detail})
        return
    heads = ("run", "state", "started", "took", "epochs", "steps")
    told = [*zip(heads, _listed(row)[:6], strict=True)]
    told += [
        (name, one_line(detail["info"][name])) for name in ("error", "command", "git_commit") if detail["info"][name]
    ]
    _print_table(None, [list(line) for line in told])
    names = dict.fromkeys([*row["last"], *row["best"]])
    best = {name: row["best"].get(name, {}) for name in names}
    print()
    _print_table(
        ["metric", "last", "least", "greatest"],
        [[format_name(n), *map(_value, (row["last"].get(n), best[n].get("min"), best[n].get("max")))] for n in names],
    )
    print()
    _print_table(
        ["setting", "value", "origin"],
        [[one_line(s["path"]), json.dumps(s["value"]), one_line(s["origin"] or "")] for s in detail["config"]],
    )


def _compare(options: argparse.Namespace) -> None:
    runs = list(dict.fromkeys(find_run(options.folder, name) for name in options.ids))
    found = compare_runs(runs)
    if options.json:
        _print_json(found)
        return
    names = [run.name for run in runs]
    rows = [[field, *(str(found["runs"][name][field]) for name in names)] for field in ("state", "epoch", "step")]
    rows.insert(1, ["took", *(format_duration(found["runs"][name]["seconds"]) for name in names)])
    metrics = dict.fromkeys(metric for name in names for metric in found["runs"][name]["last"])
    rows += [[format_name(m), *(_value(found["runs"][name]["last"].get(m)) for name in names)] for m in metrics]
    rows += [
        [path, *(json.dumps(values[name]) if name in values else "" for name in names)]
        for path, values in found["config"].items()
    ]
    _print_table(["", *names], rows)


def _export(options: argparse.Namespace) -> None:
    run = find_run(options.folder, options.id)
    write, ending = _EXPORTS[options.format]
    path = options.output or Path(f"{run.name}{ending}")
    write(run, path)
    if options.json:
        _print_json({"run": run.name, "format": options.format, "path": str(path)})
    else:
        print(f"wrote {path}")


def _ask(action: Action) -> Callable[[argparse.Namespace], None]:
    def ask(options: argparse.Namespace) -> None:
        run = find_run(options.folder, options.id)
        identity = request(run, action, origin=f"fdl runs {action}, {getpass.getuser()} on {socket.gethostname()}")
        if options.json:
            _print_json({"run": run.name, "action": action, "id": identity})
        else:
            print(f"asked {run.name} to {action}")

    return ask


def _prune(options: argparse.Namespace) -> int:
    if not (options.ids or options.state) and options.keep is None and options.older_than is None:
        raise UnknownRun("say which runs to delete: ids, --keep N, --older-than DAYS or --state STATE")
    found = prunable(
        options.folder,
        names=options.ids,
        keep=options.keep,
        older_than_days=options.older_than,
        states=options.state,
    )
    if not found:
        print("[]" if options.json else "nothing to delete")
        return 0
    told = sys.stderr if options.json else sys.stdout
    for removal in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(removal.started))
        print(f"{removal.run.name}  {removal.state}  {when}  {removal.size_bytes / 1e6:.1f} MB", file=told)
    if not options.yes:
        _confirm(f"delete {len(found)} run{'s' if len(found) > 1 else ''} with all checkpoints?")
    for removal in found:
        remove_run(removal.run)
    if options.json:
        _print_json([removal.run.name for removal in found])
    else:
        print(f"deleted {len(found)}")
    return 0


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise UnknownRun(f"{question} No terminal to ask on: --yes does it without asking.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise StoreError("nothing was deleted")


def _print_json(value: object) -> None:
    from flodl.monitor.values import dumps

    print(json.dumps(json.loads(dumps(value)), ensure_ascii=False, indent=2))


def _print_table(head: list[str] | None, rows: list[list[str]]) -> None:
    lines = [*([head] if head else []), *rows]
    widths = [
        max((len(line[i]) for line in lines if i < len(line)), default=0)
        for i in range(max(map(len, lines), default=0))
    ]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
