"""Finding out what an entry takes: from its Python script's own parser, from `--fdl-schema`, or from a file."""

import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flodl_cli.arguments.model import Schema, schema_from
from flodl_cli.cache import Slot, slot
from flodl_cli.config.node import Node
from flodl_cli.errors import CliError, Problem
from flodl_cli.project import find_program

__all__ = ["Entry", "Known", "ask", "cached"]

TIMEOUT_S = 20.0
_FORMAT = 2  # of the cache
_PYTHON = re.compile(r"python[0-9.]*")


class Entry(NamedTuple):
    """The program of a manifest and where it runs."""

    words: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]
    declared: Node | None = None  # the manifest's `schema:`


class Known(NamedTuple):
    """What is known of an entry's arguments: a schema, or why there is none."""

    schema: Schema | None
    reason: str = ""
    fresh: bool = False  # asked now, not taken from the cache
    own_words: int = 1  # how many words of the entry are the program itself


def cached(entry: Entry) -> Slot | None:
    """Where the answer of an entry is kept."""
    declared = entry.declared.plain() if entry.declared else None
    name = [_FORMAT, str(entry.folder), entry.words, _program(entry), declared]
    return slot(entry.env, "schemas", name, name)


def ask(entry: Entry, *, refresh: bool = False) -> Known:
    """What the entry takes; from the cache as long as none of the files that the answer came from has changed."""
    declared = entry.declared.data if entry.declared else None
    script = _script(entry.words)
    own_words = 1 if script is None else script[0] + 1
    if declared is False:
        return Known(None, "the manifest says schema: false", own_words=own_words)
    if isinstance(declared, str):
        return Known(_from_file(entry, declared), own_words=own_words)
    if declared is not True and script is None:
        return Known(None, "not a Python script, and the manifest does not say schema: true", own_words=own_words)
    place = cached(entry)
    kept = None if place is None or refresh else place.load()
    if isinstance(kept, dict) and kept.get("stamps") == _stamps([s[0] for s in kept.get("stamps", ())]):
        schema = schema_from(kept["schema"], "the cache") if kept["schema"] is not None else None
        return Known(schema, kept["reason"], own_words=own_words)
    answer, reason = _by_flag(entry) if declared is True else _by_probe(entry, script)
    if answer is None:
        return Known(None, reason, fresh=True, own_words=own_words)
    schema = schema_from(answer["schema"], entry.words[-1]) if answer["schema"] is not None else None
    reason = "" if schema else "its script builds no argument parser that can be asked"
    if place is not None:
        stamps = _stamps([f for f in answer["files"] if f])
        place.store({"stamps": stamps, "schema": answer["schema"], "reason": reason})
    return Known(schema, reason, fresh=True, own_words=own_words)


def _script(words: Sequence[str]) -> tuple[int, str, str] | None:
    """The index, kind and name of the script that `python ... script.py` or `python ... -m module` starts."""
    if not words or not _PYTHON.fullmatch(os.path.basename(words[0])):
        return None
    for i, word in enumerate(words[1:], 1):
        if word == "-m":
            return (i + 1, "module", words[i + 1]) if i + 1 < len(words) else None
        if word in ("-c", "-"):
            return None
        if not word.startswith("-"):
            return i, "file", word
    return None


def _stamps(files: Sequence[str]) -> list[list[Any]]:
    """What tells whether files changed."""
    stamps: list[list[Any]] = []
    for name in files:
        try:
            status = os.stat(name)
            stamps.append([name, status.st_mtime_ns, status.st_size])
        except OSError:
            stamps.append([name, 0, 0])
    return stamps


def _from_file(entry: Entry, name: str) -> Schema:
    path = entry.folder / name
    place = entry.declared.place if entry.declared else None
    try:
        return schema_from(json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise CliError(Problem(f"schema: cannot read {path}: {error.strerror}", place)) from error
    except ValueError as error:
        raise CliError(Problem(f"schema: {path} is not JSON: {error}", place)) from error


def _by_probe(entry: Entry, script: tuple[int, str, str] | None) -> tuple[dict[str, Any] | None, str]:
    import tempfile

    assert script is not None
    _, kind, name = script
    if kind == "file" and not (entry.folder / name).is_file():
        return None, f"there is no {entry.folder / name}"
    probe = str(Path(__file__).with_name("probe.py"))
    with tempfile.TemporaryDirectory(prefix="fdl-probe-") as folder:
        out = os.path.join(folder, "schema.json")
        status, said = _run((entry.words[0], probe, out, kind, name), entry)
        if os.path.exists(out):
            answer: dict[str, Any] = json.loads(Path(out).read_text(encoding="utf-8"))
            return answer, ""
    return None, f"asking {name} for its arguments failed: {_last_line(said) or f'exit code {status}'}"


def _by_flag(entry: Entry) -> tuple[dict[str, Any] | None, str]:
    status, said = _run((*entry.words, "--fdl-schema"), entry)
    if status:
        return None, f"{entry.words[0]} --fdl-schema ended with {status}: {_last_line(said)}"
    try:
        schema = json.loads(said)
    except ValueError as error:
        raise CliError(f"{' '.join(entry.words)} --fdl-schema printed no JSON: {error}") from error
    files = [_program(entry), *(str(entry.folder / w) for w in entry.words[1:] if (entry.folder / w).is_file())]
    return {"schema": schema, "files": files}, ""


def _program(entry: Entry) -> str:
    """The program's path; its plain name where there is none."""
    name = entry.words[0] if entry.words else ""
    return find_program(name, entry.folder, entry.env) or name


def _run(argv: Sequence[str], entry: Entry) -> tuple[int | str, str]:
    """Runs a short program with a time limit; its exit code and what it said (stdout alone when it succeeded)."""
    import subprocess  # late: completion needs it only when nothing is known yet

    environment = {**entry.env, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        process = subprocess.Popen(
            [_program(entry), *argv[1:]],
            cwd=entry.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return 127, f"{argv[0]}: {error.strerror}"
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return "no answer", f"no answer in {TIMEOUT_S:.0f} s"
        raise
    return process.returncode, out if process.returncode == 0 else err or out


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
