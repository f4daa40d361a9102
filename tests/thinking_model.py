"""A scripted model with a template such as Qwen3's: it thinks, and has a switch for that."""

import json
from collections.abc import Sequence
from pathlib import Path

from fakes import ScriptedModel

SPECIAL = ("<|im_start|>", "<|im_end|>")

# Thoughts of earlier turns are dropped, and a switch closes the thought before it begins.
TEMPLATE = """\
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set content = m.content %}
    {%- if m.role == 'assistant' and loop.index0 > ns.last and m.reasoning_content %}
        {%- set content = '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n'
            + m.content.lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

CALLING = (
    """\
{%- if tools %}{{ '<|im_start|>system\\nCall a tool as <tool_call>{...}</tool_call>:' }}
    {%- for tool in tools %}{{ '\\n' + tool.function.name }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
"""
    + TEMPLATE
)
"""The same for a model that was taught to call tools."""


def thinking_model(
    folder: Path,
    replies: Sequence[str],
    *,
    template: str = TEMPLATE,
    special: Sequence[str] = SPECIAL,
) -> ScriptedModel:
    """A model in a folder that holds no more than its template."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return ScriptedModel(replies, folder=folder, special=special)
