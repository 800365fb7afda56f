"""Our trainer on one GPU, and TRL, bitsandbytes and vLLM beside it where they are installed, in one command:

    make bench-gpu                                    # ours alone: random weights of qwen3-1.7b
    make bench-gpu ARGS="--model /models/Qwen3-1.7B --torch VENV/bin/python --accelerator rtx-pro-6000-1"

Rows: SFT in bfloat16 (MFU), LoRA and QLoRA (GPU memory), decoding (share of the memory's bandwidth), a step of GRPO
(seconds). Peers train a directory with a checkpoint, which both sides read; TRL's with torch.compile, its GRPO with
vLLM in its process. What was skipped is said, each with its reason. `--accelerator cpu-1 --model random://tiny` shows
that it runs. Never run on a GPU yet (docs/reference/not-run.md).
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.jobs import REWARD, manifest

from ptapi.accelerators import Slice, resolve

SCRIPTS = Path(__file__).resolve().parent / "scripts"
WARM_UP = 2
"""Steps that are not counted: programs are compiled, memory is filled."""
GROUP, PROMPTS = 8, 8
NAMES = {"RTX PRO 6000": "rtx-pro-6000-1", "H100": "h100-1", "A100": "a100-1", "L4": "l4-1"}
"""Our types by a part of what nvidia-smi calls the GPU. Of an H200 or B200 whole machines are a type: say h100-1 and
mind that memory and bandwidth are not its."""


@dataclass(frozen=True)
class Options:
    """The command line. torch: the peers' interpreter; empty: none."""

    accelerator: Slice
    model: str
    torch: str
    steps: int
    batch: int
    length: int
    new_tokens: int


@dataclass
class Figures:
    """One side of a row. seconds: of a step; memory_gib: the most that the GPU held; None: not told."""

    seconds: float
    tokens_per_s: float | None = None
    memory_gib: float | None = None
    mfu: float | None = None
    bandwidth: float | None = None

    def words(self) -> str:
        """Return what is known."""
        parts = [f"{self.seconds:.3f} s"]
        parts += [] if self.tokens_per_s is None else [f"{self.tokens_per_s:.0f} tokens/s"]
        parts += [] if self.memory_gib is None else [f"{self.memory_gib:.2f} GiB of GPU memory"]
        parts += [] if self.mfu is None else [f"MFU {self.mfu:.1%}"]
        parts += [] if self.bandwidth is None else [f"{self.bandwidth:.1%} of the memory's bandwidth"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Row:
    """A row: what it measures, what it must reach, and what the peer needs installed."""

    name: str
    title: str
    bar: str
    peer: str
    needs: tuple[str, ...]
    spec: Callable[["Row", Options, Path], dict[str, object]] | None


@dataclass
class Report:
    """Everything that one run has measured and skipped."""

    figures: dict[str, dict[str, Figures]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return it for --out."""
        rows = {name: {side: asdict(each) for side, each in sides.items()} for name, sides in self.figures.items()}
        return {"rows": rows, "skipped": self.skipped}


def sft(row: Row, options: Options, here: Path) -> dict[str, object]:
    """Return the fields of a job of SFT: full, LoRA or QLoRA."""
    training: dict[str, object] = {
        "steps": options.steps,
        "batchSize": options.batch,
        "sequenceLength": options.length,
    }
    if row.name != "sft":
        training["lora"] = {"rank": 16, "alpha": 32}
    if row.name == "qlora":
        training["quantization"] = {"weights": "nf4"}
    return {"training": training}


def grpo(row: Row, options: Options, here: Path) -> dict[str, object]:
    """Return the fields of a job of GRPO."""
    new = options.new_tokens
    return {
        "algorithm": {"grpo": {"groupSize": GROUP}},
        "rewards": [{"python": {"uri": (here / "reward.py").as_uri(), "function": "reward"}}],
        "rollout": {"maxNewTokens": new, "minNewTokens": new},
        "training": {"steps": options.steps, "batchSize": PROMPTS * GROUP, "sequenceLength": 256 + new},
    }


ROWS = (
    Row("sft", "SFT, bfloat16", "MFU 50 %, aim 60 %", "TRL, torch.compile", ("trl",), sft),
    Row("lora", "SFT, LoRA r16", "no more memory than peft", "TRL, peft", ("trl", "peft"), sft),
    Row("qlora", "SFT, QLoRA r16, nf4", "no more memory than bitsandbytes", "TRL, peft, bitsandbytes",
        ("trl", "peft", "bitsandbytes"), sft),
    Row("decode", "decoding, 64 rows", "75 % of the bandwidth, aim 85 %", "vLLM", ("vllm",), None),
    Row("grpo", f"GRPO step, {PROMPTS} prompts x {GROUP}", "TRL's time / 1.3", "TRL with vLLM", ("trl", "vllm"), grpo),
)  # fmt: skip


def ours(row: Row, options: Options) -> Figures:
    """Run our side once. Raises RuntimeError with its last words."""
    if row.spec is None:
        return _decode(options)
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        (here / "reward.py").write_text(REWARD)
        (here / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows(row, options)))
        job = manifest(
            "bench",
            data=(here / "data.jsonl").as_uri(),
            output=(here / "runs").as_uri(),
            model={"uri": options.model},
            accelerator={"type": options.accelerator.name},
            checkpoint={"everySteps": 10**6},
            export={"format": "none"},
            **row.spec(row, options, here),
        )
        (here / "job.yaml").write_text(json.dumps(job))
        _run([sys.executable, "-m", "pttrainer", "run", str(here / "job.yaml")])
        lines = (here / "runs" / "bench" / "metrics.jsonl").read_text().splitlines()
    return figures([json.loads(line) for line in lines])


def figures(lines: list[dict[str, float]]) -> Figures:
    """Return the medians of a run's steps after the first ones, and the most memory."""
    counted = [line for line in lines if "step_seconds" in line][WARM_UP:]

    def median(name: str) -> float | None:
        values = [line[name] for line in counted if line.get(name) is not None]
        return statistics.median(values) if values else None

    memory = [line["hbm_in_use"] for line in lines if line.get("hbm_in_use") is not None]
    seconds = median("step_seconds")
    if seconds is None:
        raise RuntimeError(f"no step after the first {WARM_UP} in metrics.jsonl")
    return Figures(seconds, median("tokens_per_second"), max(memory, default=None), median("mfu"))


def _decode(options: Options) -> Figures:
    """Run `decode.py` in a process of its own, as JAX is configured before it is imported."""
    script = str(Path(__file__).with_name("decode.py"))
    output = _run([sys.executable, script, options.accelerator.name, options.model, str(options.new_tokens)])
    return Figures(**json.loads(output.splitlines()[-1]))


def theirs(row: Row, options: Options) -> Figures:
    """Run the peer's side once."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data.jsonl"
        data.write_text("".join(json.dumps(each) + "\n" for each in rows(row, options)))
        numbers = [options.steps, options.batch, options.length, options.new_tokens, GROUP, PROMPTS]
        model = options.model.removeprefix("file://")
        script = str(SCRIPTS / "torch_peer.py")
        output = _run([options.torch, script, row.name, model, str(data), *map(str, numbers)])
    return Figures(**json.loads(output.splitlines()[-1]))


def rows(row: Row, options: Options) -> list[dict[str, str]]:
    """Return rows that fill every sequence, the same for both sides."""
    chance = random.Random(0)
    words = ["river", "stone", "light", "garden", "number", "answer", "window", "morning"]
    if row.name == "grpo":
        return [{"prompt": " ".join(chance.choices(words, k=16)), "answer": ""} for _ in range(PROMPTS * options.steps)]
    count = options.batch * options.steps * 2
    return [{"text": " ".join(chance.choices(words, k=options.length))} for _ in range(count)]


def missing(row: Row, options: Options) -> str:
    """Return why the peer does not run; empty where it does."""
    if not options.torch:
        return "no --torch PYTHON"
    if not options.model.startswith("file://"):
        return "the peers need --model DIRECTORY with a checkpoint"
    program = f"import torch, {', '.join(row.needs)}\nassert torch.cuda.is_available(), 'torch sees no GPU'"
    tried = subprocess.run([options.torch, "-c", program], capture_output=True, text=True)
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else ""


def compare(row: Row, options: Options, report: Report) -> Iterator[str]:
    """Measure a row, and yield what is to be said of it."""
    yield f"\n{row.title} (bar: {row.bar})"
    sides = report.figures.setdefault(row.name, {})
    mine = sides["ours"] = ours(row, options)
    yield f"  ours: {mine.words()}"
    chip = options.accelerator.chip
    if chip is None:
        report.skipped.append(f"{row.name}: MFU, GPU memory and bandwidth: {options.accelerator.name} is no GPU")
    if reason := missing(row, options):
        report.skipped.append(f"{row.name} beside {row.peer}: {reason}")
        return
    peer = sides[row.peer] = theirs(row, options)
    yield f"  {row.peer}: {peer.words()}"
    yield f"  ratio: {peer.seconds / mine.seconds:.2f} x as fast" + (
        f", {mine.memory_gib / peer.memory_gib:.2f} x the memory" if mine.memory_gib and peer.memory_gib else ""
    )


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stdout + done.stderr).splitlines()[-30:]
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n" + "\n".join(words))
    return done.stdout


def detected() -> str | None:
    """Return our type of this machine's GPU, by nvidia-smi."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return None
    return next((type for part, type in NAMES.items() if part in done.stdout), None)


def options_of(parser: argparse.ArgumentParser) -> tuple[Options, list[Row], str]:
    """Return the command line: options, rows, and where the figures go."""
    parser.add_argument(
        "--model", default="random://qwen3-1.7b", help="directory with a checkpoint, or random://PRESET"
    )
    parser.add_argument("--torch", default="", metavar="PYTHON", help="of an environment with the peers")
    parser.add_argument("--accelerator", default=detected(), help="our type of it; default: by nvidia-smi")
    parser.add_argument("--steps", type=int, default=12, help=f"of each process; the first {WARM_UP} do not count")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--only", default=",".join(row.name for row in ROWS), help="rows, by commas")
    parser.add_argument("--out", default="", metavar="FILE", help="figures and what was skipped, as JSON")
    given = parser.parse_args()
    if given.accelerator is None:
        parser.error("--accelerator: no GPU that nvidia-smi knows; accepted: a type of one machine, or cpu-1 to try it")
    if given.steps <= WARM_UP:
        parser.error(f"--steps: {given.steps}; accepted: {WARM_UP + 1} or more")
    chosen = given.only.split(",")
    if unknown := set(chosen) - {row.name for row in ROWS}:
        parser.error(f"--only: {', '.join(sorted(unknown))}; accepted: {', '.join(row.name for row in ROWS)}")
    model = given.model if "://" in given.model else Path(given.model).resolve().as_uri()
    numbers = (given.steps, given.batch, given.length, given.new_tokens)
    options = Options(resolve(given.accelerator), model, given.torch, *numbers)
    return options, [row for row in ROWS if row.name in chosen], given.out


def main() -> int:
    """Measure every row; return 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options, chosen, out = options_of(parser)
    report, failed = Report(), 0
    print(f"{options.model} on {options.accelerator.describe()}")
    for row in chosen:
        try:
            for line in compare(row, options, report):
                print(line, flush=True)
        except RuntimeError as error:
            failed = 1
            print(f"  failed: {error}", flush=True)
            report.skipped.append(f"{row.name}: failed")
    print("\nskipped:" if report.skipped else "\nnothing was skipped")
    for each in report.skipped:
        print(f"  {each}")
    if out:
        Path(out).write_text(json.dumps(report.as_json(), indent=1) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
