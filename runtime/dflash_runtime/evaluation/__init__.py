"""The prompt sets that everything is measured on; README.md tells their sources and licences."""

import json
from collections.abc import Sequence
from importlib.resources import files

from dflash_engines.errors import RequestError

SETS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench")


def questions(name: str, count: int) -> list[str]:
    """The first user turn of the first `count` conversations of a set. Raises RequestError for another name."""
    check_sets([name])
    lines = files(__name__).joinpath(f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line)["turns"][0] for line in lines[:count] if line]


def check_sets(names: Sequence[str]) -> None:
    """Raises RequestError naming the first that is no set of ours."""
    if strange := [name for name in names if name not in SETS]:
        raise RequestError(f"there is no prompt set {strange[0]!r}; there are {', '.join(SETS)}")
