"""A dialogue template as a Jinja chat template, for programs that know no other.

Keep: rendered, it is character for character what the dialogue template makes of the same chat.
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
{{- instruction -}}
{%- for message in turns -%}
{%- if message['role'] == 'user' -%}
{%- if not loop.first -%}
{{- AFTER_REPLY -}}
{%- elif instruction -%}
{{- AFTER_INSTRUCTION -}}
{%- endif -%}
{{- USER + (message['content'] | trim) -}}
{%- else -%}
{{- ASSISTANT -}}
{%- if message['content'] | trim -%}
{{- LEAD + (message['content'] | trim) -}}
{%- endif -%}
{{- END -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- ASSISTANT -}}
{%- endif -%}
"""


def as_jinja(template: DialogueTemplate) -> str:
    """The chat template; a reply that the template closes ends in its variable `eos_token`."""
    expressions = {
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
