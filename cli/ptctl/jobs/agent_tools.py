"""Tools for coding agents, by the Model Context Protocol: each is a command of ptctl, run as a program of its own.

So an agent sees and may do what the caller could type, with the caller's rights, and nothing else; what changes
something is there only where it was switched on. Names and job files are data: they never become flags.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from ptctl.ui.app import Target

TIMEOUT_S = 600.0
"""Longest command: a plan compiles the job's step."""
MOST_TEXT = 60_000
"""Longest answer: an agent's context is small. Of a longer one the end is left out, and the answer says so."""
_INSTRUCTIONS = (
    "Post-training jobs on TPUs. Begin with list_jobs; describe_job and doctor say why a job waits or failed, logs and "
    "metrics what it does. Check a job file with validate_job and plan_job before create_job."
)
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", description="Name of a job.")]
JobFile = Annotated[str, Field(description="A PostTrainJob as YAML.")]
Run = Callable[[Sequence[str], str], str]


def server(run: Run, *, allow_writes: bool) -> MCPServer:
    """Return the server of all tools. run: runs a command of ptctl with an input and returns what it prints."""
    made = MCPServer("posttrain", instructions=_INSTRUCTIONS)
    reads = ToolAnnotations(read_only_hint=True)
    for tool in _reading(run):
        made.tool(annotations=reads, structured_output=False)(tool)
    for tool in _writing(run) if allow_writes else ():
        made.tool(annotations=ToolAnnotations(read_only_hint=False), structured_output=False)(tool)
    return made


def program(target: Target) -> Run:
    """Return what runs `ptctl WORDS` on a target. A command that fails raises ToolError with its message."""
    pairs = (("-n", target.namespace), ("--kubeconfig", target.kubeconfig), ("--context", target.context))
    flags = [word for flag, value in pairs if value for word in (flag, value)]

    def run(words: Sequence[str], text: str) -> str:
        own = [] if words[0] in ("plan", "validate") else flags  # they ask no cluster
        line = [sys.executable, "-m", "ptctl", *_before_names(words, own)]
        try:
            done = subprocess.run(line, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ToolError(f"`ptctl {words[0]}` takes longer than {TIMEOUT_S:g} s") from error
        answer = "\n".join(part.strip() for part in (done.stdout, done.stderr) if part.strip())
        if done.returncode and not (words[0] == "plan" and done.stdout):  # a job that does not fit is an answer
            raise ToolError(answer[:MOST_TEXT] or f"exit code {done.returncode}")
        left_out = f"\n… {len(answer) - MOST_TEXT} more characters are left out"
        return answer if len(answer) <= MOST_TEXT else answer[:MOST_TEXT] + left_out

    return run


def _before_names(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *flags, *words[at:]]


def _reading(run: Run) -> tuple[Callable[..., str], ...]:
    def list_jobs(all_namespaces: bool = False) -> str:
        """List jobs: phase, progress, newest metrics."""
        return run(["workload", "list", *["-A"] * all_namespaces], "")

    def describe_job(name: Name) -> str:
        """Describe a job: spec, conditions, failure and what to do about it."""
        return run(["workload", "describe", "--", name], "")

    def job_events(name: Name) -> str:
        """Show what happened to a job, oldest first."""
        return run(["workload", "events", "--", name], "")

    def job_timeline(name: Name) -> str:
        """Show where a job's time went: waiting, chips, steps, restarts."""
        return run(["workload", "timeline", "--", name], "")

    def job_logs(name: Name, lines: Annotated[int, Field(ge=1, le=2000)] = 100) -> str:
        """Show the newest lines of the trainer's log."""
        return run(["workload", "logs", "--tail", str(lines), "--", name], "")

    def job_metrics(name: Name, steps: Annotated[int, Field(ge=1, le=1000)] = 20) -> str:
        """Show the metrics of the newest steps."""
        return run(["workload", "metrics", "--last", str(steps), "--", name], "")

    def job_samples(name: Name, count: Annotated[int, Field(ge=1, le=64)] = 4) -> str:
        """Show prompts, completions and rewards of the newest step."""
        return run(["workload", "samples", "--last", str(count), "--", name], "")

    def compare_jobs(first: Name, second: Name) -> str:
        """Show what differs between two jobs: spec, lineage, results."""
        return run(["workload", "diff", "--", first, second], "")

    def doctor(name: Annotated[str, Field(pattern=r"^([a-z0-9][-a-z0-9.]*)?$")] = "") -> str:
        """Examine the cluster, or explain why a job waits or failed."""
        return run(["cluster", "doctor", "--", *[name] * bool(name)], "")

    def queue() -> str:
        """Show which jobs wait, and for what."""
        return run(["cluster", "queue"], "")

    def validate_job(job: JobFile) -> str:
        """Check a job file; nothing is sent anywhere."""
        return run(["validate", "-f", "-"], job)

    def plan_job(job: JobFile) -> str:
        """Check whether a job fits its chips, without using any; may take minutes."""
        return run(["plan", "-f", "-"], job)

    return (list_jobs, describe_job, job_events, job_timeline, job_logs, job_metrics, job_samples, compare_jobs,
            doctor, queue, validate_job, plan_job)  # fmt: skip


def _writing(run: Run) -> tuple[Callable[..., str], ...]:
    def create_job(job: JobFile) -> str:
        """Create a job: it takes chips, which cost money."""
        return run(["workload", "create", "-f", "-"], job)

    def suspend_job(name: Name) -> str:
        """Save a job's checkpoint, stop its pods and give its chips back; `resume` continues it."""
        return run(["workload", "suspend", "--", name], "")

    return create_job, suspend_job
