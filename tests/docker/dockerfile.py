"""What a Dockerfile of ours says."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

parsing = pytest.importorskip("dockerfile_parse", reason="needs the optional package dockerfile-parse")
FOLDER = ROOT / "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    name: str
    value: str

    @property
    def words(self) -> list[str]:
        """Of the JSON form."""
        words = json.loads(self.value[self.value.index("[") :])
        assert all(isinstance(word, str) for word in words)
        return list(words)


def instructions(name: str) -> list[Instruction]:
    with (FOLDER / name).open("rb") as file:
        structure = parsing.DockerfileParser(fileobj=file).structure
    return [Instruction(name=s["instruction"], value=s["value"]) for s in structure if s["instruction"] != "COMMENT"]


def the(name: str, of: list[Instruction]) -> Instruction:
    """The only one of that name."""
    (found,) = [instruction for instruction in of if instruction.name == name]
    return found


def local_copies(of: list[Instruction]) -> list[tuple[list[Path], str]]:
    """Sources in the repository, and where they go."""
    copies = [i.value.split() for i in of if i.name == "COPY" and not i.value.startswith("--from")]
    return [([ROOT / source for source in sources], target) for *sources, target in copies]
