"""`fdl libtorch download`, whole: from an index of wheels and from zips, at once, killed, without room."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ZIP = "/cpu/libtorch-shared-with-deps-2.13.0%2Bcpu.zip"
ZIPPED = ("--cpu", "--version", "2.13.0", "--source", "zip", "--retries", "0")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the archives are for Linux")


@pytest.fixture
def zips(server: Any, libtorch: Any, fdl: Any, zip_of: Callable[..., bytes]) -> bytes:
    """PyTorch's server, with one archive."""
    fdl.env["FLODL_LIBTORCH_URL"] = server.url
    server.files[ZIP] = content = zip_of()
    return content


@pytest.fixture
def index(server: Any, libtorch: Any, fdl: Any) -> Callable[..., None]:
    """pip's only index: `index({"torch-...whl": content})`."""
    fdl.env = {k: v for k, v in fdl.env.items() if not k.startswith("PIP_")}
    fdl.env |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"{server.url}/simple",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
        "FLODL_TORCH_INDEX": f"{server.url}/whl",
    }

    def fill(wheels: dict[str, bytes], folder: str = "/simple", hashes: dict[str, str] | None = None) -> None:
        pages: dict[str, str] = {}
        for file, content in wheels.items():
            server.files[f"/files/{file.replace('+', '%2B')}"] = content
            digest = (hashes or {}).get(file, hashlib.sha256(content).hexdigest())
            mark = f"#sha256={digest}" if digest else ""
            project = file.partition("-")[0].replace("_", "-")
            line = f'<a href="/files/{file.replace("+", "%2B")}{mark}">{file}</a>\n'
            pages[project] = pages.get(project, "") + line
        for project, page in pages.items():
            server.files[f"{folder}/{project}/"] = f"<!DOCTYPE html><html><body>{page}</body></html>".encode()

    return fill


def left(home: Path) -> list[str]:
    """What is in the store but its lock."""
    root = home / "libtorch"
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.name != ".lock") if root.is_dir() else []


def test_a_zip_is_installed_and_known(libtorch: Any, zips: bytes, flodl_home: Path) -> None:
    done = libtorch("download", *ZIPPED)
    assert done.code == 0, done.err
    assert "# precompiled/cpu: libtorch 2.13.0+cpu installed, active" in done.out
    (found,) = json.loads(libtorch("list", "--json").out)
    told = {k: found[k] for k in ("version", "cuda", "architectures", "abi", "source", "sha256", "active")}
    sha256 = hashlib.sha256(zips).hexdigest()
    assert told == {
        "version": "2.13.0+cpu",
        "cuda": None,
        "architectures": [],
        "abi": 1,
        "source": "zip",
        "sha256": sha256,
        "active": True,
    }
    folder = flodl_home / "libtorch" / "precompiled" / "cpu"
    assert (folder / "torch" / "lib" / "libtorch.so").is_file()
    assert f"sha256={sha256}\n" in (folder / ".arch").read_text()
    assert [p for p in left(flodl_home) if p.startswith(".")] == [".active"]  # no parts, no staging


def test_a_second_download_does_nothing_and_another_version_gets_a_name_of_its_own(
    libtorch: Any, zips: bytes, server: Any, zip_of: Callable[..., bytes]
) -> None:
    assert libtorch("download", *ZIPPED).code == 0
    count = len(server.requests)
    assert "was installed before, active" in libtorch("download", *ZIPPED).out
    assert len(server.requests) == count
    server.files[ZIP.replace("2.13.0", "2.12.1")] = zip_of("2.12.1+cpu")
    other = libtorch("download", "--cpu", "--version", "2.12.1", "--source", "zip", "--no-activate", "--json")
    assert json.loads(other.out)["name"] == "precompiled/cpu-2.12.1"
    assert json.loads(other.out)["active"] is False
    assert libtorch("env", "cpu-2.12.1").out != libtorch("env").out


def test_what_someone_deleted_is_downloaded_again(libtorch: Any, zips: bytes, flodl_home: Path) -> None:
    assert libtorch("download", *ZIPPED).code == 0
    shutil.rmtree(flodl_home / "libtorch" / "precompiled" / "cpu" / "torch")
    again = libtorch("download", *ZIPPED)
    assert (again.code, "# precompiled/cpu: libtorch 2.13.0+cpu installed, active" in again.out) == (0, True)


FAULTS = {
    "403": "the server says 403 Forbidden",
    "404": "the server says 404 Not Found; is there such a version?",
    "503": "the server says 503 Service Unavailable (tried 1 times)",
    "redirect ftp://elsewhere/a.zip": "redirects to ftp://: refused",
    "truncated": "is damaged or no zip archive",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_leave_nothing_behind(libtorch: Any, zips: bytes, server: Any, flodl_home: Path, fault: str) -> None:
    server.faults[ZIP] = [fault]
    failed = libtorch("download", *ZIPPED)
    assert (failed.code, failed.out) == (1, "")
    assert FAULTS[fault] in failed.err
    assert left(flodl_home) == []
    assert libtorch("list", "--json").out == "[]\n"


def test_a_text_instead_of_an_archive(libtorch: Any, zips: bytes, server: Any, flodl_home: Path) -> None:
    server.files[ZIP] = b"<html>log in first</html>"
    assert "no zip archive" in libtorch("download", *ZIPPED).err
    assert left(flodl_home) == []


def test_what_is_not_a_libtorch(libtorch: Any, zips: bytes, server: Any, zipped: Any, flodl_home: Path) -> None:
    server.files[ZIP] = zipped({"other/lib/x.so": b"1"})
    assert "holds no libtorch" in libtorch("download", *ZIPPED).err
    server.files[ZIP] = zipped({"libtorch/lib/x.txt": b"1"})
    assert "holds no lib/libtorch.so" in libtorch("download", *ZIPPED).err
    assert left(flodl_home) == []


def test_another_version_than_asked_for(libtorch: Any, zips: bytes, server: Any, zip_of: Any, flodl_home: Path) -> None:
    server.files[ZIP] = zip_of("2.13.0+cu126")
    failed = libtorch("download", *ZIPPED)
    assert (failed.code, "asked for torch 2.13.0 for cpu, got 2.13.0+cu126 for cu126" in failed.err) == (1, True)
    assert left(flodl_home) == []


def test_the_sha256_of_a_zip(libtorch: Any, zips: bytes, flodl_home: Path) -> None:
    assert "expected 00" in libtorch("download", *ZIPPED, "--sha256", "00").err
    assert left(flodl_home) == []
    assert libtorch("download", *ZIPPED, "--sha256", hashlib.sha256(zips).hexdigest().upper()).code == 0


def test_two_at_once(libtorch: Any, fdl: Any, zips: bytes, server: Any) -> None:
    server.faults[ZIP] = ["wait"]
    one = fdl.start("libtorch", "download", *ZIPPED)
    _until(lambda: server.requests)
    two = fdl.start("libtorch", "download", *ZIPPED)
    said = two.stderr.readline()
    assert "another fdl is changing" in said
    assert "waiting" in said
    server.go_on.set()
    (out, _), (other, _) = one.communicate(timeout=60), two.communicate(timeout=60)
    assert (one.returncode, two.returncode) == (0, 0)
    assert ("installed, active" in out, "was installed before, active" in other) == (True, True)
    assert len(server.requests) == 1


def test_killed_in_the_middle_the_next_call_resumes(
    libtorch: Any, fdl: Any, zips: bytes, server: Any, flodl_home: Path
) -> None:
    server.faults[ZIP] = ["slow"]
    assert _kill_in_the_middle(fdl, flodl_home, signal.SIGKILL)[0] == -signal.SIGKILL
    assert libtorch("list", "--json").out == "[]\n"
    assert libtorch("env").code == 2
    done = libtorch("download", *ZIPPED)
    assert done.code == 0, done.err
    assert ", from " in done.err
    assert server.requests[1][1] == f"bytes={len(zips) // 2}-"
    assert [p for p in left(flodl_home) if p.startswith(".")] == [".active"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_stopped_by_a_signal(
    fdl: Any, libtorch: Any, zips: bytes, server: Any, flodl_home: Path, number: int, code: int
) -> None:
    server.faults[ZIP] = ["slow"]
    status, said = _kill_in_the_middle(fdl, flodl_home, number)
    assert status == code
    assert said.startswith("fdl: downloading libtorch-shared-with-deps-2.13.0+cpu.zip, ")
    assert said.count("\n") == 1
    assert {p.partition("/")[0] for p in left(flodl_home)} == {".parts"}  # only what can be resumed


def _kill_in_the_middle(fdl: Any, home: Path, number: int) -> tuple[int, str]:
    process = fdl.start("libtorch", "download", *ZIPPED)
    _until(lambda: any(p.stat().st_size > 50_000 for p in home.glob("libtorch/.parts/*.zip")))
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_what_a_killed_install_left_is_swept_away(libtorch: Any, zips: bytes, flodl_home: Path) -> None:
    half = flodl_home / "libtorch" / ".staging" / "abc" / "torch" / "lib"
    half.mkdir(parents=True)
    (half / "libtorch.so").write_bytes(b"half")
    unfinished = flodl_home / "libtorch" / "precompiled" / "cu126"
    unfinished.mkdir(parents=True)
    assert libtorch("list", "--json").out == "[]\n"
    assert libtorch("download", *ZIPPED).code == 0
    assert not half.exists()


def _until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


@pytest.fixture
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """A small file system of its own: `mounted("size=300k")`."""
    folder = tmp_path_factory.mktemp("mounted")
    used = []

    def mount(options: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("only root may mount")
        used.append(folder)
        return folder

    yield mount
    for place in used:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(libtorch: Any, fdl: Any, zips: bytes, mounted: Any) -> None:
    fdl.env["FLODL_HOME"] = home = str(mounted("size=100k"))
    failed = libtorch("download", *ZIPPED)
    assert (failed.code, "the download needs" in failed.err) == (1, True)
    assert left(Path(home)) == []


def test_a_disk_that_fills_while_unpacking(
    libtorch: Any, fdl: Any, zips: bytes, mounted: Any, flodl_home: Path
) -> None:
    fdl.env["FLODL_HOME"] = home = str(mounted(f"size={len(zips) // 1024 + 100}k"))
    failed = libtorch("download", *ZIPPED)
    assert failed.code == 1
    assert "nothing was installed" in failed.err
    assert {p.partition("/")[0] for p in left(Path(home))} <= {".parts"}


def test_a_home_that_cannot_be_written(libtorch: Any, fdl: Any, zips: bytes, mounted: Any) -> None:
    fdl.env["FLODL_HOME"] = str(mounted("ro"))
    failed = libtorch("download", *ZIPPED)
    assert failed.code == 2
    assert "cannot write in" in failed.err
    assert "FLODL_HOME or --path names another folder" in failed.err
    assert libtorch("list").code == 0


def test_a_bar_on_a_terminal_nothing_when_quiet(libtorch: Any, fdl: Any, zips: bytes, server: Any) -> None:
    leader, terminal = os.openpty()
    process = fdl.start("libtorch", "download", *ZIPPED, stderr=terminal)
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while block := os.read(leader, 65536):
            shown += block
    out, _ = process.communicate(timeout=60)
    os.close(leader)
    assert "installed, active" in out
    assert "━".encode() in shown
    assert b"unpacking" in shown
    assert "\x1b" not in out
    libtorch("remove", "cpu", "-y")
    quiet = fdl("-q", "libtorch", "download", *ZIPPED)
    assert (quiet.code, quiet.err) == (0, "")


# from an index of wheels, by pip

TORCH = "torch-2.13.0+cpu-py3-none-any.whl"


def test_a_wheel(libtorch: Any, index: Any, wheel_of: Any, server: Any, flodl_home: Path) -> None:
    index({TORCH: (content := wheel_of(**{"torch/nn/__init__.py": b"1"}))})
    done = libtorch("download", "--cpu", "--version", "2.13.0")
    assert done.code == 0, done.err
    sha256 = hashlib.sha256(content).hexdigest()
    found = json.loads(libtorch("info", "--json").out)
    assert (found["source"], found["sha256"], found["missing"]) == ("wheel", sha256, [])
    assert found["tch"] == {"version": "0.26", "torch": "2.13.0", "fits": True}
    prefix = Path(found["prefix"])
    assert (prefix / "build-version").read_text() == "2.13.0+cpu\n"
    assert sorted(p.name for p in prefix.iterdir()) == ["build-version", "include", "lib", "version.py"]


def test_a_wheel_that_is_not_what_the_index_says(libtorch: Any, index: Any, wheel_of: Any, flodl_home: Path) -> None:
    index({TORCH: wheel_of()}, hashes={TORCH: "0" * 64})
    failed = libtorch("download", "--cpu", "--version", "2.13.0")
    assert failed.code == 1
    assert "pip got something else than the index describes" in failed.err
    assert "0" * 64 in failed.err
    assert left(flodl_home) == []


def test_an_index_that_asks_for_a_password(libtorch: Any, fdl: Any, index: Any, wheel_of: Any, server: Any) -> None:
    index({TORCH: wheel_of()})
    server.password = base64.b64encode(b"me:secret").decode()
    fdl.env["PIP_INDEX_URL"] = server.url.replace("//", "//me:secret@") + "/simple"
    fdl.env["PIP_TRUSTED_HOST"] = "127.0.0.1"
    done = libtorch("download", "--cpu", "--version", "2.13.0")
    assert done.code == 0, done.err
    assert "needs credentials: pip downloads it" in done.err
    assert "secret" not in done.out + done.err


def test_a_hostile_wheel(libtorch: Any, index: Any, wheel_of: Any, flodl_home: Path) -> None:
    index({TORCH: wheel_of(**{"torch/../../x": b"1"})})
    failed = libtorch("download", "--cpu", "--version", "2.13.0")
    assert (failed.code, "has a member that leaves its folder: 'torch/../../x'" in failed.err) == (1, True)
    assert left(flodl_home) == []


def test_no_such_wheel(libtorch: Any, index: Any, wheel_of: Any, flodl_home: Path) -> None:
    index({TORCH: wheel_of()})
    failed = libtorch("download", "--cpu", "--version", "2.12.1")
    assert failed.code == 1
    assert "pip finds no torch==2.12.1+cpu" in failed.err
    assert "--source zip" in failed.err
    assert left(flodl_home) == []


def test_cuda_libraries_lie_where_torch_looks_for_them(
    libtorch: Any,
    index: Any,
    wheel_of: Any,
    plain_wheel: Any,
    compiled: Any,
    fat_source: str,
    flodl_home: Path,
) -> None:
    runtime = compiled("cudart_test", "int cuda_runtime;")
    user = compiled(
        "torch_cuda",
        fat_source,
        "-Wl,--no-as-needed",
        "-lcudart_test",
        "-Wl,-rpath,$ORIGIN/../../nvidia/cuda_runtime/lib",
    )
    torch = wheel_of(
        "2.13.0+cu126", "12.6", ("nvidia-cuda-runtime-cu12==12.6.77", "other"), **{"torch/lib/libtorch_cuda.so": user}
    )
    nvidia = {
        "nvidia/cuda_runtime/lib/libcudart_test.so": runtime,
        "nvidia/cuda_runtime/__init__.py": b"",
        "nvidia/bin/x": b"1",
    }
    index({"torch-2.13.0+cu126-py3-none-any.whl": torch}, folder="/whl/cu126")  # not on pip's own index
    index(
        {
            "nvidia_cuda_runtime_cu12-12.6.77-py3-none-any.whl": plain_wheel(
                "nvidia-cuda-runtime-cu12", "12.6.77", nvidia
            ),
            "other-1.0-py3-none-any.whl": plain_wheel("other", "1.0", {"other.py": b""}),
        }
    )
    done = libtorch("download", "--cuda", "12.6", "--version", "2.13.0")
    assert done.code == 0, done.err
    found = json.loads(libtorch("info", "--json").out)
    assert (found["name"], found["cuda"], found["architectures"]) == ("precompiled/cu126", "12.6", ["8.6", "12.0+PTX"])
    assert found["missing"] == []
    folder = flodl_home / "libtorch" / "precompiled" / "cu126"
    assert [p.name for p in folder.glob("nvidia/*/*/*")] == ["libcudart_test.so"]
    (folder / "nvidia/cuda_runtime/lib/libcudart_test.so").unlink()
    assert "libcudart_test.so (needed by libtorch_cuda.so: it comes with the CUDA toolkit" in " ".join(
        libtorch("info").out.split()
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cpu", "--cuda", "12.6"], "--cpu or --cuda, not both"),
        (["--cuda", "12.9", "--version", "2.13.0"], "is built for CUDA"),
        (["--cuda", "new"], "--cuda new: a version such as 12.8"),
        (["--cpu", "--version", "2.13"], "a release is written like"),
        (["--cpu", "--url", "http://x"], "are for --source zip"),
        (["--cpu", "--source", "tar"], "Invalid value for '--source'"),
    ],
)
def test_wrong_calls(libtorch: Any, words: list[str], said: str, flodl_home: Path) -> None:
    wrong = libtorch("download", *words)
    assert (wrong.code, wrong.out) == (2, "")
    assert said in wrong.err
    assert left(flodl_home) == []


def test_without_a_gpu_the_cpu_build_is_taken(libtorch: Any, fdl: Any, zips: bytes, server: Any) -> None:
    fdl.env["FLODL_GPUS"] = ""
    done = libtorch("download", "--source", "zip", "--dry-run", "--json")
    assert json.loads(done.out)["files"][0]["url"].startswith(f"{server.url}/cpu/libtorch-shared-with-deps-")
    assert "no GPU was found: the CPU build" in done.err


def test_what_runs_on_the_gpus_is_taken_or_the_reason_told(libtorch: Any, fdl: Any, zips: bytes) -> None:
    fdl.env["FLODL_GPUS"] = "12.0 NVIDIA GeForce RTX 5060 Ti"
    assert "/cu1" in json.loads(libtorch("download", "--source", "zip", "--dry-run", "--json").out)["files"][0]["url"]
    fdl.env["FLODL_GPUS"] = "6.1 NVIDIA GeForce GTX 1060; 12.0 NVIDIA GeForce RTX 5060 Ti"
    refused = libtorch("download", "--source", "zip", "--dry-run")
    assert refused.code == 2
    assert "fdl libtorch build --archs" in refused.err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("setting", ["PIP_TRUSTED_HOST", "REQUESTS_CA_BUNDLE"])
def test_a_certificate_that_only_pip_is_told_to_trust(
    libtorch: Any, fdl: Any, index: Any, wheel_of: Any, server: Any, tmp_path: Path, setting: str
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    index({TORCH: wheel_of()})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    fdl.env["PIP_INDEX_URL"] = server.url.replace("http:", "https:") + "/simple"
    fdl.env[setting] = "127.0.0.1" if setting == "PIP_TRUSTED_HOST" else str(certificate)
    done = libtorch("download", "--cpu", "--version", "2.13.0")
    assert done.code == 0, done.err
    assert "has a certificate that only pip's settings may trust: pip downloads it" in done.err
