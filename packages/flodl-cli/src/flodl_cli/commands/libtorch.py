"""`fdl libtorch`: the C++ library of PyTorch for Rust (tch-rs) and C++, without a build and without a Python project."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from flodl_cli.call import Call
from flodl_cli.errors import CliError
from flodl_cli.libtorch.exports import SHELLS, exports, variables
from flodl_cli.libtorch.store import Installed, Store, home

__all__ = ["libtorch"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@click.group()
def libtorch() -> None:
    """Get and keep libtorch, the C++ library of PyTorch."""


def _place(function: _Function) -> _Function:
    return click.option(
        "--path",
        type=click.Path(path_type=Path),
        help="Where variants are kept; else ./libtorch of the "
        "project if it has one, else $FLODL_HOME/libtorch (~/.flodl/libtorch).",
    )(function)


def _as_json(function: _Function) -> _Function:
    return click.option("--json", "as_json", is_flag=True, help="For programs.")(function)


def _name(*, required: bool) -> Callable[[_Function], _Function]:
    def installed(context: click.Context, _parameter: click.Parameter, current: str) -> list[str]:
        return [i.name for i in _store(context.params.get("path")).installed() if i.name.startswith(current)]

    return click.argument("name", required=required, shell_complete=installed)


def _store(path: Path | None) -> Store:
    return Store(path.absolute() if path else home())


@libtorch.command()
@click.option("--cpu", is_flag=True, help="The build without CUDA.")
@click.option("--cuda", metavar="12.8", help="The build for this CUDA; without --cpu or --cuda what fits this machine.")
@click.option("--version", metavar="2.13.0", help="The release of torch.")
@click.option(
    "--source", type=click.Choice(["wheel", "zip"]), default="wheel", help="The wheel by pip, or PyTorch's zip."
)
@click.option("--url", help="Where the zips lie (--source zip), for mirrors; or FLODL_LIBTORCH_URL.")
@click.option("--sha256", help="What the zip must have (--source zip).")
@click.option(
    "--retries", type=click.IntRange(0), default=5, show_default=True, help="How often a server is asked again."
)
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds without an answer."
)
@click.option("--no-activate", is_flag=True, help="Install only.")
@click.option("--dry-run", is_flag=True, help="Say what would be downloaded.")
@_place
@_as_json
@click.pass_obj
def download(
    call: Call,
    cpu: bool,
    cuda: str | None,
    version: str | None,
    source: str,
    url: str | None,
    sha256: str | None,
    retries: int,
    timeout: float,
    no_activate: bool,
    dry_run: bool,
    path: Path | None,
    as_json: bool,
) -> None:
    """Download a libtorch, check it, and activate it."""
    from flodl_cli.libtorch.fetch import Transport, shown_url
    from flodl_cli.libtorch.install import Wanted, planned
    from flodl_cli.libtorch.install import download as install
    from flodl_cli.libtorch.releases import check_version

    if cpu and cuda:
        raise CliError("--cpu or --cuda, not both")
    if source != "zip" and (url or sha256):
        raise CliError("--url and --sha256 are for --source zip; for wheels pip's configuration says where they lie")
    release, tag = _chosen(cpu, cuda, version and check_version(version))
    wanted, store = Wanted(release, tag, source, sha256 and sha256.lower(), url), _store(path)
    if dry_run or call.options.dry_run:
        items = planned(wanted)
        if as_json:
            _print_json({"into": str(store.root), "files": [{**i._asdict(), "url": shown_url(i.url)} for i in items]})
            return
        for item in items:
            print(f"download {shown_url(item.url)}" + (f"\n  sha256 {item.sha256}" if item.sha256 else ""))
        print(f"into {store.root / 'precompiled'}")
        return
    with _stopped_by_signals():
        variant, there = install(
            store, wanted, Transport(timeout, retries), activate=not no_activate, quiet=call.options.verbosity < 0
        )
    _tell(variant, store, as_json, "was installed before" if there else "installed")


def _chosen(cpu: bool, cuda: str | None, version: str | None) -> tuple[str, str]:
    """Release and tag: as asked for, else what runs on the GPUs of this machine."""
    from flodl_cli.libtorch.releases import cuda_tag
    from flodl_cli.machine.builds import releases
    from flodl_cli.machine.gpus import detect
    from flodl_cli.machine.variants import Refusal, choose

    if cpu or cuda:
        release = version or releases()[0]
        return release, cuda_tag(release, cuda) if cuda else "cpu"
    found = detect()
    choice = choose(found.gpus or [], found.driver, release=version)
    if isinstance(choice, Refusal):
        raise CliError("\n  ".join((choice.reason, *choice.remedies)))
    print(f"fdl: {choice.reason}", file=sys.stderr)
    return version or choice.version, choice.tag


def _tell(variant: Installed, store: Store, as_json: bool, what: str) -> None:
    """What became of it, what it lacks, and how to use it."""
    _warn_of_missing(variant)
    if as_json:
        _print_json(_data(variant, store))
        return
    current = store.active()
    state = "active" if current == variant else "not active"
    print(f"# {variant.name}: libtorch {variant.arch.version} {what}, {state}")
    print("\n".join(exports(variant, "bash")))


def _warn_of_missing(variant: Installed) -> None:
    from flodl_cli.libtorch.binaries import missing_libraries

    for missing in missing_libraries(variant.lib):
        print(
            f"fdl: warning: {missing.needed_by} needs {missing.name}, which is not here: {missing.remedy}",
            file=sys.stderr,
        )


def _data(variant: Installed, store: Store) -> dict[str, Any]:
    current = store.active()
    return {
        "name": variant.name,
        "active": current is not None and current.name == variant.name,
        "gone": variant.gone,
        **variant.arch._asdict(),
        "folder": str(variant.folder),
        "prefix": str(variant.prefix),
        "env": variables(variant),
    }


@libtorch.command("list")
@_place
@_as_json
def list_(path: Path | None, as_json: bool) -> None:
    """List what is installed; the active one is marked."""
    from flodl_cli.help import table

    store = _store(path)
    every = store.installed()
    if as_json:
        _print_json([_data(i, store) for i in every])
        return
    for name in store.damaged():
        print(f"{name} is damaged: `fdl libtorch remove {name}` takes it away", file=sys.stderr)
    if not every:
        print(f"no libtorch in {store.root}; `fdl libtorch download` gets one")
        return
    current = store.active()
    rows = [(f"{'*' if i == current else ' '} {i.name}", _line(i)) for i in every]
    print("\n".join(table(rows, indent=0)))


def _line(variant: Installed) -> str:
    arch = variant.arch
    parts = [arch.version, f"CUDA {arch.cuda}" if arch.cuda else "CPU", " ".join(arch.architectures), arch.source]
    return ", ".join(p for p in parts if p) + (f" (gone: {variant.prefix})" if variant.gone else "")


@libtorch.command()
@_name(required=False)
@_place
@_as_json
def info(name: str | None, path: Path | None, as_json: bool) -> None:
    """Show what one is, what fits it, what it lacks. The active one without NAME."""
    from flodl_cli.help import table
    from flodl_cli.libtorch.binaries import missing_libraries
    from flodl_cli.libtorch.releases import tch_for

    store = _store(path)
    variant = _named(store, name)
    arch, tch = variant.arch, tch_for(variant.arch.version)
    missing = [] if variant.gone else missing_libraries(variant.lib)
    if as_json:
        told = tch and {**tch._asdict(), "fits": tch.fits(arch.version)}
        _print_json({**_data(variant, store), "tch": told, "missing": [m._asdict() for m in missing]})
        return
    rows = [
        ("version", arch.version),
        ("CUDA", arch.cuda or "none"),
        ("GPUs", " ".join(arch.architectures) or "none"),
        ("C++ ABI", f"_GLIBCXX_USE_CXX11_ABI={arch.abi}"),
        ("source", arch.source),
        ("sha256", arch.sha256 or "-"),
        ("folder", str(variant.prefix) + (" (gone)" if variant.gone else "")),
        ("tch-rs", _tch_text(arch.version)),
        ("missing", "; ".join(f"{m.name} (needed by {m.needed_by}: {m.remedy})" for m in missing) or "nothing"),
    ]
    current = store.active()
    print(f"{variant.name}{' (active)' if current == variant else ''}")
    print("\n".join(table(rows)))


def _tch_text(version: str) -> str:
    from flodl_cli.libtorch.releases import TCH, tch_for

    found = tch_for(version)
    if found is None:
        return f"none is known for {version}; the newest, {TCH[-1].version}, is for {TCH[-1].torch}"
    if found.fits(version):
        return f'tch = "{found.version}"'
    return f'tch = "{found.version}" is for {found.torch}: get that, or set LIBTORCH_BYPASS_VERSION_CHECK=1'


def _named(store: Store, name: str | None) -> Installed:
    if name is not None:
        return store.find(name)
    current = store.active()
    if current is None:
        some = "; `fdl libtorch activate NAME` makes one" if store.installed() else "; `fdl libtorch download` gets one"
        raise CliError(f"no libtorch is active in {store.root}{some}")
    return current


@libtorch.command()
@click.option(
    "--python", metavar="PROGRAM", help="The Python of the environment; else the one that tasks would run with."
)
@click.option("--no-activate", is_flag=True, help="Link only.")
@_place
@_as_json
@click.pass_obj
def link(call: Call, python: str | None, no_activate: bool, path: Path | None, as_json: bool) -> None:
    """Use the torch of the active Python environment. Without a copy: the environment has to stay."""
    import os

    from flodl_cli.libtorch.link import link as make_link
    from flodl_cli.machine.python_torch import project_python

    found, environ = project_python(call.root or Path.cwd(), os.environ)
    store = _store(path)
    variant, there = make_link(store, python or found, environ, activate=not no_activate)
    _tell(variant, store, as_json, "was linked before" if there else "linked")


@libtorch.command()
@click.option(
    "--archs", required=True, metavar="6.1;12.0", help="The compute capabilities; 9.0+PTX also for newer GPUs."
)
@click.option("--version", metavar="2.13.0", help="The release of torch.")
@click.option(
    "--native/--docker", default=None, help="With the CUDA toolkit here, or in a container; else what is there."
)
@click.option("--image", help="The container, with compiler and CUDA toolkit.")
@click.option("--jobs", type=click.IntRange(1), help="Compilers at a time; else by cores and memory.")
@click.option("--no-activate", is_flag=True, help="Build only.")
@click.option("--dry-run", is_flag=True, help="Print the commands.")
@_place
@click.pass_obj
def build(
    call: Call,
    archs: str,
    version: str | None,
    native: bool | None,
    image: str | None,
    jobs: int | None,
    no_activate: bool,
    dry_run: bool,
    path: Path | None,
) -> int:
    """Build one from source. For GPUs that no release has code for; it takes hours, and can be resumed."""
    from flodl_cli.libtorch import build as planning
    from flodl_cli.libtorch.building import build as run
    from flodl_cli.libtorch.releases import check_version
    from flodl_cli.machine.builds import releases

    if image and native:
        raise CliError("--image is for --docker")
    store = _store(path)
    release = check_version(version or releases()[0])
    plan = planning.plan(store.root, archs, release, native=native, jobs=jobs or planning.default_jobs(), image=image)
    if dry_run or call.options.dry_run:
        print("\n".join(planning.printed(plan)))
        return 0
    built = run(store, plan, activate=not no_activate)
    if isinstance(built, int):
        return built
    _tell(built, store, False, "built")
    return 0


@libtorch.command()
@_name(required=True)
@_place
def activate(name: str, path: Path | None) -> None:
    """Choose the one that env and info mean."""
    store = _store(path)
    variant = store.find(name)
    if variant.gone:
        raise CliError(f"{variant.name}: {variant.prefix} is gone; `fdl libtorch remove {variant.name}`")
    with store.changing():
        store.activate(variant)
    _tell(variant, store, False, "chosen")


@libtorch.command()
@_name(required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_place
def remove(name: str, yes: bool, path: Path | None) -> None:
    """Remove an installed libtorch. Of a link only the link goes."""
    from flodl_cli.terminal import confirm

    store = _store(path)
    broken = next((n for n in store.damaged() if name in (n, n.partition("/")[2])), None)
    full = broken or store.find(name).name
    confirm(f"remove {full} ({store.root / full})?", yes)
    with store.changing():
        if broken is None:
            store.remove(store.find(full))  # again: another call may have removed it meanwhile
        elif broken in store.damaged():
            store.remove_damaged(broken)
    print(f"{full} was removed")


@libtorch.command()
@_name(required=False)
@click.option("--shell", type=click.Choice(SHELLS), help="Else the one of $SHELL.")
@_place
@_as_json
def env(name: str | None, shell: str | None, path: Path | None, as_json: bool) -> None:
    """Print the variables for tch-rs and CMake. Use it as eval "$(fdl libtorch env)"; without NAME, of the active one."""
    import os

    variant = _named(_store(path), name)
    if variant.gone:
        raise CliError(f"{variant.name}: {variant.prefix} is gone; `fdl libtorch remove {variant.name}`")
    if as_json:
        _print_json(variables(variant))
        return
    own = os.path.basename(os.environ.get("SHELL", ""))
    print("\n".join(exports(variant, shell or (own if own in SHELLS else "bash"))))


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind like Ctrl-C, so that what is half done is removed."""
    import signal

    def stop(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    before = {
        n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))
