# ruff: noqa: E501  (templates have lines of their own)
"""Chat templates in the forms of all families, written for the tests, and a tokenizer that knows their special tokens."""

from dataclasses import dataclass, replace
from typing import Any

from tokenizers import AddedToken

from pttrainer.data.tokenization import image_tokens
from pttrainer.data.tokenization.chat_template import Chat
from pttrainer.data.tokenization.crops import CropFormat
from pttrainer.data.tokenization.pixels import PatchFormat
from pttrainer.data.tokenization.tiles import TileFormat
from pttrainer.data.tokenization.tokenizer import Tokenizer, byte_tokenizer
from pttrainer.models.config.vision import MOST_TOKENS
from pttrainer.models.loading import llama4_inputs


@dataclass(frozen=True)
class Family:
    """template, its special tokens, and the tokens that end a turn (the first is the tokenizer's eos_token)."""

    template: str
    specials: tuple[str, ...]
    bos: str | None
    ends: tuple[str, ...]


LLAMA = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You can call these functions:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if message.role in ["user", "assistant"] and message.tool_calls is not defined %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {{- tool_call.function|tojson }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("no such role") }}
    {%- endif %}
{%- endfor %}
"""
_CHATML_HEAD = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
"""
_CHATML_CALLS = """        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and message.content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
"""
_CHATML_TOOL = """    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
"""
QWEN_2 = (
    _CHATML_HEAD
    + """{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content %}{{- message.content }}{%- endif %}
"""
    + _CHATML_CALLS
    + _CHATML_TOOL
    + """{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
)
QWEN_3 = (
    _CHATML_HEAD
    + """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
"""
    + _CHATML_CALLS
    + _CHATML_TOOL
    + """{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
)
GEMMA_2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}"""
GEMMA_3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- endif -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""
QWEN_3_VL = """{%- macro shown(content) -%}
    {%- if content is string -%}{{ content }}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part -%}{{ part.text }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + shown(message.content) + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' }}
{%- endif -%}
"""
LLAMA_4 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|header_start|>' + message.role + '<|header_end|>\\n\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}{{- '<|image|>' }}{%- else %}{{- part.text }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header_start|>assistant<|header_end|>\\n\\n' }}
{%- endif %}
"""
GPT_OSS = """{%- macro render_parameter(spec) -%}
    {%- if spec.type == "array" -%}{{- (spec['items'].type or "any") + "[]" }}
    {%- elif spec.enum -%}{{- '"' + spec.enum|join('" | "') + '"' -}}
    {%- else -%}{{- spec.type }}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>You are a model.\\nReasoning: " + reasoning_effort|default("medium") + "\\nCurrent date: " + strftime_now("%Y-%m-%d") + "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer_message = "" %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if developer_message or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if developer_message %}{{- "# Instructions\\n\\n" + developer_message + "\\n\\n" }}{%- endif %}
    {%- if tools -%}
        {{- "# Tools\\n\\nnamespace functions {\\n\\n" }}
        {%- for tool in tools %}
            {%- set tool = tool.function %}
            {{- "// " + tool.description + "\\ntype " + tool.name + " = (_: {\\n" }}
            {%- for name, spec in tool.parameters.properties.items() %}
                {{- name + ": " + render_parameter(spec) }}
                {%- if not loop.last %}{{- ",\\n" }}{%- else %}{{- "\\n" }}{%- endif %}
            {%- endfor %}
            {{- "}) => any;\\n\\n" }}
        {%- endfor %}
        {{- "} // namespace functions" }}
    {%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "tool_calls" in message %}
            {%- set call = message.tool_calls[0].function %}
            {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" + call.arguments|tojson + "<|call|>" }}
            {%- set last_tool_call.name = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if "thinking" in message %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}{{- raise_exception("a tool's message without a call") }}{%- endif %}
        {{- "<|start|>functions." + last_tool_call.name + " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
"""
MARKED = """{{ bos_token }}{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' }}
{% if message.role == 'assistant' %}
{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{% else %}
{{ message.content + '<|im_end|>' }}
{% endif %}
{{ '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

_LLAMA_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>")
_MISTRAL_TOKENS = ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]")
_GEMMA_TOKENS = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
GEMMA_IMAGE_TOKENS = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
_HARMONY_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")
QWEN_IMAGE_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
_LLAMA_4_TOKENS = ("<|begin_of_text|>", "<|header_start|>", "<|header_end|>", "<|eot|>", "<|end_of_text|>")
WITH_TILES = Family(LLAMA_4, (*_LLAMA_4_TOKENS, *llama4_inputs.TEXTS), "<|begin_of_text|>", ("<|eot|>",))
"""Llama 4's, whose pictures become tiles."""
FAMILIES = {
    "llama-3": Family(LLAMA, _LLAMA_TOKENS, "<|begin_of_text|>", ("<|eot_id|>",)),
    "mistral": Family(MISTRAL, _MISTRAL_TOKENS, "<s>", ("</s>",)),
    "qwen-2.5": Family(QWEN_2, _CHATML_TOKENS, None, ("<|im_end|>", "<|endoftext|>")),
    "qwen-3": Family(QWEN_3, _CHATML_TOKENS, None, ("<|im_end|>", "<|endoftext|>")),
    "gemma-2": Family(GEMMA_2, _GEMMA_TOKENS, "<bos>", ("<eos>", "<end_of_turn>")),
    "gemma-3": Family(GEMMA_3, (*_GEMMA_TOKENS, *GEMMA_IMAGE_TOKENS), "<bos>", ("<eos>", "<end_of_turn>")),
    "qwen-3-vl": Family(QWEN_3_VL, (*_CHATML_TOKENS, *QWEN_IMAGE_TOKENS), None, ("<|im_end|>", "<|endoftext|>")),
    "gpt-oss": Family(GPT_OSS, _HARMONY_TOKENS, None, ("<|return|>", "<|call|>", "<|end|>")),
    "marked": Family(MARKED, _CHATML_TOKENS, None, ("<|im_end|>",)),
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather “now” of a place <here> & there.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "unit": {"type": "string", "enum": ["°C", "°F"]}},
                "required": ["place"],
            },
        },
    }
]
_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich", "days": [1, 2.5, None]}}}
USER_TURN: list[dict[str, Any]] = [{"role": "user", "content": "  How is the <weather> & more? 日本 🙂\n"}]
ANSWERED = [*USER_TURN, {"role": "assistant", "content": " Fine.\n\nVery 'fine'! "}]
TURNS = [*ANSWERED, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
SYSTEM = [{"role": "system", "content": "Be brief. "}]
THOUGHT = [*USER_TURN, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFine."}]
CALLED = [*USER_TURN, {"role": "assistant", "tool_calls": [_CALL]}, {"role": "tool", "content": '{"sun": true}'}]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "asked": USER_TURN,
    "answered": ANSWERED,
    "turns": TURNS,
    "system": [*SYSTEM, *TURNS],
    "thought": THOUGHT,
    "called": CALLED,
    "called and answered": [*CALLED, {"role": "assistant", "content": "Sunny."}],
}


def chat(family: Family) -> Chat:
    """Bytes and the family's special tokens, with its template."""
    plain = byte_tokenizer()
    engine = plain.engine
    engine.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.specials])
    ids = {text: int(engine.token_to_id(text)) for text in family.specials}
    ends = tuple(ids[end] for end in family.ends)
    words = Tokenizer(engine, ids[family.bos] if family.bos else None, ends, ends[0], family.template)
    return Chat(words, family.template)


def chat_with_sized_images(format_: PatchFormat) -> Chat:
    """Qwen3-VL's, whose images have as many tokens as their sizes make."""
    plain = chat(FAMILIES["qwen-3-vl"])
    begin, part, end = (int(plain.tokenizer.engine.token_to_id(text)) for text in QWEN_IMAGE_TOKENS[:3])
    images = image_tokens.qwen(QWEN_IMAGE_TOKENS[1], (begin, part, end), MOST_TOKENS, format_)
    return replace(plain, images=images, pixels=format_)


def chat_with_tiles(format_: TileFormat) -> Chat:
    """Llama 4's, with tiles of this format."""
    plain = chat(WITH_TILES)
    ids = [int(plain.tokenizer.engine.token_to_id(text)) for text in llama4_inputs.TEXTS]
    images = image_tokens.TileTokens(
        llama4_inputs.MARK, llama4_inputs.BEGIN, llama4_inputs.END, llama4_inputs.PART, ids[1], MOST_TOKENS,
        frozenset(ids), format_, llama4_inputs.COLUMN_END, llama4_inputs.ROW_END,
    )  # fmt: skip
    return replace(plain, images=images, pixels=format_)


def chat_with_images(parts: int, crops: CropFormat | None = None) -> Chat:
    """Gemma 3's, with so many tokens for an image."""
    plain = chat(FAMILIES["gemma-3"])
    begin, part, end = (int(plain.tokenizer.engine.token_to_id(text)) for text in GEMMA_IMAGE_TOKENS)
    return replace(plain, images=image_tokens.gemma3(*GEMMA_IMAGE_TOKENS, (begin, part, end), parts, crops))
