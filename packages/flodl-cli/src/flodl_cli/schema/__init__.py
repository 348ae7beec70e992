"""The published JSON schemas: fdl.yml (what manifests are checked against) and what `fdl diagnose --json` prints."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["DIAGNOSE_SCHEMA_FILE", "SCHEMA_FILE", "manifest_schema", "section_fields"]

SCHEMA_FILE = Path(__file__).parent / "fdl.schema.json"
DIAGNOSE_SCHEMA_FILE = Path(__file__).parent / "diagnose.schema.json"


@cache
def manifest_schema() -> dict[str, Any]:
    """The JSON schema as plain data."""
    schema: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return schema


def section_fields(section: str) -> dict[str, dict[str, Any]]:
    """The fields of `training`, `ddp` or `output` by name: their type or enum, bounds, and default where they have one."""
    fields: dict[str, dict[str, Any]] = manifest_schema()["$defs"][section]["properties"]
    return fields
