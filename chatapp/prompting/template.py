"""Dialogue templates as data: how messages become one string, also as a Jinja template.

Invariant: the same template renders a chat for generation and a training example for the loss mask,
and a chat up to an open reply renders to a prefix of the chat with that reply. White space belongs
to the segment after it, as in GPT-2's tokenizer, so that segments encoded one by one give the
tokens of the whole string, and a prompt never ends in a space. The Jinja form gives the same text,
character for character, and refuses the same chats.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from chatapp.common.paths import TEMPLATE_FILE
from chatapp.common.userfiles import UserError, read_json_object, write_whole
from chatapp.prompting.messages import END_OF_TEXT, Message, Segment

OWN = "own"
"""The name of the chat template of a model's tokenizer (see `chat_template`)."""


class TemplateError(UserError, ValueError):
    """A template that does not exist, or that cannot be used."""


class Saveable(Protocol):
    """A template as plain data. For a tokenizer's template: its name and fingerprint."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class DialogueTemplate:
    """The pattern that a model continues.

    instruction: opens the prompt unless a chat has its own; may be empty. after_instruction: text
    between the instruction and the first user marker. user_marker, assistant_marker: announce a
    turn. Neither ends in a space. lead: text between a marker and its message, counted as part of
    the message (" " or ""). after_user, after_reply: text between a message and the next marker.
    stop: the strings at which a reply is cut off. end_of_reply: whether the end-of-text token
    follows a finished reply.
    """

    name: str
    instruction: str
    after_instruction: str
    user_marker: str
    assistant_marker: str
    lead: str
    after_user: str
    after_reply: str
    stop: tuple[str, ...]
    end_of_reply: bool

    def __post_init__(self) -> None:
        for marker in (self.user_marker, self.assistant_marker):
            if not marker.strip() or marker.endswith(" "):
                raise TemplateError(
                    f"template {self.name!r}: a marker must hold text and not end in a space, "
                    f"found {marker!r}"
                )
        if "" in self.stop:
            raise ValueError(f"template {self.name!r}: 'stop' holds an empty text")

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits over everything except the name; templates with equal ones render
        alike.
        """
        content = {key: value for key, value in asdict(self).items() if key != "name"}
        canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, stored as JSON next to a model's weights."""
        return {**asdict(self), "stop": list(self.stop), "fingerprint": self.fingerprint}

    @classmethod
    def from_dict(cls, data: dict[str, Any], origin: str = "template") -> "DialogueTemplate":
        """The inverse of `to_dict`.

        Raises TemplateError in one sentence that begins with `origin` when a key is missing,
        unknown or of the wrong type, or when a stored fingerprint does not match the fields.
        """
        from chatapp.common.validation import strict_model, validated

        fields = {key: value for key, value in data.items() if key != "fingerprint"}
        if isinstance(fields.get("stop"), list):  # JSON has no tuples
            fields["stop"] = tuple(fields["stop"])
        model = strict_model(cls)
        checked = validated(model, fields, TemplateError, origin=origin, what="template")
        try:
            template = cls(**dict(checked))
        except ValueError as error:
            raise TemplateError(f"{origin}: {error}") from None
        saved = data.get("fingerprint", template.fingerprint)
        if saved != template.fingerprint:
            raise TemplateError(
                f"{origin}: the fields of template {template.name!r} were changed after it was "
                "saved; put back those that the model was trained with"
            )
        return template

    def render_instruction(self, system: str | None = None) -> list[Segment]:
        """The opening of the prompt: `system`, or by default the template's own text."""
        text = (self.instruction if system is None else system).strip()
        return [Segment("instruction", text)] if text else []

    def render_user(self, text: str, *, after: Segment | None) -> list[Segment]:
        """A user's turn, closed by the marker of the reply.

        after: the segment before it; None at the beginning.
        """
        if after is None:
            between = ""
        else:
            between = self.after_instruction if after.kind == "instruction" else self.after_reply
        return [
            Segment("marker", between + self.user_marker),
            Segment("user", self.lead + text.strip()),
            Segment("marker", self.after_user + self.assistant_marker),
        ]

    def render_reply(self, text: str, *, closed: bool = True) -> list[Segment]:
        """A reply. An open one ends where generation continues."""
        text = text.strip()
        segments = [Segment("assistant", self.lead + text)] if text else []
        if closed and self.end_of_reply:
            segments.append(END_OF_TEXT)
        return segments

    def render(self, messages: Sequence[Message], *, open_reply: bool = False) -> list[Segment]:
        """Render a whole chat.

        messages: an optional system message, then user and assistant alternate. With `open_reply`,
        a last assistant message stays open to be continued; a chat that ends with a user's message
        always ends in an open assistant marker. Raises ValueError when the roles do not alternate.
        """
        turns = list(messages)
        system = turns.pop(0).text if turns and turns[0].role == "system" else None
        segments = self.render_instruction(system)
        for index, message in enumerate(turns):
            expected = "user" if index % 2 == 0 else "assistant"
            if message.role != expected:
                raise ValueError(
                    f"message {index + 1} of the chat is from {message.role!r}, "
                    f"expected {expected!r}"
                )
            if message.role == "user":
                segments += self.render_user(message.text, after=segments[-1] if segments else None)
            else:
                last = index == len(turns) - 1
                segments += self.render_reply(message.text, closed=not (open_reply and last))
        return segments


PLAIN = DialogueTemplate(
    name="plain",
    instruction="The following is a dialogue between a user and an intelligent AI chatbot.",
    after_instruction="\n\n",
    user_marker="User:",
    assistant_marker="Assistant:",
    lead=" ",
    after_user="\n",
    after_reply="\n",
    stop=("\nUser:", "\nAssistant:"),
    end_of_reply=False,
)

ALPACA = DialogueTemplate(
    name="alpaca",
    instruction=(
        "Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request."
    ),
    after_instruction="\n\n",
    user_marker="### Instruction:",
    assistant_marker="### Response:",
    lead="\n",
    after_user="\n\n",
    after_reply="\n\n",
    stop=("\n### Instruction:", "\n### Response:"),
    end_of_reply=True,
)

# The bundled model was trained with this template.
CHAT = replace(PLAIN, name="chat", instruction="", after_instruction="\n", end_of_reply=True)

TEMPLATES = {template.name: template for template in (PLAIN, ALPACA, CHAT)}


def named(name: str) -> DialogueTemplate:
    """Look up a built-in template. Raises TemplateError that lists the known names."""
    try:
        return TEMPLATES[name]
    except KeyError:
        known = ", ".join(TEMPLATES)
        raise TemplateError(f"there is no template {name!r}; there are {known}") from None


def in_a_sentence(name: str) -> str:
    """A template, by its name."""
    return "the model's own template" if name == OWN else f"template {name}"


def save_template(template: Saveable, folder: Path) -> None:
    """Write the template that a model was trained with next to its weights."""
    text = json.dumps(template.to_dict(), indent=2, ensure_ascii=False)
    write_whole(folder / TEMPLATE_FILE, text + "\n")


def load_template(folder: Path) -> DialogueTemplate | None:
    """Load the template stored with a model; None when there is none, or the tokenizer has it.

    Raises TemplateError, naming the file, when it is invalid.
    """
    path = folder / TEMPLATE_FILE
    if not path.is_file():  # also when the folder is a file, such as a GGUF file
        return None
    data = read_json_object(path, TemplateError)
    return None if data.get("name") == OWN else DialogueTemplate.from_dict(data, str(path))


def saved_fingerprint(folder: Path) -> str:
    """The fingerprint of the template stored with a model; empty when there is none.

    Raises TemplateError, naming the file.
    """
    try:
        return str(read_json_object(folder / TEMPLATE_FILE, TemplateError).get("fingerprint", ""))
    except FileNotFoundError:
        return ""


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
    """Convert to a Jinja chat template; a closed reply ends in its variable `eos_token`.

    start: the special tokens that a model expects before any text, if nobody else adds them.
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
    """A Jinja string literal; characters beyond ASCII stay."""
    return json.dumps(text, ensure_ascii=False)
