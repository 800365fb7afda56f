"""Milliseconds from an interaction with `ptctl ui` to its picture, in Chromium: 1,000 jobs, and a run of 100,000 steps.

The jobs are in an embedded API server, the run with 20 metrics in a directory, which the page reads for the first time
when its curves are opened. A measurement ends when the change is in the document and a frame has been painted.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.jobs import manifest
from playwright.sync_api import Page, expect, sync_playwright

from ptkube.client import Kube
from ptkube.resources import POSTTRAINJOBS
from ptlocal import cluster

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
BOUND_MS = 100
METRICS = 20
_TIMED = """async () => {
  const state = () => String(%(state)s), before = state(), began = performance.now();
  %(act)s;
  while (state() === before) {
    if (performance.now() - began > 20000) throw new Error("no change of " + before);
    await new Promise(requestAnimationFrame);
  }
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - began;
}"""
_ADDRESS = "location.search"
_READING = "document.querySelector('.reading')?.textContent"
_READINGS = "[...document.querySelectorAll('.reading')].filter((each) => each.textContent).length"
_JOBS = "document.querySelectorAll('tbody th').length"
_TITLE = "document.querySelector('h1')?.textContent"


class Interaction(NamedTuple):
    """act: JavaScript of it. state: an expression that changes with it; undo: JavaScript, or empty.

    needs: what must be there before; undone: the name of the undoing, if that is measured, too.
    """

    name: str
    act: str
    state: str
    undo: str = ""
    needs: str = "h1"
    undone: str = ""


def fill(selector: str, value: str, event: str) -> str:
    field = f"Object.assign(document.querySelector('{selector}'), {{value: '{value}'}})"
    return f"{field}.dispatchEvent(new Event('{event}'))"


def click(selector: str) -> str:
    return f'document.querySelector("{selector}").click()'


LIST = (
    Interaction("filter by text", fill("#text", "00", "input"), _ADDRESS, fill("#text", "", "input")),
    Interaction("filter by state", fill("#state", "Pending", "change"), _ADDRESS, fill("#state", "", "change")),
    Interaction("sort by name", click("[data-field=name]"), _ADDRESS),
    Interaction("open a job", click("tbody th a"), _TITLE, "history.back()", "tbody th a"),
    Interaction("leave the list", click("[href='/capacity']"), _JOBS, click(".brand"), "tbody th", "open the list"),
)
_METRIC = click(".names label:last-child input")
RUN = (
    Interaction("zoom in", fill("#to", "HALF", "change"), _READING, fill("#to", "", "change")),
    Interaction("smoothing", fill("#smooth", "0.9", "input"), _READING, fill("#smooth", "0", "input")),
    Interaction("over time", fill("#by", "time", "change"), _READING, fill("#by", "step", "change")),
    Interaction("log axis", click("#log"), _ADDRESS, click("#log")),
    Interaction("one more metric", _METRIC, _READINGS, _METRIC),
)


def write_run(folder: Path, steps: int) -> None:
    folder.mkdir(parents=True)
    draw = random.Random(0)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            values = {f"metric/{i:02d}": 2 + math.exp(-step / steps) + draw.gauss(0, 0.1) for i in range(METRICS - 2)}
            row = {"step": step, "time": 1e9 + step, "loss": 3 - step / steps, "reward": 1 + step / steps, **values}
            file.write(json.dumps(row) + "\n")
    (folder / "spec.yaml").write_text(json.dumps(manifest("long", data="file:///d.jsonl", output="file:///runs")))
    (folder / "progress.json").write_text(json.dumps({"step": steps, "totalSteps": steps}))


@contextmanager
def served(*words: str, env: dict[str, str]) -> Iterator[str]:
    """The link that `ptctl ui` prints."""
    command = [sys.executable, "-m", "ptctl", "ui", "--port", "0", "--no-browser", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    try:
        yield re.findall(r"http://\S+", process.stderr.readline())[0]
    finally:
        process.terminate()
        process.wait(timeout=30)


def timed(page: Page, each: Interaction) -> float:
    return float(page.evaluate(_TIMED % {"state": each.state, "act": each.act}))


def measure(page: Page, interactions: tuple[Interaction, ...], turns: int) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {}
    for each in interactions:
        for _ in range(turns):
            page.wait_for_selector(each.needs)
            figures.setdefault(each.name, []).append(timed(page, each))
            undoing = timed(page, each._replace(act=each.undo)) if each.undo else 0.0
            if each.undone:
                figures.setdefault(each.undone, []).append(undoing)
    return figures


def of_jobs(page: Page, folder: Path, jobs: int, turns: int) -> dict[str, list[float]]:
    info = cluster.up(folder, without=["operator"])
    try:
        kube = Kube.load(str(info.kubeconfig))
        for i in range(jobs):
            kube.create(POSTTRAINJOBS, manifest(f"job-{i:04d}", data="file:///data/train.jsonl", output="file:///runs"))
        with served(env={**os.environ, "KUBECONFIG": str(info.kubeconfig)}) as link:
            page.goto(link)
            page.wait_for_selector("tbody tr")
            return measure(page, LIST, turns)
    finally:
        cluster.reset(folder)


def of_a_run(page: Page, folder: Path, steps: int, turns: int) -> tuple[dict[str, list[float]], float]:
    """The figures, and the milliseconds until all of the run is parsed."""
    write_run(folder / "runs" / "long", steps)
    with served("--runs", str(folder / "runs"), env=dict(os.environ)) as link:
        page.goto(link)
        page.click("tbody th a")
        page.wait_for_selector(".tabs")
        began = time.monotonic()
        first = timed(page, Interaction("", click(".tabs a:nth-child(2)"), _READING))
        expect(page.locator(".reading").first).to_contain_text(f"at step {steps:,}", timeout=60_000)
        whole = 1000 * (time.monotonic() - began)
        page.click("summary")
        interactions = tuple(each._replace(act=each.act.replace("HALF", str(steps // 2))) for each in RUN)
        return {"open the curves, the first time": [first], **measure(page, interactions, turns)}, whole


def report(figures: dict[str, list[float]]) -> None:
    for name, values in figures.items():
        middle = statistics.median(values)
        print(f"  {name}: {min(values):.0f} ms, median {middle:.0f}, at most {max(values):.0f} (bound {BOUND_MS})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=10)
    jobs, steps, turns = vars(parser.parse_args()).values()
    if CHROMIUM is None:
        print("no Chromium is installed: 0 interactions measured; hint: apt-get install chromium")
        return
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        # Its socket's path must be short, wherever temporary files are.
        environment: Any = {**os.environ, "TMPDIR": "/tmp"}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], env=environment)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        listed = of_jobs(page, Path(directory) / "cluster", jobs, turns) if jobs else {}
        drawn, whole = of_a_run(page, Path(directory), steps, turns)
        browser.close()
    print(f"load of the machine: {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")
    print(f"{jobs:,} jobs")
    report(listed)
    print(f"a run of {steps:,} steps and {METRICS} metrics (all of it parsed after {whole:.0f} ms)")
    report(drawn)


if __name__ == "__main__":
    main()
