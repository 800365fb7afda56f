"""`xpk workload create` and `create-pathways` (XPK 1.16)."""

from ptctl.importers.command_lines.flags import ParsedFlags, Tool, put_flags, put_pathways_flags, read_flags
from ptctl.importers.command_lines.shell import Command
from ptctl.importers.draft import Draft
from ptctl.importers.program import put_program

_FLAGS = {
    "--workload": "workload",
    "--tpu-type": "tpu_type",
    "--device-type": "tpu_type",
    "--num-slices": "num_slices",
    "--docker-image": "docker_image",
    "--docker-image-pull-secret": "docker_image_pull_secret",
    "--command": "command",
    "--env": "env",
    "--priority": "priority",
    "--reservation": "reservation",
    "--max-restarts": "max_restarts",
    "--ttl-seconds-after-finished": "ttl_seconds_after_finished",
    "--termination-grace-period-seconds": "termination_grace_period_seconds",
    "--elastic-slices": "elastic_slices",
    "--server-image": "server_image",
    "--proxy-server-image": "proxy_server_image",
}
_SWITCHES = {"--on-demand": "on_demand", "--spot": "spot", "--flex": "flex", "--headless": "headless"}
_OTHER_SWITCHES = frozenset(("--mtc-enabled", "--enable-debug-logs", "--deploy-stacktrace-sidecar", "--dry-run",
                             "--use-vertex-tensorboard", "--skip-validation", "--quiet", "--force"))  # fmt: skip
_ADVICE = {
    "--env-file": "put its lines under env, or import once more with each as --env NAME=VALUE",
    "--dry-run": "`ptctl workload create -f job.yaml --dry-run=server`",
}
_DEBUG = {"TPU_MIN_LOG_LEVEL": "0", "TF_CPP_MIN_LOG_LEVEL": "0"}
VERBS = ("create", "create-pathways")
TOOL = Tool("xpk workload create", _FLAGS, _SWITCHES, _OTHER_SWITCHES, _ADVICE)


def is_submit(command: Command) -> bool:
    """Return True for a command that creates a workload; `xpk` may be a path, or `python3 xpk.py`."""
    return submit_words(command) is not None


def submit_words(command: Command) -> tuple[str, tuple[str, ...]] | None:
    """Return the verb and its words, or None."""
    for at, word in enumerate(command.words[:4]):
        rest = command.words[at + 1 :]
        if word.rpartition("/")[2] in ("xpk", "xpk.py") and rest[:1] == ("workload",) and rest[1:2]:
            return (rest[1], rest[2:]) if rest[1] in VERBS else None
    return None


def draft_of(command: Command) -> Draft:
    """Return the job of a command."""
    words = submit_words(command)
    assert words is not None
    verb, rest = words
    draft, parsed = Draft(f"`xpk workload {verb}`"), read_flags(rest, TOOL)
    if verb == "create-pathways":
        draft.put("spec.pathways.enabled", True, verb)
    _put_debug(parsed)
    put_pathways_flags(draft, parsed)
    put_flags(draft, parsed, TOOL)
    put_program(draft, parsed.known.get("command"))
    return draft


def _put_debug(parsed: ParsedFlags) -> None:
    if ("--enable-debug-logs", "") in parsed.others:
        parsed.others.remove(("--enable-debug-logs", ""))
        parsed.env = {**_DEBUG, **parsed.env}
