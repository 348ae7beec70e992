"""What `config show` prints is YAML with the same values, read by ruamel.yaml as well as by fdl."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from flodl_cli.config.emit import flow_text, key_text
from flodl_cli.config.layers import Selection, resolve
from flodl_cli.config.show import listing
from flodl_cli.config.source import Source
from flodl_cli.config.yaml import parse_yaml

NASTY = [
    "", " ", "no", "Yes", "null", "~", "true", "1e-3", "1_000", "0x10", "0o7", "010", "12:30", "2026-01-01", ".5", ".", "...",
    "---",
    "a: b", "a #b", "# a", "- a", "? a", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a", "'a'", '"a"', "{a}", "[a]", "a,b", "<<",
    "=",
    "two\nlines", "two\nlines\n", "\nfirst empty", "  indented\nline", "trailing \nspace", "a\n\n\nb", "a\n\n", "tab\there",
    "\r", "\x07",
    "\x85", "\u2028", "\ufeff", "ümlaut", "日本", "🙂", "back\\slash", "cr\r\nlf", "a\n  b\n c",
]  # fmt: skip
texts = st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
texts = texts.filter(lambda s: "${" not in s)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3), max_leaves=8)
manifests = st.dictionaries(texts.filter(lambda s: s not in ("commands", "<<")), values, max_size=5)


def merged(base: Any, over: Any) -> Any:
    """The same rules on plain values: RFC 7396."""
    if not isinstance(over, dict):
        return over
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@settings(max_examples=300, deadline=None)
@given(base=manifests, over=manifests)
def test_the_listing_re_reads_to_the_merged_values(base: dict[str, Any], over: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, manifest in (("fdl.yml", base), ("fdl.e.yml", over)):
            lines = [f"{key_text(k)}: {flow_text(v)}" for k, v in manifest.items()]
            (folder / file).write_bytes("\n".join(lines).encode())
        resolved = resolve(folder, folder, Selection(("e",)), {})
    text = "\n".join(listing(resolved)) + "\n"
    expected = merged(merged({}, base), over)
    assert resolved.node.plain() == expected
    assert parse_yaml(Source("again", text)).plain() == expected
    assert YAML(typ="safe", pure=True).load(io.StringIO(text)) == expected
