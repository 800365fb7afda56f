r"""Write the data set of a `verifiers` environment as rows that `data.train` and `data.eval` name.

python -m pttrainer.environments.episodes.verifiers_rows wordle --package wordle==0.1.4 --package verifiers==0.1.14 \
        --out /data/wordle.jsonl

A row keeps all columns: the rubric and the rollout read them again in the job. What JSON does not have is refused.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pttrainer.environments import packages
from pttrainer.environments.episodes.verifiers_episodes import loaded, why_refused
from pttrainer.errors import UserCodeError
from pttrainer.sandbox.user_code import RewardCodeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the rows; return the exit code."""
    parser = argparse.ArgumentParser(prog="verifiers_rows", description="write the data set of a verifiers environment")
    parser.add_argument("id", help="as spec.environment.verifiers.id")
    parser.add_argument(
        "--arguments", type=json.loads, default={}, help="as spec.environment.verifiers.arguments: JSON"
    )
    parser.add_argument("--package", action="append", default=[], help="as one of spec.environment.packages")
    parser.add_argument("--split", choices=("train", "eval"), default="train", help="which of its data sets")
    parser.add_argument("--out", type=Path, required=True, help="the file, JSON Lines")
    options = parser.parse_args(arguments)
    try:
        directory = packages.installed(options.package, lambda line: print(line, file=sys.stderr))
        sys.path += [directory] if directory else []
        count = write(options.id, options.arguments, options.split, options.out)
    except (RewardCodeError, UserCodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{count} rows in {options.out}")
    return 0


def write(name: str, arguments: dict[str, object], split: str, file: Path) -> int:
    """Write the rows of an environment; return their number. Raises RewardCodeError."""
    environment = loaded(name, arguments)
    if refused := why_refused(environment):
        raise RewardCodeError(f"{name}: {refused}")
    rows = environment.get_eval_dataset() if split == "eval" else environment.get_dataset()
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lines = [json.dumps(dict(row), ensure_ascii=False) for row in rows]
    except TypeError as error:
        raise RewardCodeError(f"{name}: its {split} rows: {error}; accepted: what JSON has") from error
    file.write_text("".join(f"{line}\n" for line in lines))
    return len(lines)


if __name__ == "__main__":
    sys.exit(main())
