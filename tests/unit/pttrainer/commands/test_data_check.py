"""A job's data are shown before they are trained on."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builders.pictures import drawn, encoded

from ptapi.failures import ExitCode
from pttrainer.__main__ import main
from pttrainer.data import data_check
from pttrainer.data.tokenization import jinja_sandbox

GOOD = [{"question": "1+1?", "answer": "2"}, {"question": "What is two plus two?", "answer": "4"}]


def job(tmp_path: Path, *rows: Any, data: dict[str, Any] | None = None, **spec: Any) -> str:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    body = {
        "model": {"uri": "random://tiny"},
        "algorithm": {"sft": {}},
        "data": {"train": {"uri": f"file://{tmp_path}/rows.jsonl"}, **(data or {})},
        "training": {"steps": 1, "batchSize": 2, "sequenceLength": 64},
        "accelerator": {"type": "cpu-1"},
        "output": {"uri": f"file://{tmp_path}/runs"},
        **spec,
    }
    head = {"apiVersion": "posttrain.dev/v1alpha1", "kind": "PostTrainJob", "metadata": {"name": "look"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**head, "spec": body}))
    return str(tmp_path / "job.yaml")


def test_tokens_are_counted_and_what_is_learned_stands_in_brackets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", job(tmp_path, *GOOD)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "format   prompt-answer (prompt: question, answer: answer)" in out
    assert "rows     2, 0 bad" in out
    # bos, user, 4 letters, end, assistant, 1 letter, end; 21 letters in the other question.
    assert "tokens   37, 4 to learn; per row: min 10, median 10, p95 27, max 27" in out
    assert f"file://{tmp_path}/rows.jsonl line 1\n    <|bos|><|user|>1+1?<|end|><|assistant|>[[2<|end|>]]" in out
    assert not (tmp_path / "runs").exists(), "nothing is trained"


def test_labels_are_counted_and_shown_with_their_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "1+1?", "completion": text, "label": text == "2"} for text in ("2", "3", "4")]
    assert main(["data", job(tmp_path, *rows, algorithm={"kto": {}})]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "labels   1 desirable, 2 undesirable" in out
    assert "line 1, desirable\n    <|bos|><|user|>1+1?<|end|><|assistant|>[[2<|end|>]]" in out
    assert "line 2, undesirable\n" in out
    assert main(["data", job(tmp_path, *rows[:2], algorithm={"kto": {}}), "-o", "json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["data"][0]["desirable"] == 1


def test_bad_rows_are_all_listed_and_end_as_a_run_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job(tmp_path, GOOD[0], {"question": "1?"}, "{", GOOD[1])
    assert main(["data", path]) == ExitCode.DATA_ERROR
    printed = capsys.readouterr()
    assert f"bad      file://{tmp_path}/rows.jsonl line 2: no column 'answer'" in printed.out
    assert f"bad      file://{tmp_path}/rows.jsonl line 3: is not valid JSON" in printed.out
    assert "error: 2 bad rows; the first: " in printed.err
    assert main(["data", job(tmp_path, *GOOD, "{", data={"onBadRow": "skip"})]) == ExitCode.OK


def test_a_model_that_takes_no_images_refuses_rows_that_have_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.png").write_bytes(encoded(drawn(3, 2)))
    pictured = {**GOOD[0], "image": "a.png"}
    assert main(["data", job(tmp_path, GOOD[1], pictured, data={"onBadRow": "skip"})]) == ExitCode.OK
    answer = f"file://{tmp_path}/rows.jsonl line 2: has images, and the model takes none; accepted: rows of text"
    assert f"bad      {answer}" in capsys.readouterr().out
    assert main(["data", job(tmp_path, GOOD[1], pictured)]) == ExitCode.DATA_ERROR


def test_cut_and_dropped_rows_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turn = {"messages": [{"role": "user", "content": "?"}]}
    both = [{"messages": [*turn["messages"], {"role": "assistant", "content": text}]} for text in ("yes", "y" * 99)]
    late = {"messages": [{"role": "user", "content": "?" * 99}, {"role": "assistant", "content": "late"}]}
    assert main(["data", job(tmp_path, *both, turn, late), "-o", "json"]) == ExitCode.OK
    (part,) = json.loads(capsys.readouterr().out)["data"]
    assert [part[name] for name in ("rows", "cut", "dropped", "withoutTrainableToken")] == [4, 2, 2, 1]
    assert part["tokens"]["trainable"] == 4 + 60
    assert part["examples"][0]["pieces"][-1] == {"text": "yes<|end|>", "learned": True}


def test_prompts_of_reinforcement_learning_have_no_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = {"question": "?" * 99, "answer": "3"}
    path = job(
        tmp_path, *GOOD, long, algorithm={"grpo": {"groupSize": 2}}, rewards=[{"builtin": "gsm8k"}],
        rollout={"maxNewTokens": 8},
    )  # fmt: skip
    assert main(["data", path, "--examples", "1"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "dropped  1 rows (no room for a completion)" in out
    assert out.endswith("line 1\n    <|bos|><|user|>1+1?<|end|><|assistant|>\n")


@pytest.mark.parametrize(
    ("reward", "code", "words"),
    [
        ("length", ExitCode.OK, "format   prompt-only (prompt: question)"),
        ("gsm8k", ExitCode.DATA_ERROR, "line 1: no gold answer for the reward to compare with"),
    ],
)
def test_prompts_need_no_answer_unless_a_reward_compares_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reward: str, code: ExitCode, words: str
) -> None:
    path = job(
        tmp_path, {"question": "1+1?"}, algorithm={"grpo": {"groupSize": 2}}, rewards=[{"builtin": reward}],
        rollout={"maxNewTokens": 8},
    )  # fmt: skip
    assert main(["data", path]) == code
    printed = capsys.readouterr()
    assert words in printed.out + printed.err


def test_a_part_that_the_job_does_not_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", job(tmp_path, *GOOD), "--part", "eval"]) == ExitCode.CONFIG_ERROR
    assert "error: spec.data.eval: unset" in capsys.readouterr().err


def test_what_would_never_end_is_refused_by_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jinja_sandbox, "LIMIT_S", 0.2)
    endless = "{% for a in range(99999) %}" * 3 + "{% set x = a %}" + "{% endfor %}" * 3
    (tmp_path / "endless.jinja").write_text(endless)
    template = {"uri": "random://tiny", "chatTemplate": f"file://{tmp_path}/endless.jinja"}
    assert main(["data", job(tmp_path, *GOOD, model=template)]) == ExitCode.CONFIG_ERROR
    assert "error: spec.model.chatTemplate: needs more than 0.2 s" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe.jsonl")
    pipe = {"train": {"uri": f"file://{tmp_path}/pipe.jsonl"}}
    assert main(["data", job(tmp_path, data=pipe)]) == ExitCode.DATA_ERROR
    assert f"error: spec.data.train.uri: file://{tmp_path}/pipe.jsonl: is not a regular" in capsys.readouterr().err


def test_a_terminal_gets_colour_on_every_line_and_no_control_characters(tmp_path: Path) -> None:
    from pttrainer.commands.data import text

    pieces = [data_check.Piece("ask\x1b[2J", False), data_check.Piece("one\ntwo", True)]
    report = data_check.Report("train", "file:///a", ["file:///a"], "text", {}, 1, [3], 0, 0, 0, 2, [], [
        data_check.Shown("file:///a line 1", pieces)
    ])  # fmt: skip
    assert text(report, 64, colour=True).endswith("ask\\x1b[2J\x1b[32mone\x1b[0m\n    \x1b[32mtwo\x1b[0m")
    assert text(report, 64, colour=False).endswith("ask\\x1b[2J[[one]]\n    [[two]]")


def test_statistics_are_of_rows_that_exist() -> None:
    assert data_check.statistics([4, 1, 3, 2]) == {"min": 1, "median": 2, "p95": 4, "max": 4, "total": 10}
