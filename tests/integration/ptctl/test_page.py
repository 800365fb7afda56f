"""`ptctl ui` as people meet it: the real command, in a real browser (Debian's Chromium, headless)."""

import json
import math
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from ptapi.crd.definition import crd
from ptkube.errors import AlreadyExists
from ptkube.resources import CRDS, NAMESPACES, NODES, POSTTRAINJOBS

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed; hint: apt-get install chromium")
VIEWS = {
    "jobs": "/?text=job",
    "overview": "/job?id=job-c",
    "curves": "/job?id=job-a&tab=curves&with=job-b&smooth=0.6",
    "samples": "/job?id=job-a&tab=samples&step=20",
    "spec": "/job?id=job-a&tab=spec",
    "capacity": "/capacity",
    "diff": "/diff?a=job-a&b=job-b",
}
LOOKS = [("light", 1280, VIEWS), ("dark", 390, ["jobs", "overview", "samples"])]
SAMPLE = {"prompt": "1+1?", "rewards": {"gsm8k": 1.0, "format": 0.5}, "advantage": 0.5, "tokens": 4, "ended": True}
TURNS = [
    {"role": "user", "content": "2*3?"},
    {"role": "assistant", "content": "calc"},
    {"role": "tool", "content": "6"},
]
CONDITION = {
    "type": "CapacityReady",
    "status": "False",
    "reason": "WaitingForCapacity",
    "message": "spot: no stock yet",
}
Open = Callable[..., Page]


def write_run(root: Path, name: str, *, steps: int, rate: float, end: dict[str, Any]) -> None:
    folder = root / name
    (folder / "samples").mkdir(parents=True)
    spec = {"algorithm": {"grpo": {}}, "accelerator": {"type": "cpu-1"}, "training": {"learningRate": rate}}
    meta = {"name": name, "labels": {"team": "ann" if name == "job-a" else "ben"}}
    (folder / "spec.yaml").write_text(
        json.dumps({"metadata": meta, "spec": {**spec, "model": {"uri": "random://tiny"}}})
    )
    rows = [
        {"step": i, "time": 1e9 + i, "loss": 1 / i, "reward": i / steps, "kl": math.sin(i)} for i in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    times = {"started": "2026-01-01T00:00:00Z", "updated": "2026-01-01T01:00:00Z"}
    (folder / "progress.json").write_text(json.dumps({"step": steps, "totalSteps": steps, **times}))
    (folder / "termination.json").write_text(json.dumps(end))
    for step in (10, 20, 30):
        samples = [
            {**SAMPLE, "completion": f"<img src=x onerror=alert(1)> {step}", "reward": 1.0},
            {**SAMPLE, "completion": "", "reward": 0.0, "turns": TURNS, "tool_calls": 1, "tool_failures": 0},
        ]
        (folder / "samples" / f"step-{step:08d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page") / "runs"
    write_run(root, "job-a", steps=5000, rate=1e-5, end={"exitCode": 0})
    write_run(root, "job-b", steps=3000, rate=2e-5, end={"exitCode": 0})
    message = "data.train: row 7 has no prompt\nhint: ptctl data check"
    write_run(root, "job-c", steps=30, rate=1e-5, end={"exitCode": 65, "failureClass": "DataError", "message": message})
    return root


def start(*words: str) -> tuple[subprocess.Popen[str], str]:
    """The command, and the link that it prints."""
    command = [sys.executable, "-m", "ptctl", "ui", "--port", "0", "--no-browser", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    link = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line)
    assert link, line + process.stderr.read()
    return process, link[0]


@pytest.fixture(scope="module")
def link(runs: Path) -> Iterator[str]:
    process, link = start("--runs", str(runs))
    yield link
    process.terminate()
    process.wait(timeout=120)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Browser, link: str) -> Iterator[Open]:
    """Open a path with the token's cookie. What the page's console or scripts complain of fails the test."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def open_page(path: str = "/", *, scheme: Any = "light", width: int = 1280, at: str = link) -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        page: Page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(at)
        page.goto(at.split("/?")[0] + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def read_anew(page: Page) -> None:
    """As after five seconds."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def barriers(page: Page) -> list[tuple[str, str]]:
    """What axe-core has against the page: contrast, names, roles, landmarks."""
    return [(each["id"], each["nodes"][0]["html"]) for each in Axe().run(page).response["violations"]]


def chart(page: Page, name: str) -> Any:
    return page.locator(f"figure[aria-label='{name}']")


@pytest.mark.parametrize(("scheme", "width", "names"), LOOKS, ids=["light-1280", "dark-390"])
def test_every_view_can_be_read_by_everybody_and_fits_its_screen(
    visit: Open, link: str, scheme: str, width: int, names: list[str]
) -> None:
    page = visit(scheme=scheme, width=width)
    for name in names:
        page.goto(link.split("/?")[0] + VIEWS[name])
        expect(page.locator("h1")).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert barriers(page) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


def test_filters_are_in_the_address_and_survive_a_reload(visit: Open) -> None:
    page = visit()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_label("Text").fill("ben")
    page.get_by_label("State").select_option("Failed")
    expect(rows).to_have_count(1)
    assert page.url.endswith("/?text=ben&state=Failed")
    page.reload()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("DataError")
    rows.get_by_role("link").click()
    expect(page.locator(".failure")).to_contain_text("Hint: ptctl data check")
    expect(page.locator(".failure")).to_contain_text("not restarted")
    page.go_back()
    expect(page.get_by_label("Text")).to_have_value("ben")
    page.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(3)


def test_chosen_jobs_lead_to_their_curves_and_differences(visit: Open) -> None:
    page = visit()
    for name in ("job-a", "job-b"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("link", name="differences").click()
    expect(page.locator("section", has_text="Spec").locator("tbody tr")).to_contain_text("training.learningRate")
    page.get_by_role("link", name="their curves").click()
    expect(chart(page, "reward").locator(".reading")).to_contain_text("job-b: 0.9992 at step 3,000")


def test_a_curve_is_zoomed_by_mouse_and_keyboard_and_the_link_shows_the_same(visit: Open) -> None:
    page = visit("/job?id=job-a&tab=curves")
    plot = chart(page, "loss").locator(".u-over")
    box = plot.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 50, steps=4)
    page.mouse.up()
    page.wait_for_url("**from=*")
    low, high = (float(page.get_by_label(name).input_value()) for name in ("From", "To"))
    assert 2400 < low < 2600
    assert 3650 < high < 3850
    expect(chart(page, "reward").locator(".reading")).to_contain_text(f"at step {math.floor(high):,}")
    page.reload()
    expect(chart(page, "reward").locator(".reading")).to_contain_text(f"at step {math.floor(high):,}")
    chart(page, "loss").focus()
    page.keyboard.press("0")
    expect(chart(page, "reward").locator(".reading")).to_contain_text("at step 5,000")
    page.keyboard.press("+")
    page.wait_for_url("**from=*")


def test_smoothing_log_axis_time_and_metrics_are_chosen_and_kept(visit: Open) -> None:
    page = visit("/job?id=job-a&tab=curves&smooth=0.9&metric=loss&by=time&log=1")
    reading = chart(page, "loss").locator(".reading")
    expect(reading).to_contain_text("at s 4,999")
    smooth = reading.text_content()
    page.get_by_label("Smoothing").fill("0")
    expect(reading).not_to_have_text(smooth or "")
    page.get_by_text("Metrics (3)").click()
    page.get_by_role("checkbox", name="kl").check()
    expect(page.locator("figure")).to_have_count(2)
    page.get_by_label("Log axis").uncheck()
    assert page.url.endswith("?id=job-a&tab=curves&by=time&metric=loss&metric=kl")


def test_curves_of_a_run_go_on_while_one_looks(visit: Open, runs: Path) -> None:
    page = visit("/job?id=job-b&tab=curves&metric=loss")
    expect(chart(page, "loss").locator(".reading")).to_contain_text("at step 3,000")
    with (runs / "job-b" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3001, "time": 2e9, "loss": 7}\n')
    read_anew(page)
    expect(chart(page, "loss").locator(".reading")).to_contain_text("at step 3,001")


def test_samples_are_browsed_by_step_and_text_and_are_never_markup(visit: Open) -> None:
    page = visit("/job?id=job-a&tab=samples")
    expect(page.get_by_label("Step")).to_have_value("30")
    page.get_by_role("button", name="Previous").click()
    expect(page.locator("article").first).to_contain_text("<img src=x onerror=alert(1)> 20")
    assert page.url.endswith("step=20")
    assert page.locator("article img").count() == 0
    page.get_by_label("Text").fill("calc")
    expect(page.locator("article")).to_have_count(1)
    expect(page.locator(".turn.model")).to_have_count(1)
    expect(page.locator("article")).to_contain_text("Tool calls1, 0 failed")
    page.reload()
    expect(page.locator("article")).to_have_count(1)


def test_the_keyboard_alone_reaches_a_job(visit: Open) -> None:
    page = visit()
    expect(page.locator("tbody tr")).to_have_count(3)
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.pathname") == "/job":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("navigation", name="Parts of the job")).to_be_visible()


def test_who_has_an_old_link_pastes_the_token_and_lands_where_it_led(browser: Browser, link: str) -> None:
    page = browser.new_context().new_page()
    base, token = link.split("/?token=")
    page.goto(f"{base}/job?id=job-a&tab=spec")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Open").click()
    expect(page.locator("pre")).to_contain_text("learningRate")
    assert page.url == f"{base}/job?id=job-a&tab=spec"
    page.context.close()


@pytest.fixture
def cluster_link(api: Any) -> Iterator[str]:
    """The page of an API server with a job that waits and a node with chips."""
    kube = api.kube
    for r, body in ((CRDS, crd()), (NAMESPACES, {"metadata": {"name": "page"}})):
        try:
            kube.create(r, body)
        except AlreadyExists:
            pass  # another test's
    spec = {
        "model": {"uri": "random://tiny"}, "algorithm": {"sft": {}}, "data": {"train": {"uri": "gs://lab/t.jsonl"}},
        "accelerator": {"type": "v6e-4"}, "output": {"uri": "gs://lab/runs"},
    }  # fmt: skip
    body = kube.create(POSTTRAINJOBS, {"metadata": {"name": "waits", "namespace": "page"}, "spec": spec})
    attempt = {"option": "spot", "started": body["metadata"]["creationTimestamp"], "zone": "us-east5-b"}
    condition = {**CONDITION, "lastTransitionTime": attempt["started"]}
    cost = {"chipHours": "12.25", "amount": "33.10 USD"}
    status = {"phase": "Provisioning", "cost": cost, "conditions": [condition], "capacity": {"attempts": [attempt]}}
    kube.replace_status(POSTTRAINJOBS, {**body, "status": status})
    kube.create(NODES, {"metadata": {"name": "tpu-0"}, "status": {"capacity": {"google.com/tpu": "4"}}})
    process, link = start("-n", "page", "--kubeconfig", str(api.kubeconfig))
    yield link
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert (process.wait(timeout=120), process.stderr.read()) == (130, "Interrupted.\n")
    kube.delete(POSTTRAINJOBS, "waits", "page")
    kube.delete(NODES, "tpu-0")


def test_jobs_of_a_cluster_have_conditions_attempts_and_a_place_in_the_queue(cluster_link: str, visit: Open) -> None:
    page = visit("/", at=cluster_link)
    expect(page.locator(".count")).to_have_text("1 of 1 jobs · 12.3 chip-hours · 33.1 USD")
    page.get_by_role("link", name="waits").click()
    expect(page.get_by_role("region", name="Conditions")).to_contain_text("spot: no stock yet")
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("capacity: spot: in progress")
    page.get_by_role("link", name="Capacity").click()
    expect(page.get_by_role("region", name="Jobs that wait")).to_contain_text("spot: no stock yet")
    expect(page.get_by_role("region", name="Chips by node")).to_contain_text("0 of 4")
    assert barriers(page) == []
    page.get_by_role("region", name="Jobs that wait").get_by_role("link").click()
    expect(page.locator("h1")).to_contain_text("waits")
