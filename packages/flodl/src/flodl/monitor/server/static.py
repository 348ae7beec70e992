"""The built page. Only names that are in its folder are served, so no path can lead out of it."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

__all__ = ["BUILD_COMMAND", "REPORT_FILE", "STATIC", "static_file"]

STATIC = Path(__file__).resolve().parent.parent / "static"
REPORT_FILE = "report.html"
"""The page in one file, for exports; not served."""
BUILD_COMMAND = "./fdl web"
_NOT_BUILT = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>floDl dashboard</title>
<h1>The dashboard's page is not built</h1>
<p>The server runs, but this installation has no page. In a checkout, <code>{BUILD_COMMAND}</code> builds it.</p></html>"""

mimetypes.add_type("text/javascript", ".js")  # some systems say otherwise
mimetypes.add_type("font/woff2", ".woff2")


def static_file(request: Request) -> Response:
    name = request.url.path.lstrip("/") or "index.html"
    files = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}
    if name == "index.html" and name not in files:
        return HTMLResponse(_NOT_BUILT, 503, {"Cache-Control": "no-store"})
    if name not in files or name == REPORT_FILE:
        return JSONResponse({"error": "there is no such file"}, 404)
    lasting = name.startswith("assets/")  # their names change with what is in them
    kept = "public, max-age=31536000, immutable" if lasting else "no-cache"
    return FileResponse(files[name], headers={"Cache-Control": kept})
