"""`python -m pttrainer run FILE`: takes FAKE_STEPS steps of FAKE_STEP_S seconds, then ends with FAKE_EXIT.

It keeps the contract that the operator relies on: the run directory with its owner and progress, the termination
message, resume from the last step, SIGTERM saves and exits with 75. FAKE_CRASH_AT=n: kill itself at step n, once.
`preflight FILE` waits until there is a file FAKE_PREFLIGHT_UNTIL, and says that the job fits.
`stage …` is the real trainer's.
With samplers of its own (`sampling`) it adds their answers to the run directory's file `samples` at each step.
FAKE_WAIT: go on until the run directory has a file `finish`. FAKE_HOLD_AT=n: stay at step n until then.
FAKE_SAVE_UNTIL: save no sooner than there is a file of this name in the run directory. FAKE_SAVE_S: that long.
"""

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from pttrainer import sampling


def main() -> None:
    if sys.argv[1] == "preflight":
        _preflight()
    if sys.argv[1] == "sampler":
        sampling.serve()
    if sys.argv[1] == "stage":
        del os.environ["PYTHONPATH"]
        os.execv(sys.executable, [sys.executable, "-m", "pttrainer", *sys.argv[1:]])
    job = yaml.safe_load(Path(sys.argv[2]).read_text())
    run = Path(job["spec"]["output"]["uri"].removeprefix("file://")) / job["metadata"]["name"]
    run.mkdir(parents=True, exist_ok=True)
    uid = job["metadata"]["uid"]
    # whoever finds this file finds two attempts at once
    lock = run / f"running-{os.environ['POSTTRAIN_SLICE_INDEX']}"
    if lock.exists() and Path(f"/proc/{lock.read_text()}").exists():
        (run / "doubled").write_text("two trainers at once")
    lock.write_text(str(os.getpid()))
    step = int((run / "saved").read_text()) if (run / "saved").exists() else 0
    total = int(os.environ.get("FAKE_STEPS", "3"))
    signal.signal(signal.SIGTERM, lambda *_: _save_and_leave(run, uid, step, total))
    while step < total or ("FAKE_WAIT" in os.environ and not (run / "finish").exists()):
        _progress(run, uid, step, total, "training")
        with (run / "samples").open("a") as samples:
            samples.write(sampling.sample())
        time.sleep(float(os.environ.get("FAKE_STEP_S", "0.3")))
        if os.environ.get("FAKE_HOLD_AT") == str(step) and not (run / "finish").exists():
            continue
        step += 1
        if os.environ.get("FAKE_CRASH_AT") == str(step) and not (run / "crashed").exists():
            (run / "crashed").touch()
            (run / "saved").write_text(str(step))
            os.kill(os.getpid(), signal.SIGKILL)
    code = int(os.environ.get("FAKE_EXIT", "0"))
    _progress(run, uid, step, total, "training" if code else "done")
    _end(code, os.environ.get("FAKE_CLASS", ""), os.environ.get("FAKE_MESSAGE", ""), step)


def _preflight() -> None:
    _until(os.environ.get("FAKE_PREFLIGHT_UNTIL", "/"))
    brief = {"outcome": "Fits", "line": "peak 1.5 of 2.0 GiB per chip", "peakGib": 1.5, "later": "than this operator"}
    Path(os.environ["POSTTRAIN_TERMINATION_LOG"]).write_text(json.dumps({"exitCode": 0, "preflight": brief}))
    os._exit(0)


def _until(file: str | Path) -> None:
    while not Path(file).exists():
        time.sleep(0.05)


def _save_and_leave(run: Path, uid: str, step: int, total: int) -> None:
    time.sleep(float(os.environ.get("FAKE_SAVE_S", "0")))
    _until(run / os.environ.get("FAKE_SAVE_UNTIL", "."))
    (run / "saved").write_text(str(step))
    _progress(run, uid, step, total, "saving", checkpoint=step)
    _end(75, "Preempted", f"SIGTERM: saved step {step}", step)


def _progress(run: Path, uid: str, step: int, total: int, stage: str, checkpoint: int | None = None) -> None:
    now = datetime.now(UTC).isoformat()
    document: dict[str, Any] = {
        "jobUid": uid, "stage": stage, "step": step, "totalSteps": total, "metrics": {"loss": 2.0 - step / 10},
        "etaSeconds": float(total - step), "updated": now,
    }  # fmt: skip
    if checkpoint is not None:
        document["checkpoint"] = {"step": checkpoint, "uri": f"file://{run}/checkpoints/{checkpoint}", "time": now}
    part = run / f"progress.{os.getpid()}"
    part.write_text(json.dumps(document))
    part.rename(run / "progress.json")


def _end(code: int, kind: str, message: str, step: int) -> None:
    if code:
        text = json.dumps({"exitCode": code, "failureClass": kind, "message": message, "step": step})
        Path(os.environ["POSTTRAIN_TERMINATION_LOG"]).write_text(text)
    os._exit(code)


main()
