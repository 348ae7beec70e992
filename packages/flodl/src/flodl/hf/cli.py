"""`fdl hf export|verify|convert`, as fdl calls it in the project's Python."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from flodl.errors import FlodlError

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """0 done, 1 verified and not passed, 2 the call or a file was wrong."""
    parser = argparse.ArgumentParser(prog="fdl hf")
    commands = parser.add_subparsers(dest="command", required=True)
    exporting = commands.add_parser("export")
    exporting.add_argument("source")
    exporting.add_argument("folder")
    verifying = commands.add_parser("verify")
    verifying.add_argument("folder")
    verifying.add_argument("--against")
    verifying.add_argument("--tolerance", type=float, default=1e-5)
    verifying.add_argument("--json", action="store_true")
    converting = commands.add_parser("convert")
    converting.add_argument("folder")
    converting.add_argument("--output")
    given = parser.parse_args(words)
    from flodl import hf
    from flodl.hf.sources import needed

    try:
        needed("transformers").utils.logging.disable_progress_bar()
        if given.command == "export":
            print(f"exported to {hf.export(given.source, given.folder)}")
        elif given.command == "convert":
            print(f"converted in {hf.convert(given.folder, given.output)}")
        else:
            found = hf.verify(given.folder, given.against, tolerance=given.tolerance)
            report = {**dataclasses.asdict(found), "passed": found.passed}
            print(json.dumps(report, indent=2) if given.json else found)
            return 0 if found.passed else 1
    except FlodlError as error:
        print(f"fdl hf: {error}", file=sys.stderr)
        return 2
    return 0
