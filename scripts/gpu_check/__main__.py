"""The command."""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("engines", "export", "runtime")]  # nothing needs to be installed

from scripts.gpu_check.report import lines  # noqa: E402
from scripts.gpu_check.sections import Result, Section, child_command, run_here, run_in_children  # noqa: E402


def _machine(rehearse: bool) -> Result:
    from scripts.gpu_check.machine import machine

    return machine(rehearse)


def _runtime(rehearse: bool) -> Result:
    from scripts.gpu_check.lossless import runtime

    return runtime(rehearse)


def _tiny(rehearse: bool) -> Result:
    from scripts.gpu_check.lossless import tiny_pair

    return tiny_pair(rehearse)


def _speed(rehearse: bool) -> Result:
    from scripts.gpu_check.speed import speed

    return speed(rehearse)


def _compiled(rehearse: bool) -> Result:
    from scripts.gpu_check.compiled import compiled

    return compiled(rehearse)


SECTIONS = {
    section.name: section
    for section in (
        Section(name="machine", run=_machine, patience=40),
        Section(name="runtime", run=_runtime, patience=40),
        Section(name="speed", run=_speed, patience=80),
        Section(name="tiny_pair", run=_tiny, patience=60),
        Section(name="compiled", run=_compiled, patience=120),
    )
}


def main() -> None:
    """Run all sections, or one of them."""
    parser = argparse.ArgumentParser(description=sys.modules["scripts.gpu_check"].__doc__)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with a small target")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="the file to write")
    parser.add_argument("--section", choices=SECTIONS, help="run this one here, and print its result as JSON")
    options = parser.parse_args()
    if options.section is not None:
        sys.stdout.write(json.dumps(run_here(SECTIONS[options.section], options.rehearse)) + "\n")
        return
    names = [(section.name, section.patience) for section in SECTIONS.values()]
    results = run_in_children(names, options.out, lambda name: child_command(name, options.rehearse))
    sys.stdout.writelines(f"{line}\n" for line in lines(results))


if __name__ == "__main__":
    main()
