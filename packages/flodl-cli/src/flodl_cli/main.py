"""Entry point of `fdl`."""

from __future__ import annotations

import sys  # alone: what takes time is imported where Ctrl-C is caught already

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from flodl_cli.call import Call
    from flodl_cli.tasks.model import Manifest

__all__ = ["main", "run"]


def main() -> None:
    """Runs `fdl` with the arguments of this process and ends it."""
    try:
        import gc
        import io

        gc.disable()  # 3 of the 70 ms of a start: a call is short and makes no cycles worth looking for

        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal that lacks a letter, a file name that is no UTF-8: shown as escapes.
            sys.stdout.reconfigure(errors="backslashreplace")
        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # also while modules are being imported
        status = 130
    sys.exit(status)


def run(argv: Sequence[str]) -> int:
    """One call; its exit code."""
    from flodl_cli.call import parse_call
    from flodl_cli.errors import CliError

    try:
        status = complete(argv[1:]) if argv[:1] == ["--complete"] else dispatch(parse_call(argv))
        sys.stdout.flush()
        return status
    except CliError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `fdl config show | head`: nobody reads on
        _stop_printing()
        return 141
    except OSError as error:  # a full disk, a folder without permission
        _stop_printing()
        print(f"fdl: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        return 1


def _stop_printing() -> None:
    """What is still to be written would fail again when Python ends."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complete(question: Sequence[str]) -> int:
    """What completion scripts ask."""
    from flodl_cli.completion.reply import reply

    print("\n".join(reply(question)))
    return 0


def dispatch(call: Call) -> int:
    """Decides what a call is: help, a built-in, or commands of the manifest."""
    from flodl_cli.builtins import BUILTINS, ELSEWHERE, run_builtin
    from flodl_cli.config.layers import environments
    from flodl_cli.errors import CliError, nearest
    from flodl_cli.project import MANIFEST

    if call.options.version:
        from flodl_cli import __version__

        print(f"fdl {__version__}")
        return 0
    name = call.words[0] if call.words else ""
    if name in ELSEWHERE:
        return run_builtin(name, [*call.words[1:], *(["--help"] if call.options.help else [])], call)
    if call.root is None and call.options.typed_env:
        raise CliError(f"--env: there is no {MANIFEST} in this folder or one above, so there are no environments")
    # A broken manifest is told whatever is called; where there is none, the built-ins still work.
    manifest = call.loader.load() if call.root else None
    commands = manifest.commands() if manifest else {}
    if not name:
        return _overview(call, manifest)
    if name in BUILTINS and (call.options.built_in or name not in commands):
        return run_builtin(name, [*call.words[1:], *(["--help"] if call.options.help else [])], call)
    if call.options.built_in:
        raise CliError(f"--built-in: '{name}' is none of fdl's own commands.{nearest(name, BUILTINS)}")
    if manifest is not None and name not in commands and name in environments(manifest.root):  # `fdl ci test`
        return dispatch(call.in_environment())
    if manifest is None:
        near = nearest(name, BUILTINS)
        raise CliError(f"no command '{name}': there is no {MANIFEST} in this folder or one above.{near}")
    return _task(call, manifest)


def _overview(call: Call, manifest: Manifest | None) -> int:
    """`fdl` alone. Broken commands are told, and hide none of the others."""
    from flodl_cli.errors import CliError
    from flodl_cli.help import manifest_help
    from flodl_cli.terminal import Style

    for line in manifest_help(manifest, Style(ansi=call.options.ansi), builtins=True):
        print(line)
    problems = [problem for _, problem in manifest.problems] if manifest else []
    if problems:
        sys.stdout.flush()
        raise CliError(*problems)
    return 0


def _task(call: Call, manifest: Manifest) -> int:
    import os
    import shlex

    from flodl_cli.project import child_environment
    from flodl_cli.tasks.execute import execute, printed
    from flodl_cli.tasks.plan import Planner

    loader = call.loader
    env = child_environment(loader.root, os.environ)
    if call.options.help or _asks_for_help(call.words):
        from flodl_cli.taskhelp import print_help

        return print_help(call, manifest, env)
    steps = Planner(loader, env).plan(manifest, call.words)
    if call.options.dry_run:
        for line in printed(steps, loader.root):
            print(line)
        return 0
    if call.options.verbosity > 0:
        for step in steps:
            detail = f": {shlex.join(step.argv)}" if call.options.verbosity > 1 else ""
            print(f"fdl: {step.title}{detail}", file=sys.stderr)
            if call.options.verbosity > 2:
                for name in step.added:
                    print(f"fdl:   {name}={step.env[name]}", file=sys.stderr)
    return execute(steps, loader.root)


def _asks_for_help(words: Sequence[str]) -> bool:
    own = words[: words.index("--")] if "--" in words else words
    return any(w in ("--help", "-h") for w in own)
