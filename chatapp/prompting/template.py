"""Dialogue templates as data: how a list of messages becomes one long string.

Keep: the same template renders a chat for generation and a training example for the loss mask,
and rendering a chat up to an open reply gives a prefix of rendering it with that reply. White
space belongs to the segment after it, as GPT-2's tokenizer has it, so that segments encoded one
by one are the tokens of the whole string, and a prompt never ends in a space.

A dialogue template as a Jinja chat template, for programs that know no other.

Keep: rendered, it is character for character what the dialogue template makes of the same chat,
and refuses the chats that this refuses.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from chatapp.common.paths import TEMPLATE_FILE
from chatapp.common.userfiles import UserError, read_json_object, write_whole
from chatapp.prompting.messages import END_OF_TEXT, Message, Segment

OWN = "own"
"""The name of a model's own chat template, which its tokenizer brings (see `chat_template`)."""


class TemplateError(UserError, ValueError):
    """A template that there is not, or that cannot be used."""


class Saveable(Protocol):
    """A template as plain data. Of one that the tokenizer brings: its name and fingerprint."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class DialogueTemplate:
    """The pattern a model continues.

    instruction: text that opens the prompt unless a chat brings its own; may be empty.
    after_instruction: what stands between the instruction and the first user marker.
    user_marker, assistant_marker: what announces a turn. Neither ends in a space.
    lead: what stands between a marker and its text, counted to the text (" " or "").
    after_user, after_reply: what stands between a message and the marker of the next.
    stop: the strings at which a reply is cut off.
    end_of_reply: whether a finished reply is followed by the end-of-text token.
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
        """Twelve hex digits over everything but the name: equal means renders alike."""
        content = {key: value for key, value in asdict(self).items() if key != "name"}
        canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, to be saved as JSON next to a model's weights."""
        return {**asdict(self), "stop": list(self.stop), "fingerprint": self.fingerprint}

    @classmethod
    def from_dict(cls, data: dict[str, Any], origin: str = "template") -> "DialogueTemplate":
        """The inverse of `to_dict`.

        Raises TemplateError in one sentence that begins with `origin` when a key is missing,
        unknown or of the wrong type, or when a saved fingerprint is not that of the fields.
        """
        from chatapp.common.validation import strict_model, validated

        given = {key: value for key, value in data.items() if key != "fingerprint"}
        if isinstance(given.get("stop"), list):  # JSON has no tuples
            given["stop"] = tuple(given["stop"])
        model = strict_model(cls)
        checked = validated(model, given, TemplateError, origin=origin, what="template")
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
        """The opening of the prompt: `system` if given, else the template's own text."""
        text = (self.instruction if system is None else system).strip()
        return [Segment("instruction", text)] if text else []

    def render_user(self, text: str, *, after: Segment | None) -> list[Segment]:
        """A user's turn, closed by the marker of the reply to it.

        after: the segment before it; None at the very beginning.
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
        """A reply. Left open, it ends where generation goes on."""
        text = text.strip()
        segments = [Segment("assistant", self.lead + text)] if text else []
        if closed and self.end_of_reply:
            segments.append(END_OF_TEXT)
        return segments

    def render(self, messages: Sequence[Message], *, open_reply: bool = False) -> list[Segment]:
        """A whole chat.

        messages: an optional system message, then user and assistant in turn. With
        `open_reply`, a last assistant message is left open to be continued; a chat that
        ends with a user's message always ends in an open assistant marker.
        Raises ValueError when the roles do not alternate.
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

# The template the bundled model is trained in.
CHAT = DialogueTemplate(
    name="chat",
    instruction="",
    after_instruction="\n",
    user_marker="User:",
    assistant_marker="Assistant:",
    lead=" ",
    after_user="\n",
    after_reply="\n",
    stop=("\nUser:", "\nAssistant:"),
    end_of_reply=True,
)

TEMPLATES = {template.name: template for template in (PLAIN, ALPACA, CHAT)}


def named(name: str) -> DialogueTemplate:
    """A built-in template. Raises TemplateError that lists the names there are."""
    try:
        return TEMPLATES[name]
    except KeyError:
        known = ", ".join(TEMPLATES)
        raise TemplateError(f"there is no template {name!r}; there are {known}") from None


def save_template(template: Saveable, folder: Path) -> None:
    """Write the template a model was trained in next to its weights."""
    text = json.dumps(template.to_dict(), indent=2, ensure_ascii=False)
    write_whole(folder / TEMPLATE_FILE, text + "\n")


def load_template(folder: Path) -> DialogueTemplate | None:
    """The template saved with a model; None when there is none, or it is the tokenizer's.

    Raises TemplateError, naming the file, when it cannot be used.
    """
    path = folder / TEMPLATE_FILE
    if not path.is_file():  # also in the place of a folder, as a GGUF file is
        return None
    data = read_json_object(path, TemplateError)
    return None if data.get("name") == OWN else DialogueTemplate.from_dict(data, str(path))


def saved_fingerprint(folder: Path) -> str:
    """The fingerprint of the template saved with a model; empty when there is none.

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
