"""Read a `config.json` without overlooking any key.

Every key that is read is recorded. `refuse_rest` then refuses each unread key that is not known to leave the forward
pass unchanged: silently computing something else is the worst of all outcomes. Errors name the key, its value and what
is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ptapi.text.messages import shown
from pttrainer.errors import ConfigError

Raw = Mapping[str, Any]
"""The content of a `config.json`."""
WITHOUT_EFFECT = frozenset({
    # bookkeeping
    "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "model_type", "use_cache",
    "initializer_range", "transformers.js_config", "name_or_path", "tokenizer_class", "prefix", "unsloth_fixed",
    "unsloth_version", "cache_implementation", "initial_context_length", "chunk_size_feed_forward", "finetuning_task",
    "id2label", "label2id", "problem_type", "task_specific_params", "is_encoder_decoder", "is_decoder",
    "add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder", "decoder_start_token_id",
    "sep_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "begin_suppress_tokens",
    "suppress_tokens", "return_dict", "return_dict_in_generate", "output_attentions", "output_hidden_states",
    "output_scores", "torchscript", "tf_legacy_loss", "use_bfloat16", "pruned_heads", "pretraining_tp",
    # defaults of generation, which the job's rollout settings replace
    "do_sample", "early_stopping", "temperature", "top_k", "top_p", "typical_p", "min_length", "max_length",
    "num_beams", "num_beam_groups", "num_return_sequences", "diversity_penalty", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "repetition_penalty", "remove_invalid_values",
    "exponential_decay_length_penalty",
})  # fmt: skip
"""Keys that do not change what the model computes."""

REQUIRED: Any = object()
LONGEST_SHOWN = 200
LARGEST = 1e38
"""What float32 holds."""


class Fields:
    """The keys of one JSON object; `path` names it in messages."""

    def __init__(self, raw: Raw, path: str = "config.json") -> None:
        self._raw, self._path = raw, path
        self._read_keys: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._raw.get(key) is not None

    def value(self, key: str, default: Any = REQUIRED) -> Any:
        """Return the value as it is; null counts as absent."""
        self._read_keys.add(key)
        content = self._raw.get(key)
        if content is not None:
            return content
        if default is REQUIRED:
            raise ConfigError(f"{self._path} {key}: missing; hint: is this the config.json of a language model?")
        return default

    def integer(self, key: str, default: Any = REQUIRED, most: int = 2**31 - 1) -> int:
        """Return a positive whole number."""
        value = self.value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            self.refuse(key, f"a whole number from 1 to {most}")
        return value

    def count(self, key: str, default: int) -> int:
        """Return a whole number, possibly 0."""
        value = self.value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.refuse(key, "a whole number")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """Return a number."""
        value = self.value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
            self.refuse(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def nullable(self, key: str, read: Callable[[str], Any], default: Any) -> Any:
        """Return `read` of a value, None for null, the default if the key is absent."""
        self._read_keys.add(key)
        if key in self._raw and self._raw[key] is None:
            return None
        return read(key) if key in self._raw else default

    def choice(self, key: str, accepted: Sequence[Any], default: Any) -> Any:
        """Return one of these values."""
        value = self.value(key, default)
        if value not in accepted:
            self.refuse(key, ", ".join(str(each) for each in accepted))
        return value

    def ids(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return token ids, from one or a list: a forgotten end token makes samples that never end."""
        value = self.value(key, list(default))
        listed = value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in listed):
            self.refuse(key, "a token id, or a list of them")
        return tuple(listed)

    def inside(self, key: str) -> Fields:
        """Return the object under a key; an empty one if it is absent."""
        value = self.value(key, {})
        if not isinstance(value, dict):
            self.refuse(key, "an object")
        return Fields(value, f"{self._path} {key}")

    def default(self, key: str, value: Any, unless: str) -> None:
        """Set a key that has no value, unless another has one."""
        if key not in self and unless not in self:
            self._raw = {**self._raw, key: value}

    def prefer(self, keys: Sequence[str], other: Fields) -> None:
        """Take these keys from another object if it has them."""
        self._raw = {**self._raw, **{key: other.value(key) for key in keys if key in other}}

    def keys(self) -> list[str]:
        """Return all keys with a value."""
        return [key for key in self._raw if self._raw[key] is not None]

    def refuse(self, key: str, accepted: str) -> NoReturn:
        """Raise for the value under this key."""
        raise ConfigError(
            f"{self._path} {key}: {repr(self._raw.get(key))[:LONGEST_SHOWN]}: not supported; accepted: {accepted}"
        )

    def refuse_rest(self) -> None:
        """Raise for every unread key that may have an effect. Off (null, false, 0, empty) has none."""
        rest = [
            key
            for key, value in self._raw.items()
            if key not in self._read_keys and key not in WITHOUT_EFFECT and not key.startswith("_") and value
        ]
        if rest:
            listed = "; ".join(f"{self._path} {shown(key)}: {self._raw[key]!r}" for key in rest)
            raise ConfigError(f"{listed}: not supported; accepted: unset")
