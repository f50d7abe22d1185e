"""Prompts that ask to complete a Python function, made from plain requests for one.

Coding assistants are asked so all the time, and a target answers such a prompt by writing the stub again: a drafter
that never saw it can't copy. Sets of such prompts are for evaluation, so training prompts are made from other requests.
"""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

_INSTRUCTIONS = (
    "Here is the start of a Python function. Write all of it.",
    "Finish this Python function.",
    "Fill in the body of the following function:",
    "Implement the function below. Its docstring says what it does.",
    "Write the missing code of this Python function, following its docstring:",
    "Complete the code:",
)
_FILLERS = frozenset(
    re.findall(
        r"\w+",
        "a an and by check find for from function given in into is it of on or program python return returns that the "
        "this to two using whether which with write your",
    )
)
_ARGUMENTS = (
    ("numbers: List[int]", "List"), ("items: List[str]", "List"), ("text: str", ""), ("s: str", ""), ("n: int", ""),
    ("a: int, b: int", ""), ("x: float", ""), ("values: List[float], threshold: float", "List"), ("arr, n", ""),
    ("first: List[int], second: List[int]", "List"), ("data: Dict[str, int]", "Dict"), ("string", ""), ("lst", ""),
)  # fmt: skip
_RESULTS = ("int", "bool", "str", "float", "List[int]", "List[str]")
_REQUEST = re.compile(
    r"(?:write|create|design|implement|develop|build|generate)\b.*?\bfunction\b\s*(?:that|to|which)?\s*(.+)",
    re.IGNORECASE | re.DOTALL,
)


def make_stubs(prompts: Path, *, seed: int) -> Iterator[dict[str, object]]:
    """A stub for each row of a prompt file (`{"id", "turns"}` a line) that asks for a Python function.

    `seed` decides names of arguments, types and wording, all made up.
    """
    for line in prompts.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        request, _, example = row["turns"][0].partition("\n\n")
        wanted = _REQUEST.match(request.strip())
        if wanted is None or (example and "python" not in request.lower()):
            continue
        turn = _stub(wanted[1].strip(), example.strip(), random.Random(f"{seed}/{row['id']}"))
        yield {"id": f"stub/{row['id']}/{seed}", "turns": [turn]}


def _stub(task: str, example: str, rng: random.Random) -> str:
    arguments, imported = rng.choice(_ARGUMENTS)
    result = rng.choice(_RESULTS) if ":" in arguments else ""
    names = sorted({name for name in (imported, result.partition("[")[0]) if name in ("List", "Dict")})
    header = f"from typing import {', '.join(names)}\n\n\n" if names else ""
    arrow = f" -> {result}" if result else ""
    lines = [f"def {_name(task)}({arguments}){arrow}:", *_docstring(task, example, rng)]
    return f"{rng.choice(_INSTRUCTIONS)}\n```python\n{header}" + "\n".join(lines) + "\n```"


def _name(task: str) -> str:
    words = [word for word in re.findall(r"[a-z]+", task.lower()) if word not in _FILLERS]
    return "_".join(words[:3]) or "solution"


def _docstring(task: str, example: str, rng: random.Random) -> list[str]:
    sentence = task[0].upper() + task[1:].rstrip(".") + "."
    lines = [f'    """ {sentence}' if rng.random() < 0.5 else f'    """\n    {sentence}']
    lines += [f"    {line}" for line in example.splitlines()[:6]]
    return [*lines, '    """']
