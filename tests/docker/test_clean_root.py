"""Dockerfile.cpu, line by line, in a fresh Debian: what it builds starts, says that it is ready, and serves."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docker.dockerfile import Instruction, instructions, local_copies, the
from tests.runtime.cli.test_serve import PROMPT, with_golden_cases
from tests.runtime.serving.http.conftest import until

TOOLS = ("debootstrap", "chroot", "unshare", "nsenter", "ip")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason="needs the optional package debootstrap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs the optional package debootstrap, and root to use it"),
]
# The official image is Debian with a Python of its own; here it is Debian's, of the same minor version.
DEBIAN = ["--variant=minbase", "--include=python3,python3-venv,ca-certificates", "bookworm"]
ASK = """
import json, urllib.request as r
body = json.dumps({"model": "dflash", "prompt": %s, "temperature": 0, "max_tokens": 5, "stop_token_ids": [0]}).encode()
asked = r.Request("http://127.0.0.1:8000/v1/completions", body, {"content-type": "application/json"})
print(json.load(r.urlopen(asked, timeout=30))["usage"]["completion_tokens"])
"""


@dataclass(kw_only=True)
class Stage:
    """One FROM and what follows it, carried out in `root`."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"

    def entered(self, command: list[str]) -> list[str]:
        """A command line that runs `command` in the root, as its user, in its folder, with its variables alone."""
        path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        variables = [f"{name}={value}" for name, value in (path | self.variables).items()]
        inside = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', self.folder, *command]
        return ["chroot", f"--userspec={self.user}", str(self.root), "/usr/bin/env", "-i", *variables, *inside]

    def enter(self, folder: str) -> None:
        self.folder = folder
        (self.root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def define(self, pairs: str) -> None:
        for pair in shlex.split(pairs):
            name, _, value = pair.partition("=")
            self.variables[name] = value.replace("$PATH", "/usr/local/bin:/usr/bin:/bin")

    def run(self, command: list[str]) -> None:
        done = subprocess.run(self.entered(command), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def copy(self, source: Path, target: str) -> None:
        """A folder's content, or a file into a folder."""
        to = self.root / Path(self.folder, target).relative_to("/")
        if source.is_dir():
            shutil.copytree(source, to, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / source.name if target.endswith("/") else to)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The last stage, made by every line of the file."""
    folder = tmp_path_factory.mktemp("image")
    fresh = folder / "fresh"
    subprocess.run(["debootstrap", *DEBIAN, str(fresh)], check=True, capture_output=True)
    said, stages = instructions("Dockerfile.cpu"), list[tuple[str, Stage]]()
    for instruction in said:
        if instruction.name == "FROM":
            root = folder / f"stage-{len(stages)}"
            subprocess.run(["cp", "-a", str(fresh), str(root)], check=True)
            stages.append((instruction.value.partition(" AS ")[2], Stage(root=root)))
            continue
        carry_out(instruction, dict(stages), stages[-1][1])
    return stages[-1][1]


def carry_out(said: Instruction, stages: dict[str, Stage], stage: Stage) -> None:
    """One line of the file. What only a container engine can do is left to it."""
    if said.name == "RUN":
        with network(stage):
            stage.run(["/bin/sh", "-c", said.value])
    elif said.name == "COPY" and said.value.startswith("--from="):
        origin, source, target = said.value.removeprefix("--from=").split()
        stage.copy(stages[origin].root / source.lstrip("/"), target)
    elif said.name == "COPY":
        ((local, target),) = local_copies([said])
        for path in local:
            stage.copy(path, target)
    elif said.name == "WORKDIR":
        stage.enter(said.value)
    elif said.name == "ENV":
        stage.define(said.value)
    elif said.name == "USER":
        stage.user = said.value
    else:
        assert said.name in ("EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD")


@contextmanager
def network(stage: Stage) -> Iterator[None]:
    """The way to the package index, as this machine has it; nothing of it stays in the image."""
    given = [path for path in map(Path, ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf")) if path.exists()]
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    before = {path: (stage.root / path.relative_to("/")).exists() for path in given}
    for path in [*given, certificates]:
        shutil.copy(path, stage.root / path.relative_to("/"))
    yield
    for path in given:
        if not before[path]:
            (stage.root / path.relative_to("/")).unlink()


@pytest.fixture
def server(image: Stage, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The entry point, with the bundle mounted read-only, in a network of its own (the port may be taken here)."""
    bundle = with_golden_cases(tmp_path / "bundle")
    bundle.chmod(0o755)
    (image.root / "bundle").mkdir(exist_ok=True)
    said = instructions("Dockerfile.cpu")
    command = shlex.join(image.entered(the("ENTRYPOINT", said).words + the("CMD", said).words))
    root = shlex.quote(str(image.root))
    mounts = f"mount -t proc proc {root}/proc && mount --bind {shlex.quote(str(bundle))} {root}/bundle"
    only_read = f"mount -o remount,bind,ro {root}/bundle"
    script = f"ip link set lo up && {mounts} && {only_read} && exec {command}"
    process = subprocess.Popen(["unshare", "--mount", "--net", "sh", "-c", script], stderr=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def inside(process: "subprocess.Popen[bytes]", command: list[str]) -> "subprocess.CompletedProcess[str]":
    """In the server's network."""
    return subprocess.run(["nsenter", f"--net=/proc/{process.pid}/ns/net", *command], capture_output=True, text=True)


def test_the_image_serves(image: Stage, server: "subprocess.Popen[bytes]") -> None:
    check = image.entered(the("HEALTHCHECK", instructions("Dockerfile.cpu")).words)
    until(lambda: server.poll() is not None or inside(server, check).returncode == 0)
    assert server.poll() is None, server.stderr and server.stderr.read().decode()
    answer = inside(server, [sys.executable, "-c", ASK % json.dumps(PROMPT)])
    assert answer.stdout.strip() == "5", answer.stderr
    owner = Path(f"/proc/{server.pid}").stat()
    assert f"{owner.st_uid}:{owner.st_gid}" == image.user
    assert any((image.root / "cache").iterdir())  # what was measured; the bundle couldn't be written to
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0


def test_the_image_holds_the_runtime_alone(image: Stage) -> None:
    """No torch, no compiler, no sources; and constraints.txt decided the versions."""
    listing = subprocess.run(
        image.entered(["python3", "-m", "pip", "list", "--format=json"]), capture_output=True, text=True, check=True
    )
    versions = {package["name"].lower().replace("_", "-"): package["version"] for package in json.loads(listing.stdout)}
    assert "torch" not in versions
    pins = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    pinned = {name.lower().replace("_", "-"): version for name, version in pins}
    shared = pinned.keys() & versions.keys()
    assert {"onnxruntime", "fastapi", "uvicorn", "tokenizers", "llguidance"} <= shared
    assert {name: versions[name] for name in shared} == {name: pinned[name] for name in shared}
    assert not (image.root / "src").exists()
