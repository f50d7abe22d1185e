"""Function stubs made of plain requests: Python that lacks a body, the same for the same seed."""

import ast
import json
from pathlib import Path

import pytest

from demo_drafter.stubs import make_stubs

ASKS = (
    "Write a function to find the similar elements from the given two tuple lists.",
    "Write a python function to identify non-prime numbers.",
    "Design a Python function that returns the average of a list.\n\n[5, 8, 13, 21]",
)
NOT_ASKS = ("What is the capital of France?", "Write a C++ function that adds two numbers.\n\n1, 2")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "asks.jsonl"
    rows = ({"id": str(i), "turns": [ask]} for i, ask in enumerate((*ASKS, *NOT_ASKS)))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def turns(prompts: Path, seed: int) -> list[str]:
    found = []
    for row in make_stubs(prompts, seed=seed):
        assert isinstance(row["turns"], list)
        found.append(row["turns"][0])
    return found


@pytest.mark.parametrize("seed", range(8))
def test_a_stub_is_python_without_a_body(prompts: Path, seed: int) -> None:
    for turn in turns(prompts, seed):
        code = turn.split("```python\n")[1].removesuffix("```")
        function = ast.parse(code).body[-1]
        assert isinstance(function, ast.FunctionDef)
        assert len(function.body) == 1
        assert ast.get_docstring(function)


def test_only_requests_for_a_python_function_become_stubs(prompts: Path) -> None:
    assert len(turns(prompts, 0)) == len(ASKS)


def test_an_example_goes_into_the_docstring(prompts: Path) -> None:
    assert "[5, 8, 13, 21]" in turns(prompts, 0)[2]


def test_the_seed_decides(prompts: Path) -> None:
    assert turns(prompts, 3) == turns(prompts, 3)
    assert turns(prompts, 3) != turns(prompts, 4)
