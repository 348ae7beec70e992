"""A server with faults, archives of all kinds, and small libraries that pass for torch's."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


class Server:
    """Serves `files` by path. `faults` lists, for a path, what goes wrong with the next requests for it, in order."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = {}
        self.requests: list[tuple[str, str | None]] = []  # path and Range
        self.go_on = threading.Event()  # ends what is slow
        self.marks = True  # ETag
        self.password = ""  # of HTTP's basic authentication
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def close(self) -> None:
        self.go_on.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.close_connection = True
                server.requests.append((self.path, self.headers.get("Range")))
                faults = server.faults.get(self.path, [])
                fault = faults.pop(0) if faults else ""
                if server.password not in self.headers.get("Authorization", ""):
                    self.answer(401, b"<html>who are you?</html>")
                elif fault.isdigit():
                    self.answer(int(fault), b"<html>no, and this text is no archive</html>")
                elif fault.startswith("redirect "):
                    self.send_response(302)
                    self.send_header("Location", fault.partition(" ")[2])
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                elif self.path not in server.files:
                    self.answer(404, b"<html>not found</html>")
                else:
                    self.file(server.files[self.path], fault)

            def file(self, content: bytes, fault: str) -> None:
                asked = self.headers.get("Range") if fault != "no range" else None
                mark = f'"{len(content)}-{hash(content)}"'
                if asked and self.headers.get("If-Range", mark) == mark:
                    first = int(asked.removeprefix("bytes=").rstrip("-"))
                    if first >= len(content):
                        self.answer(416, b"")
                        return
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
                    content = content[first:]
                else:
                    self.send_response(200)
                if server.marks:
                    self.send_header("ETag", mark)
                if fault == "truncated":
                    content = content[: len(content) // 2]
                self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                half = content[: len(content) // 2]
                if fault in ("drop", "slow"):
                    self.wfile.write(half)
                    self.wfile.flush()
                    if fault == "slow":
                        server.go_on.wait(30)
                    return
                if fault == "wait":  # in the middle, then it goes on
                    self.wfile.write(half)
                    self.wfile.flush()
                    server.go_on.wait(30)
                    content = content[len(half) :]
                self.wfile.write(content)

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                if status == 401:
                    self.send_header("WWW-Authenticate", "Basic")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle(self) -> None:
                try:
                    super().handle()
                except (BrokenPipeError, ConnectionResetError):
                    return  # the client was killed, or has seen enough

            def log_message(self, *_: object) -> None:
                return

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


Member = tuple[str, bytes] | tuple[zipfile.ZipInfo, bytes]


@pytest.fixture(scope="session")
def zipped() -> Callable[..., bytes]:
    """`zipped({"a/b": b"..."})`, or with pairs of ZipInfo and content: the bytes of an archive."""

    def make(members: Mapping[str, bytes] | list[Any]) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items() if isinstance(members, Mapping) else members:
                info = name
                if isinstance(name, str):
                    info = zipfile.ZipInfo(name)
                    info.external_attr = (stat.S_IFREG | 0o644) << 16
                    info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, content)
        return buffer.getvalue()

    return make


SOURCES = {
    "c10": "#include <string>\nnamespace c10 { void tell(const std::string&) {} }",
    "torch_cpu": "namespace c10 { int rank() { return 0; } }",
    "torch": "int torch_is_here;",
}


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """Compiles one shared library: `compiled("c10", source, *flags)`; the content of the file."""
    folder = tmp_path_factory.mktemp("compiled")

    def compile_one(name: str, source: str, *flags: str) -> bytes:
        path = folder / f"lib{name}.so"
        command = [
            "g++",
            "-shared",
            "-fPIC",
            "-x",
            "c++",
            "-",
            "-o",
            str(path),
            f"-Wl,-soname,lib{name}.so",
            f"-L{folder}",
        ]
        env = {**os.environ, "TMPDIR": str(folder)}
        subprocess.run([*command, *flags], input=source, text=True, check=True, env=env)
        return path.read_bytes()

    return compile_one


@pytest.fixture(scope="session")
def libraries(compiled: Callable[..., bytes]) -> dict[str, bytes]:
    """The three libraries of a torch that does nothing."""
    made = {"lib/libc10.so": compiled("c10", SOURCES["c10"])}
    made["lib/libtorch_cpu.so"] = compiled(
        "torch_cpu", SOURCES["torch_cpu"], "-Wl,--no-as-needed", "-lc10", "-Wl,-rpath,$ORIGIN"
    )
    made["lib/libtorch.so"] = compiled(
        "torch", SOURCES["torch"], "-Wl,--no-as-needed", "-ltorch_cpu", "-Wl,-rpath,$ORIGIN"
    )
    return made


@pytest.fixture
def zip_of(zipped: Callable[..., bytes], libraries: dict[str, bytes]) -> Callable[..., bytes]:
    """An official archive of a version, with further members."""

    def make(version: str = "2.13.0+cpu", more: Mapping[str, bytes] | None = None) -> bytes:
        files = {**libraries, "build-version": version.encode(), "include/torch.h": b"// noise: " + os.urandom(200_000)}
        return zipped({**{f"libtorch/{name}": content for name, content in files.items()}, **(more or {})})

    return make


@pytest.fixture
def wheel_of(zipped: Callable[..., bytes], libraries: dict[str, bytes]) -> Callable[..., bytes]:
    """A wheel of torch that pip accepts."""

    def make(
        version: str = "2.13.0+cpu", cuda: str | None = None, requires: tuple[str, ...] = (), **more: bytes
    ) -> bytes:
        told = f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n"
        files = {f"torch/{name}": content for name, content in libraries.items()}
        files |= {"torch/version.py": told.encode(), "torch/include/torch.h": os.urandom(100_000), **more}
        return zipped({**files, **_wheel_metadata("torch", version, requires)})

    return make


@pytest.fixture
def plain_wheel(zipped: Callable[..., bytes]) -> Callable[..., bytes]:
    """A wheel of anything else."""

    def make(name: str, version: str, files: Mapping[str, bytes]) -> bytes:
        return zipped({**files, **_wheel_metadata(name, version, ())})

    return make


def _wheel_metadata(name: str, version: str, requires: tuple[str, ...]) -> dict[str, bytes]:
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {r}\n" for r in requires
    )
    return {
        f"{folder}/METADATA": text.encode(),
        f"{folder}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
        f"{folder}/RECORD": b"",
    }


@pytest.fixture
def flodl_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flodl_home")


@pytest.fixture
def libtorch(fdl: Any, flodl_home: Path) -> Any:
    """`libtorch("list")` is `fdl libtorch list` with a home of its own."""
    fdl.env["FLODL_HOME"] = str(flodl_home)

    def call(*words: str, **options: Any) -> Any:
        return fdl("libtorch", *words, **options)

    return call


# Two fat binaries as nvcc writes them, with padding between: machine code for 8.6; machine code and PTX for 12.0.
FAT = """\
asm(R"(
  .section .nv_fatbin,"a"
  .long 0xba55ed50; .short 1, 16; .quad 72
  .short 2, 0x101; .long 64; .quad 8; .long 0, 0, 0, 86; .zero 32; .quad 0x464c457f
  .quad 0
  .long 0xba55ed50; .short 1, 16; .quad 216
  .short 2, 0x101; .long 64; .quad 8; .long 0, 0, 0, 86; .zero 32; .quad 0
  .short 2, 0x101; .long 64; .quad 8; .long 0, 0, 0, 120; .zero 32; .quad 0
  .short 1, 0x101; .long 64; .quad 8; .long 0, 0, 0, 120; .zero 32; .quad 0
  .text
)");
"""


@pytest.fixture(scope="session")
def fat_source() -> str:
    """C++ with device code in it, of which only the headers are real."""
    return FAT
