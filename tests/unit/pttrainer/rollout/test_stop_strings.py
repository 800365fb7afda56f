"""Stop strings: wherever they fall between tokens, a completion ends with the token that completes the first."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pttrainer.data.tokenization.tokenizer import byte_tokenizer
from pttrainer.rollout.engine import Sampling
from pttrainer.rollout.native.completion_buffer import CompletionBuffer
from pttrainer.rollout.sampler import completion_text

TOKENIZER = byte_tokenizer()
END = 257
STOPS = ("ab", "b a", "é", "日本", "a", "\n\n", "🙂")
texts = st.text(alphabet="ab é日本🙂\n", max_size=24)


def recorded(rows: list[list[int]], stop: tuple[str, ...], cuts: list[int]) -> CompletionBuffer:
    """All rows side by side, looked at after so many tokens each time; rows that stop say no more."""
    ledger = CompletionBuffer(TOKENIZER, Sampling(64, 64, stop=stop), len(rows))
    at, open_rows, looks = 0, set(range(len(rows))), iter(cuts)
    while any(len(rows[row]) > at for row in open_rows):
        lines = next(looks, 3)
        tokens, owners = np.zeros((lines, len(rows)), np.int32), np.full((lines, len(rows)), -1)
        for row in open_rows:
            for line, token in enumerate(rows[row][at : at + lines]):
                tokens[line, row], owners[line, row] = token, row
        logps = np.where(owners >= 0, -1.0 - at - np.arange(lines)[:, None], 0.0).astype(np.float32)
        open_rows -= set(ledger.record(tokens, logps, owners))
        at += lines
    return ledger


@given(
    st.lists(texts, min_size=1, max_size=4),
    st.lists(st.sampled_from(STOPS), max_size=3),
    st.lists(st.integers(1, 20), max_size=30),
)
def test_a_completion_ends_at_the_first_stop_string_however_often_it_was_looked_at(
    answers: list[str], stop: list[str], cuts: list[int]
) -> None:
    rows = [[*TOKENIZER.encode(text), END] for text in answers]
    done = recorded(rows, tuple(stop), cuts).completions()
    for row, tokens in enumerate(rows):
        prefixes = (tokens[:n] for n in range(1, len(tokens) + 1))
        wanted = next((part for part in prefixes if any(s in TOKENIZER.decode(part) for s in stop)), tokens)
        assert done.tokens(row) == wanted
        assert done.ended_N[row]
        np.testing.assert_array_equal(done.logps_NT[row, : len(wanted)], -1.0 - np.arange(len(wanted)))
        text = completion_text(TOKENIZER, wanted, stop)
        assert text == answers[row] if wanted == tokens else text.endswith(tuple(stop))
        assert sum(text.count(s) for s in stop) <= len(stop)


def test_a_stop_string_in_the_first_position_and_one_in_the_last_both_end() -> None:
    rows = [TOKENIZER.encode(text) for text in ("é is first", "last is é", "never")]
    done = recorded(rows, ("é",), [16]).completions()
    assert [done.tokens(row) for row in range(3)] == [TOKENIZER.encode("é"), *rows[1:]]
    assert done.ended_N.tolist() == [True, True, False]
