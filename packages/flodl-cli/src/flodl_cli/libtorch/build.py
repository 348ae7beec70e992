"""A libtorch from source, for GPUs that no release has code for: planned as commands, run one by one, resumed where it stopped.

The commands run in one work folder, so that the same plan runs here (native) and in a container.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flodl_cli.errors import CliError
from flodl_cli.libtorch.toolkit import IMAGES, check_architectures
from flodl_cli.machine.architectures import Architecture, parse_list

__all__ = [
    "DOCKERFILE",
    "SOURCE_VARIABLE",
    "TOOLKIT",
    "Plan",
    "Step",
    "default_jobs",
    "plan",
    "printed",
    "variant_name",
]

SOURCE_VARIABLE = "FLODL_PYTORCH_GIT"  # another place of the sources, such as a mirror
_SOURCE = "https://github.com/pytorch/pytorch.git"
_GB_PER_JOB = 3  # what nvcc takes for the largest of torch's files

TOOLKIT = "nvcc.txt"

# CMake 4 refuses what older releases bring along.
_TOOLS = (
    "cmake>=3.27,<4",
    "ninja",
    "numpy",
    "packaging",
    "pyyaml",
    "requests",
    "setuptools",
    "six",
    "typing-extensions",
)


class Step(NamedTuple):
    """One command. `makes` is what an interrupted one leaves behind, to be removed before it runs again; `told` a file
    for what it prints."""

    title: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    makes: str = ""
    always: bool = False  # also when it was done before: an image may have been removed since
    told: str = ""


class Plan(NamedTuple):
    """A build: what it will be, and the commands that make it."""

    name: str  # "sm61-sm120"
    version: str
    architectures: tuple[Architecture, ...]
    image: str | None  # of the container; None for a native build
    work: Path  # where it is made, and resumed
    steps: tuple[Step, ...]


def variant_name(architectures: Sequence[Architecture]) -> str:
    """`sm61-sm120` for 6.1;12.0, with `+PTX` said as `ptx`."""
    ptx = {a.capability for a in architectures if a.ptx}
    code = sorted({(a.capability, a.only) for a in architectures if not a.ptx})
    return "-".join(f"sm{c[0]}{c[1]}{only}{'ptx' if c in ptx else ''}" for c, only in code)


def default_jobs() -> int:
    """As many compilers as there are cores and memory for."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory // (_GB_PER_JOB * 10**9)))


def plan(
    root: Path,
    archs: str,
    version: str,
    *,
    native: bool | None,
    jobs: int,
    image: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Plan:
    """The commands for a build in the store `root`. `native` None: here where a toolkit is that can, else in a container."""
    wanted = parse_list(archs)
    if not wanted:
        raise CliError("--archs names the compute capabilities of the GPUs, such as 6.1;12.0")
    name = variant_name(wanted)
    nvcc = shutil.which("nvcc", path=environ.get("PATH"))
    if native is None:
        native = image is None and nvcc is not None and _can(nvcc, wanted)
    work = root / ".building" / f"{name}-{version}-{'native' if native else 'docker'}"
    if native:
        if nvcc is None:
            raise CliError(
                "there is no nvcc on PATH: install the CUDA toolkit, or --docker builds in a container that has one"
            )
        check_architectures(wanted, nvcc)
        return Plan(name, version, wanted, None, work, tuple(_steps(str(work), archs, version, jobs, environ)))
    docker = shutil.which("docker", path=environ.get("PATH"))
    if docker is None:
        raise CliError(
            "there is no docker on PATH: install it, or --native builds with the CUDA toolkit that is installed"
        )
    image = image or _image(wanted)
    inside = [
        "docker",
        "run",
        "--rm",
        "--init",
        "--user",
        f"{os.getuid()}:{os.getgid()}",
        "--volume",
        f"{work}:/work",
        "--workdir",
        "/work",
    ]
    tag = f"fdl-libtorch-build:{image.rpartition('/')[2].replace(':', '-')}"
    make = Step(
        "container", ("docker", "build", "--tag", tag, "--build-arg", f"IMAGE={image}", "container"), always=True
    )
    steps = [make]
    for step in _steps("/work", archs, version, jobs, environ):
        variables = [
            word for key, value in {"HOME": "/work", **step.env}.items() for word in ("--env", f"{key}={value}")
        ]
        steps.append(step._replace(argv=(*inside, *variables, tag, *step.argv), env={}))
    return Plan(name, version, wanted, image, work, tuple(steps))


DOCKERFILE = """\
ARG IMAGE
FROM ${IMAGE}
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \\
    ca-certificates g++ git make python3 python3-dev python3-venv && rm -rf /var/lib/apt/lists/*
"""


def printed(plan: Plan) -> Iterator[str]:
    """The plan as a script."""
    yield f"mkdir -p {shlex.quote(str(plan.work))} && cd {shlex.quote(str(plan.work))}"
    if plan.image:
        yield f"# container/Dockerfile:\n{DOCKERFILE.rstrip()}".replace("\n", "\n#   ")
    for step in plan.steps:
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in step.env.items())
        yield f"{variables}{shlex.join(step.argv)}" + (f" > {step.told}" if step.told else "")
    yield f"# then {plan.work / 'out' / 'torch'} becomes {plan.work.parents[1] / 'builds' / plan.name}, if it has the code"


def _can(nvcc: str, wanted: Sequence[Architecture]) -> bool:
    try:
        check_architectures(wanted, nvcc)
    except CliError:
        return False
    return True


def _image(wanted: Sequence[Architecture]) -> str:
    from flodl_cli.machine.builds import toolkits_for

    fitting = [cuda for cuda in toolkits_for([a.capability for a in wanted]) if cuda in IMAGES]
    if not fitting:
        raise CliError(
            f"no CUDA toolkit makes code for {';'.join(str(a) for a in wanted)} together: build for fewer GPUs"
        )
    return IMAGES[fitting[0]]


def _steps(here: str, archs: str, version: str, jobs: int, environ: Mapping[str, str]) -> Iterator[Step]:
    source = environ.get(SOURCE_VARIABLE) or _SOURCE
    yield Step(
        "source",
        ("git", "-c", "advice.detachedHead=false", "clone", "--depth", "1", "--branch", f"v{version}", source, "src"),
        makes="src",
    )
    yield Step("submodules", ("git", "-C", "src", "submodule", "update", "--init", "--recursive", "--depth", "1"))
    yield Step("environment", ("python3", "-m", "venv", "venv"), makes="venv")
    yield Step("tools", ("venv/bin/pip", "install", "--quiet", *_TOOLS))
    yield Step("toolkit", ("nvcc", "--version"), told=TOOLKIT)
    settings = {
        "BUILD_PYTHON": "OFF",
        "BUILD_SHARED_LIBS": "ON",
        "BUILD_TEST": "OFF",
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_INSTALL_PREFIX": f"{here}/out/torch",
        "CMAKE_MAKE_PROGRAM": f"{here}/venv/bin/ninja",
        "Python_EXECUTABLE": f"{here}/venv/bin/python",
        "USE_CUDA": "ON",
        "USE_NCCL": "OFF",  # CMAKE_ARGS="-DUSE_NCCL=ON -DUSE_SYSTEM_NCCL=ON" for a libtorch on several GPUs
    }
    words = [f"-D{name}={value}" for name, value in settings.items()]
    own = environ.get("CMAKE_ARGS", "").split()
    env = {"TORCH_CUDA_ARCH_LIST": archs.replace(" ", ";").replace(",", ";"), "MAX_JOBS": str(jobs)}
    yield Step(
        "configure", ("venv/bin/cmake", "-S", "src", "-B", "build", "-G", "Ninja", *words, *own), env, makes="build"
    )
    yield Step("build", ("venv/bin/cmake", "--build", "build", "--parallel", str(jobs)), env)
    yield Step("install", ("venv/bin/cmake", "--install", "build"), makes="out")
