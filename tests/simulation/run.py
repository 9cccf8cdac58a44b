"""Runs simulated schedules: `python -m tests.simulation.run --schedules 10000`, or one of them with `--seed`.

Exit code 1 if a schedule came to something else than one calm worker; its seed and what it needs are printed.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.schedule import FAULTS, Verdict, run

SHOWN_PROBLEMS = 8


def needed(seed: int) -> frozenset[str]:
    """A smallest set of faults with which the schedule still fails."""
    faults = FAULTS
    for fault in sorted(FAULTS):
        if run(seed, faults - {fault}).problems:
            faults -= {fault}
    return faults


def report(verdict: Verdict, faults: frozenset[str], effects: int) -> None:
    """Print what went wrong, and how to see it again."""
    only = "" if faults == FAULTS else f" --faults {','.join(sorted(faults)) or 'none'}"
    print(
        f"seed {verdict.seed}: {len(verdict.problems)} problems; python -m tests.simulation.run --seed {verdict.seed}{only}"
    )
    for at, process, what in verdict.trace[-effects:] if effects else ():
        print(f"  {at:9.3f} {process:4} {what}")
    for problem in verdict.problems[: None if effects else SHOWN_PROBLEMS]:
        print(f"  {problem}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.simulation.run")
    parser.add_argument("--schedules", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first one's seed (0)")
    parser.add_argument("--seed", type=int, help="only this one, with its trace")
    parser.add_argument("--faults", help=f"only these, by comma: {', '.join(sorted(FAULTS))}; or none")
    parser.add_argument("--effects", type=int, default=200, help="how many of the last effects --seed shows (200)")
    arguments = parser.parse_args()
    faults = FAULTS if arguments.faults is None else FAULTS & {*arguments.faults.split(",")}
    if arguments.seed is not None:
        verdict = run(arguments.seed, faults)
        report(verdict, faults, arguments.effects)
        print(
            f"{verdict.records} records, {verdict.outputs} outputs, {verdict.virtual_s:.0f} s virtual, {verdict.digest}"
        )
        return bool(verdict.problems)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    started, failed = time.process_time(), []
    records = outputs = 0
    virtual_s = 0.0
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.schedules):
        verdict = run(seed, faults)
        records, outputs = records + verdict.records, outputs + verdict.outputs
        virtual_s += verdict.virtual_s
        if verdict.problems:
            failed.append(seed)
            report(verdict, needed(seed) if arguments.faults is None else faults, 0)
    seconds = time.process_time() - started
    print(
        f"{arguments.schedules} schedules, {len(failed)} with problems; {records} records, {outputs} outputs, "
        f"{virtual_s / 3600:.1f} h virtual in {seconds:.1f} s CPU ({seconds / arguments.schedules * 1000:.1f} s per 1000)"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
