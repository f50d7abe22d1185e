"""Images, compose.yaml and kubernetes.yaml agree with the project and each other; no container engine is asked."""

import re
import tomllib
from typing import Any

import pytest
import typer.main
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dflash_runtime.cli import serve
from dflash_runtime.serving.http.app import create_app
from dflash_runtime.serving.http.service import Service
from dflash_runtime.serving.http.settings import Settings
from tests.conftest import ROOT
from tests.docker.dockerfile import FOLDER, instructions, local_copies, the

IMAGES = ["Dockerfile.cpu", "Dockerfile.gpu"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
images = pytest.mark.parametrize("image", IMAGES)


@pytest.fixture(scope="module")
def paths() -> set[str]:
    def never(metrics: object) -> Any:
        raise AssertionError

    return set(create_app(Service(never, Settings(model="none")), print).openapi()["paths"])


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def pod() -> Any:
    deployment, _ = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    assert deployment["spec"]["replicas"] == 1
    return deployment["spec"]["template"]["spec"]


def options_of_the_command() -> set[str]:
    return {option for parameter in typer.main.get_command(serve.app).params for option in parameter.opts}


@images
def test_bases_are_pinned_and_of_a_supported_python(image: str) -> None:
    bases = {i.value.split()[0] for i in instructions(image) if i.name == "FROM"}
    assert len(bases) == 1  # a virtual environment fits only the Python that it was made with
    pinned = re.fullmatch(r"python:(\d+\.\d+\.\d+)-slim-bookworm", bases.pop())
    assert pinned is not None
    assert pinned[1] in SpecifierSet(PROJECT["project"]["requires-python"])


@images
def test_what_is_copied_exists_and_reaches_the_builder(image: str) -> None:
    let_in = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"]
    sources = [source for copied, _ in local_copies(instructions(image)) for source in copied]
    assert all(source.exists() for source in sources)
    assert sorted(str(source.relative_to(ROOT)) for source in sources) == sorted(let_in)
    needed = [*PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], PROJECT["project"]["readme"],
              *PROJECT["project"]["license-files"], "constraints.txt", "pyproject.toml"]  # fmt: skip
    assert all(any((ROOT / name).is_relative_to(source) for source in sources) for name in needed)


@images
def test_all_direct_requirements_are_pinned(image: str) -> None:
    """By constraints.txt, to which pip is held, in versions that pyproject.toml allows."""
    pins = {r.name.lower().replace("_", "-"): r.specifier for r in map(Requirement, constraints())}
    (install,) = [i.value for i in instructions(image) if i.name == "RUN" and " pip install " in i.value]
    assert "-c constraints.txt" in install
    extras = re.findall(r"'\.\[([\w,-]+)\]'", install)[0].split(",")
    asked = PROJECT["project"]["dependencies"] + [
        text for extra in extras for text in PROJECT["project"]["optional-dependencies"][extra]
    ]
    for requirement in map(Requirement, asked):
        (pin,) = pins[requirement.name.lower().replace("_", "-")]
        assert pin.operator == "=="
        assert pin.version in requirement.specifier, requirement.name


def constraints() -> list[str]:
    return [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]


@images
def test_the_server_is_nobody_of_note(image: str) -> None:
    said = instructions(image)
    assert the("USER", said).value == "10001:10001"
    last = [i.name for i in said]
    assert last.index("USER") < last.index("ENTRYPOINT")
    assert not [i for i in said[last.index("USER") :] if i.name in ("RUN", "COPY", "ADD")]


@images
def test_the_server_is_started_by_its_own_command(image: str) -> None:
    said = instructions(image)
    command, bundle, *options = the("ENTRYPOINT", said).words + the("CMD", said).words
    assert command in PROJECT["project"]["scripts"]
    assert bundle == "/bundle"
    assert {option for option in options if option.startswith("--")} <= options_of_the_command()
    assert the("EXPOSE", said).value == options[options.index("--port") + 1]


@images
def test_the_health_check_asks_what_is_there(image: str, paths: set[str]) -> None:
    said = instructions(image)
    asked = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", the("HEALTHCHECK", said).value)
    assert asked == [(the("EXPOSE", said).value, "/ready")]
    assert asked[0][1] in paths


def test_compose_mounts_the_bundle_read_only(compose: Any) -> None:
    for service in compose["services"].values():
        bundle, cache = service["volumes"]
        assert bundle["target"] == "/bundle"
        assert bundle["read_only"] is True
        assert cache.split(":")[0] in compose["volumes"]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert (ROOT / service["build"]["dockerfile"]).exists()
        assert (FOLDER / service["build"]["context"]).resolve() == ROOT


def test_compose_waits_for_answers_and_is_open_to_this_machine_only(compose: Any) -> None:
    for service in compose["services"].values():
        assert int(service["stop_grace_period"].removesuffix("s")) > Settings(model="any").drain_timeout
        assert service["ports"] == ["127.0.0.1:8000:8000"]


def test_the_pod_is_probed_where_the_server_answers(pod: Any, paths: set[str]) -> None:
    (container,) = pod["containers"]
    (port,) = container["ports"]
    assert str(port["containerPort"]) == the("EXPOSE", instructions("Dockerfile.cpu")).value
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert [probe["path"] for probe in probes] == ["/ready", "/ready", "/health"]
    assert all(probe["path"] in paths and probe["port"] == port["name"] for probe in probes)


def test_the_pod_can_write_to_its_cache_alone(pod: Any) -> None:
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert user == the("USER", instructions("Dockerfile.cpu")).value
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts.keys() == {"/bundle", "/cache"}
    assert mounts["/bundle"]["readOnly"] is True
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in pod["volumes"]}
    assert "memory" in container["resources"]["limits"]


def test_the_pod_may_finish_its_answers(pod: Any) -> None:
    (container,) = pod["containers"]
    args = container["args"]
    assert {arg for arg in args if arg.startswith("--")} <= options_of_the_command()
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + float(args[args.index("--drain-timeout") + 1])
