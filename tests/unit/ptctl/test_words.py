"""Foreign words, small functions, and the shell."""

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.verbs import verbs

from ptapi.spec.algorithm import ALGORITHMS, GrpoLoss
from ptapi.spec.rollouts.rewards import BuiltinReward
from ptctl.commands.workload.submit.create import create
from ptctl.jobs.columns import COLUMNS
from ptctl.runs.plot import curve, sparkline
from ptctl.ui.command_line import choices, xpk_commands, xpk_flags
from ptctl.ui.command_line.command import Verb
from ptctl.ui.command_line.lazy_group import LazyGroup
from ptctl.ui.duration import age, parse_duration, short
from pttrainer.commands.model.eval_tasks import TASKS

Invoke = Callable[..., Any]


@pytest.mark.parametrize("flag", xpk_flags.CREATE)
def test_a_flag_of_xpk_that_means_nothing_here_is_refused_with_what_to_use(invoke: Invoke, flag: str) -> None:
    result = invoke("workload", "create", flag, "x")
    assert result.code == 2
    assert f"{flag} does not exist here" in result.err
    assert xpk_flags.CREATE[flag] in result.err


def test_all_flags_of_xpk_are_refused_at_once(invoke: Invoke) -> None:
    result = invoke("workload", "create", "--workload", "a", "--zone=us-east5-a", "--project", "p", "--cluster", "c")
    assert result.code == 2
    assert "error: --zone, --project, --cluster do not exist here.\n" in result.err
    for flag in ("--zone", "--project", "--cluster"):
        assert f"  {flag}: {xpk_flags.CREATE[flag]}\n" in result.err


def test_the_words_of_flags_are_those_of_the_models() -> None:
    assert get_args(GrpoLoss) == choices.GRPO_LOSSES
    assert get_args(BuiltinReward) == choices.BUILTIN_REWARDS
    assert tuple(TASKS) == choices.EVAL_TASKS
    assert set(choices.ALGORITHMS) - set(choices.GRPO_LOSSES) == set(ALGORITHMS) - {"grpo"}


def test_no_foreign_flag_is_one_of_ours() -> None:
    ours = {word for param in create.params for word in param.opts}
    assert ours & set(xpk_flags.CREATE) == set()


FOREIGN = {
    **{(*words.split(),): hint for words, hint in xpk_commands.ROOT.items()},
    **{("workload", *words.split()): hint for words, hint in xpk_commands.WORKLOAD.items()},
    **{("cluster", *words.split()): hint for words, hint in xpk_commands.CLUSTER.items()},
}
XPK = {
    *(("storage", verb) for verb in ("attach", "create", "list", "detach", "delete")),
    *(("cluster", verb) for verb in ("create-pathways", "create-ray", "cacheimage")),
    *(("workload", verb) for verb in ("create-pathways",)),
    *(("kind", verb) for verb in ("create", "delete", "list")),
    *(("job", verb) for verb in ("submit", "list", "logs", "cancel", "config", "info")),
    *((word,) for word in ("inspector", "info", "batch", "run", "shell", "storage", "kind", "job")),
}
"""Documented commands of XPK and gcluster that are not ours."""


@pytest.mark.parametrize("words", [*FOREIGN, *sorted(XPK - set(FOREIGN))], ids=" ".join)
def test_a_command_of_another_tool_is_answered_in_one_line(invoke: Invoke, words: tuple[str, ...]) -> None:
    result = invoke(*words, "--some", "x")
    hint = FOREIGN.get(words) or FOREIGN[words[:1]]
    assert (result.code, result.out) == (2, "")
    assert f"does not exist here.\nhint: {hint}\n" in result.err


COMMANDS = {path[1:]: command for path, command in verbs()}
ANSWERS = {
    **FOREIGN,
    **{
        (flag,): hint
        for flags in (
            xpk_flags.CREATE,
            xpk_flags.LIST,
            xpk_flags.DELETE,
            xpk_flags.CLUSTER_CREATE,
            xpk_flags.CLUSTER_ADAPT,
            xpk_flags.CLUSTER_OTHERS,
        )
        for flag, hint in flags.items()
    },
}


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_every_answer_names_commands_and_flags_that_exist(words: tuple[str, ...]) -> None:
    lines = [line.split()[1:] for line in re.findall(r"`(ptctl [^`]*)`", ANSWERS[words])]
    assert lines or words not in FOREIGN
    for line in lines:
        path = max((line[:length] for length in range(3) if (*line[:length],) in COMMANDS), key=len)
        assert not isinstance(COMMANDS[(*path,)], LazyGroup) or line[len(path) :] == ["--help"], line
        options = {"--help", *(word for param in COMMANDS[(*path,)].params for word in param.opts)}
        assert {word for word in line[len(path) :] if word.startswith("-")} <= options, line


DOCUMENTED = [
    line.split()
    for line in (Path(__file__).parent / "xpk_documented.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize("line", DOCUMENTED, ids=" ".join)
def test_every_documented_command_of_xpk_works_or_is_answered(invoke: Invoke, line: list[str]) -> None:
    """Its verb is ours, and each flag, too; what is not is answered with what to type, all at once."""
    verb = tuple(word for word in line if not word.startswith("-"))
    flags = line[len(verb) :]
    if verb not in COMMANDS:
        result = invoke(*line)
        assert (result.code, "does not exist here.\nhint: " in result.err) == (2, True)
        return
    command = COMMANDS[verb]
    ours = {word for param in command.params for word in param.opts}
    refused = [flag for flag in flags if flag not in ours]
    assert isinstance(command, Verb)
    assert set(refused) <= set(command.replacements)
    if refused:
        result = invoke(*verb, *(f"{flag}=x" for flag in refused))
        assert result.code == 2
        assert all(command.replacements[flag] in result.err for flag in refused)


@pytest.mark.parametrize("path", [("workload",), ("cluster",), ("config",), ("version",)])
def test_a_group_of_xpk_that_is_ours_too_is_not_answered_but_run(path: tuple[str, ...]) -> None:
    assert path in COMMANDS
    assert not set(FOREIGN) & set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("list",), "did you mean `ptctl workload list`"),
        (("lst",), "did you mean `ptctl workload list`"),
        (("validat",), "did you mean `ptctl validate`"),
        (("workload", "decribe"), "did you mean `ptctl workload describe`"),
        (("xyzzy",), "accepted: workload, cluster, validate, "),
    ],
)
def test_an_unknown_verb_is_answered_with_one_that_is_like_it(
    invoke: Invoke, words: tuple[str, ...], hint: str
) -> None:
    result = invoke(*words)
    assert (result.code, f"hint: {hint}" in result.err) == (2, True)


@pytest.mark.parametrize("words", [[], ["workload"], ["local"]])
def test_a_group_alone_shows_its_help_and_exits_2(invoke: Invoke, words: list[str]) -> None:
    result = invoke(*words)
    assert result.code == 2
    assert result.err.startswith("Usage: ptctl")
    assert result.out == ""


def test_version_is_a_verb_and_a_flag(invoke: Invoke) -> None:
    verb, flag = invoke("version"), invoke("--version")
    assert (verb.code, flag.code) == (0, 0)
    assert verb.out == flag.out != ""


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), ("90s", 90), ("15m", 900), ("2h30m", 9000), ("1d", 86400), ("0", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5x", "-3", "1h30", "1 h", "inf", "nan", "1e3"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (200, "3m20s"),
        (3000, "50m"),
        (5 * 3600 + 60, "5h1m"),
        (40 * 3600, "40h"),
        (3 * 86400, "3d"),
        (3 * 86400 + 7200, "3d2h"),
        (40 * 86400, "40d"),
    ],
)
def test_short_durations_are_kubectls(seconds: int, text: str) -> None:
    assert short(seconds) == text


def test_ages_of_odd_times() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert age("2026-01-01T00:00:00Z", now + timedelta(seconds=5)) == "5s"
    assert age("2026-01-01T00:00:30Z", now) == "0s"
    assert age("", now) == age("yesterday", now) == ""


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(20, 100))
def test_a_curve_never_leaves_its_frame(values: list[float], width: int) -> None:
    lines = curve(list(range(len(values))), values, "x", width).splitlines()
    assert len(lines) == 12 + 3
    assert all(len(line) <= max(width, 8 + 2 + max(len(line.split(" ┤")[0]) for line in lines)) for line in lines)
    assert len(sparkline(values, 10)) == min(10, len(values))


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline([0, 1, 2, 3], 4) == "▁▃▆█"
    assert sparkline([5, 5], 4) == "▁▁"
    assert sparkline([], 4) == ""
    assert sparkline([0.0, 1e-308], 4) == "▁█"


def test_name_and_phase_are_never_given_up() -> None:
    assert {column.title for column in COLUMNS if column.rank == 0} == {"NAME", "PHASE"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_each_shell(invoke: Invoke, shell: str) -> None:
    result = invoke("completion", shell)
    assert (result.code, "_PTCTL_COMPLETE" in result.out) == (0, True)
    assert invoke("completion", "tcsh").code == 2


def test_completion_completes_verbs_flags_and_survives_no_cluster(tmp_path: Path) -> None:
    def complete(words: str, position: int) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "ptctl"],
            capture_output=True,
            text=True,
            timeout=900,
            cwd=tmp_path,
            env={
                "_PTCTL_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(position),
                "HOME": str(tmp_path),
                "PATH": "/usr/bin:/bin",
            },
        )
        assert (done.returncode, done.stderr) == (0, "")
        return [line.split(",", 1)[1] for line in done.stdout.splitlines() if line]

    assert complete("ptctl wo", 1) == ["workload"]
    assert "logs" in complete("ptctl workload l", 2)
    assert complete("ptctl workload list --filter-by-s", 3) == ["--filter-by-status"]
    assert complete("ptctl workload logs ", 3) == []


def test_render_prints_what_the_operator_makes(invoke: Invoke, job_file: Path) -> None:
    from ptapi.load import load_job
    from ptoperator.render import render
    from ptoperator.settings import Settings

    printed = list(yaml.safe_load_all(invoke("workload", "render", "-f", str(job_file)).out))
    assert printed == render(load_job(job_file.read_text()), Settings())
    named = list(
        yaml.safe_load_all(
            invoke("workload", "render", "-f", str(job_file), "-n", "team", "--trainer-image", "i:1").out
        )
    )
    assert {body["metadata"]["namespace"] for body in named} == {"team"}
    assert "i:1" in str(named)


def test_render_says_why_auto_takes_pathways(invoke: Invoke, job_file: Path) -> None:
    body = yaml.safe_load(job_file.read_text())
    assert "pathways" not in invoke("workload", "render", "-f", str(job_file)).err
    body["spec"]["rollout"] = {"placement": "disaggregated"}
    job_file.write_text(yaml.safe_dump(body))
    outcome = invoke("workload", "render", "-f", str(job_file))
    assert "pathways.enabled: auto is true here: rollout.placement: disaggregated needs one process" in outcome.err
    assert "name: pathways-head" in outcome.out


def test_validate_counts_the_chips(invoke: Invoke, job_file: Path) -> None:
    assert (
        "grpo of gs://my-bucket/models/llama-3.1-8b-instruct on v6e-16 (16 chips)"
        in invoke("validate", "-f", str(job_file)).out
    )


def test_a_bug_is_one_line_and_a_file_with_the_details(
    invoke: Invoke, kube: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.error = ZeroDivisionError("what")
    result = invoke("workload", "list")
    assert result.code == 1
    assert result.err.startswith("error: a bug in ptctl: ZeroDivisionError: what\nhint: ")
    log = Path(result.err.split("attach ")[1].strip())
    assert "Traceback" in log.read_text()
    log.unlink()


def test_output_into_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m ptctl completion zsh | head -c 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert "Traceback" not in done.stderr
    assert done.stderr == ""


def test_without_the_extra_the_missing_package_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['click'] = None; from ptctl.__main__ import run; sys.exit(run([]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert (done.returncode, "pip install 'posttrain[cli]'" in done.stderr) == (1, True)
