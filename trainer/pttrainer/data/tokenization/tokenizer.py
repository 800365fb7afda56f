"""Text to tokens and back: the model's own `tokenizer.json`, or bytes for random models.

Both are `tokenizers` objects, so a model trained from `random://` exports a tokenizer that Hugging Face's libraries
read. No special tokens are added implicitly (`add_special_tokens=False`): a chat template already wrote the
beginning-of-text token, and a second one would be a different prompt.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Engine
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from pttrainer.errors import ConfigError
from pttrainer.runtime.io import json_text
from pttrainer.runtime.io.place import Place

BYTE_SPECIALS = ("<|bos|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|reserved|>")
"""Ids 256 to 263 of the byte-level tokenizer."""

BYTE_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""The chat template of byte-level models: a role's marker, the text, the end-of-turn token."""


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer engine and the special tokens that training needs.

    eos_ids: every token that ends a completion (a model may have several). pad_id fills rows; it never identifies
    padding. template: Jinja source of the chat template, or None for a base model.
    """

    engine: Engine = field(repr=False)
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int
    template: str | None
    files: dict[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Return the number of ids, special tokens included."""
        return int(self.engine.get_vocab_size(with_added_tokens=True))

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """Return the texts of the special tokens, the longest first."""
        added = self.engine.get_added_tokens_decoder().values()
        return tuple(sorted((token.content for token in added if token.special), key=len, reverse=True))

    def encode(self, text: str) -> list[int]:
        """Return token ids; special tokens written in the text are recognised, none are added."""
        return list(self.engine.encode(_sound(text), add_special_tokens=False).ids)

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Return token ids and the character at which each begins."""
        encoding = self.engine.encode(_sound(text), add_special_tokens=False)
        return list(encoding.ids), [start for start, _ in encoding.offsets]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of token ids."""
        return str(self.engine.decode(list(ids), skip_special_tokens=skip_special))

    def token(self, token_id: int | None) -> str:
        """Return the special token's text for templates; empty for None."""
        return "" if token_id is None else str(self.engine.id_to_token(token_id) or "")


def _sound(text: str) -> str:
    r"""Replace lone surrogates, which JSON can express (`\ud800`) and no encoding can, by question marks."""
    return text.encode(errors="replace").decode()


def image_template(mark: str) -> str:
    """Return the template of byte-level models with images: in a list of parts, `mark` stands for an image."""
    text = "{{ message['content'] }}"
    part = f"{{{{ '{mark}' if part['type'] == 'image' else part['text'] }}}}"
    parts = f"{{% for part in message['content'] %}}{part}{{% endfor %}}"
    test = "message['content'] is string or message['content'] is none"
    return BYTE_TEMPLATE.replace(text, f"{{% if {test} %}}{text}{{% else %}}{parts}{{% endif %}}")


def byte_tokenizer(
    more: Sequence[str] = (), template: str = BYTE_TEMPLATE, files: Mapping[str, bytes] = MappingProxyType({})
) -> Tokenizer:
    """Return a tokenizer with bytes as ids 0 to 255 and special tokens above, for random models.

    more: further special tokens. files: to write beside an exported model, too.
    """
    engine = Engine(BPE(vocab={char: byte for byte, char in _byte_characters().items()}, merges=[]))
    engine.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    engine.decoder = ByteLevelDecoder()
    engine.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (*BYTE_SPECIALS, *more)])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "chat_template": template,
    }
    own = {
        "tokenizer.json": engine.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings, indent=2).encode(),
    }
    return Tokenizer(engine, bos_id=256, eos_ids=(257,), pad_id=258, template=template, files={**own, **files})


TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files copied beside an exported model. llama.cpp's converter reads SentencePiece's `tokenizer.model`."""


def load(directory: Place, model_eos_ids: tuple[int, ...] = (), more: tuple[str, ...] = ()) -> Tokenizer:
    """Return the tokenizer in a model's directory.

    End tokens of all its files count: a forgotten one makes samples that never end. more: names of files to copy beside
    an exported model, too.
    """
    files = {name: content for name in (*TOKENIZER_FILES, *more) if (content := directory.read(name)) is not None}
    if "tokenizer.json" not in files:
        raise ConfigError(
            f"spec.model: {directory.uri}: no tokenizer.json; hint: name another location in spec.model.tokenizer"
        )
    engine = _engine(files["tokenizer.json"], directory.uri)
    settings = _json(files, "tokenizer_config.json", directory.uri)
    generation = _json(files, "generation_config.json", directory.uri)
    eos = [_special(engine, settings.get("eos_token")), *_end_ids(generation, directory.uri), *model_eos_ids]
    eos_ids = tuple(dict.fromkeys(token for token in eos if token is not None))
    if not eos_ids:
        raise ConfigError(
            f"spec.model: {directory.uri}: no end token in tokenizer_config.json (eos_token) or config.json"
        )
    pad_id = _special(engine, settings.get("pad_token"))
    return Tokenizer(
        engine,
        bos_id=_special(engine, settings.get("bos_token")),
        eos_ids=eos_ids,
        pad_id=eos_ids[0] if pad_id is None else pad_id,
        template=_template(files, settings, directory.uri),
        files=files,
    )


def _engine(content: bytes, uri: str) -> Engine:
    try:
        return Engine.from_buffer(content)
    except Exception as error:  # the engine raises nothing more precise
        raise ConfigError(f"spec.model: {uri}/tokenizer.json: cannot be read: {error}") from error


def _json(files: dict[str, bytes], name: str, uri: str) -> dict[str, Any]:
    try:
        value = json_text.loads(files.get(name, b"{}"))
    except ValueError as error:
        raise ConfigError(f"spec.model: {uri}/{name}: {error}; accepted: a JSON object") from error
    if not isinstance(value, dict):
        raise ConfigError(f"spec.model: {uri}/{name}: is a {type(value).__name__}; accepted: a JSON object")
    return value


def _template(files: dict[str, bytes], settings: dict[str, Any], uri: str) -> str | None:
    """Return the chat template. Newer checkpoints keep it in a file of its own; a list holds several, by name."""
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode(errors="replace")
    template = (_json(files, "chat_template.json", uri) or settings).get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str | None):
        raise ConfigError(f"spec.model: {uri}: chat_template: is {type(template).__name__}; accepted: text, or a list")
    return template


def _special(engine: Engine, token: Any) -> int | None:
    """Return the id of a special token, written as a string or as {"content": …}."""
    text = token.get("content") if isinstance(token, dict) else token
    return None if text is None else engine.token_to_id(str(text))


def _end_ids(generation: dict[str, Any], uri: str) -> list[int]:
    value = generation.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(token) is not int for token in ids):
        raise ConfigError(
            f"spec.model: {uri}/generation_config.json eos_token_id: {value!r}; accepted: a token id, or a list of them"
        )
    return ids


def _byte_characters() -> dict[int, str]:
    """Return the printable character that stands for each byte in a byte-level vocabulary (as in GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
