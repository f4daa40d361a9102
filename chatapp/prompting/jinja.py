"""A dialogue template as a Jinja chat template, for programs that know no other.

Keep: rendered, it is character for character what the dialogue template makes of the same chat,
and refuses the chats that this refuses.
"""

import json
import re

from chatapp.prompting.template import DialogueTemplate

_SOURCE = """\
{%- set instruction = INSTRUCTION -%}
{%- set turns = messages -%}
{%- if messages and messages[0]['role'] == 'system' -%}
{%- set instruction = messages[0]['content'] | trim -%}
{%- set turns = messages[1:] -%}
{%- endif -%}
{{- START + instruction -}}
{%- for message in turns -%}
{%- set text = message['content'] | trim -%}
{%- if message['role'] == 'user' and loop.index0 % 2 == 0 -%}
{%- if not loop.first -%}
{{- AFTER_REPLY -}}
{%- elif instruction -%}
{{- AFTER_INSTRUCTION -}}
{%- endif -%}
{{- USER + text -}}
{%- if add_generation_prompt or not loop.last -%}
{{- ASSISTANT -}}
{%- endif -%}
{%- elif message['role'] == 'assistant' and loop.index0 % 2 == 1 -%}
{%- if text -%}
{{- LEAD + text -}}
{%- endif -%}
{{- END -}}
{%- else -%}
{{- raise_exception('expected an optional system message, then user and assistant in turn') -}}
{%- endif -%}
{%- endfor -%}
"""


def as_jinja(template: DialogueTemplate, start: str = "") -> str:
    """The chat template; a reply that the template closes ends in its variable `eos_token`.

    start: the special tokens that a model expects before any text, where nobody else puts them.
    """
    expressions = {
        "START": _literal(start),
        "INSTRUCTION": _literal(template.instruction.strip()),
        "AFTER_INSTRUCTION": _literal(template.after_instruction),
        "AFTER_REPLY": _literal(template.after_reply),
        "USER": _literal(template.user_marker + template.lead),
        "ASSISTANT": _literal(template.after_user + template.assistant_marker),
        "LEAD": _literal(template.lead),
        "END": "eos_token" if template.end_of_reply else _literal(""),
    }
    names = "|".join(rf"\b{name}\b" for name in expressions)
    return re.sub(names, lambda name: expressions[name[0]], _SOURCE)


def _literal(text: str) -> str:
    """A string of Jinja; characters beyond ASCII stand for themselves."""
    return json.dumps(text, ensure_ascii=False)
