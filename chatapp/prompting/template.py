"""The templates of this program: one Jinja chat template in several wordings, also those that were
saved with models.

Invariant: a chat up to an open reply renders to a prefix of the chat with that reply. White space
before a message belongs to it, as in GPT-2's tokenizer, so that segments encoded one by one give
the tokens of the whole string, and a prompt never ends in a space.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from chatapp.common.paths import TEMPLATE_FILE
from chatapp.common.userfiles import UserError, read_json_object, write_whole
from chatapp.prompting.chat_template import ChatTemplate, Written
from chatapp.prompting.messages import END_OF_TEXT, OWN, CallPattern, Kind, Message, Role, Segment
from chatapp.prompting.thoughts_and_calls import CALCULATOR


class TemplateError(UserError, ValueError):
    """A template that does not exist, or that cannot be used."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The texts of the template around messages, as they are saved next to a model.

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
    def from_dict(cls, data: dict[str, Any], origin: str = "template") -> "Wording":
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
            wording = cls(**dict(checked))
        except ValueError as error:
            raise TemplateError(f"{origin}: {error}") from None
        saved = data.get("fingerprint", wording.fingerprint)
        if saved != wording.fingerprint:
            raise TemplateError(
                f"{origin}: the fields of template {wording.name!r} were changed after it was "
                "saved; put back those that the model was trained with"
            )
        return wording


# Its variables are the texts of a wording; `start` is for other programs.
_SOURCE = """\
{%- set turns = messages -%}
{%- if messages and messages[0]['role'] == 'system' -%}
{%- set instruction = messages[0]['content'] | trim -%}
{%- set turns = messages[1:] -%}
{%- endif -%}
{{- start + instruction -}}
{%- for message in turns -%}
{%- set text = message['content'] | trim -%}
{%- if message['role'] == 'user' -%}
{{- (after_instruction if instruction else '') if loop.first else after_reply -}}
{{- user_marker + lead + text -}}
{%- elif message['role'] == 'assistant' and loop.previtem and loop.previtem['role'] == 'user' -%}
{{- after_user + assistant_marker + (lead + text if text else '') + end -}}
{%- else -%}
{%- set before = loop.previtem['role'] if loop.previtem else '' -%}
{{- raise_exception("message " ~ loop.index ~ " of the chat is from '" ~ message['role']
    ~ "', expected '" ~ ('assistant' if before == 'user' else 'user') ~ "'") -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and turns and turns[-1]['role'] == 'user' -%}
{{- after_user + assistant_marker -}}
{%- endif -%}
"""

# Stands for the end-of-text token, whose name a text of the wording may hold as text.
_END = "\U0010fff2"

_TURNS: tuple[Role, Role] = ("user", "assistant")


@dataclass(frozen=True)
class ShippedTemplate(ChatTemplate):
    """The template of this program in one wording.

    It is not a foreign program, so it runs in this process, and nothing bounds it.
    """

    wording: Wording = field(kw_only=True)

    @classmethod
    def of(cls, wording: Wording) -> "ShippedTemplate":
        """The template in a wording."""
        variables = {**_texts(wording), "start": "", "end": _END if wording.end_of_reply else ""}
        origin = f"template {wording.name!r}"
        return cls(_SOURCE, origin, (_END,), variables, wording=wording)

    @property
    def name(self) -> str:
        return self.wording.name

    @cached_property
    def fingerprint(self) -> str:
        return self.wording.fingerprint

    def to_dict(self) -> dict[str, Any]:
        return self.wording.to_dict()

    @cached_property
    def instruction(self) -> str:
        return self.wording.instruction.strip()

    @cached_property
    def stop(self) -> tuple[str, ...]:
        return self.wording.stop

    @property
    def calls(self) -> CallPattern:
        return CALCULATOR

    @property
    def end(self) -> Segment:
        if self.wording.end_of_reply:
            return END_OF_TEXT
        return Segment("marker", self.wording.after_reply + self.wording.user_marker)

    def reply(self, text: str) -> list[Segment]:
        text = text.strip()
        return [Segment("assistant", self.wording.lead + text)] if text else []

    def render(self, messages: Sequence[Message], *, open_reply: bool = False) -> list[Segment]:
        """See `ChatTemplate.render`. In a chat whose roles alternate the program writes the same
        between two messages wherever they stand; any other chat it writes itself.
        """
        roles = ["", *(message.role for message in messages), ""]
        texts = [message.text.strip() for message in messages]
        turns = roles[2 if roles[1] == "system" else 1 : -1]
        alternating = all(role == _TURNS[i % 2] for i, role in enumerate(turns))
        has_calls = any(message.call for message in messages)
        if not (turns and alternating and all(texts)) or has_calls:
            stripped = [replace(m, text=text) for m, text in zip(messages, texts, strict=True)]
            return super().render(stripped, open_reply=open_reply)
        segments: list[Segment] = []
        for before, role, text in zip(roles, roles[1:], texts, strict=False):
            segments += self._between[before, role]
            is_turn = role != "system"
            kind: Kind = role if is_turn else "instruction"  # type: ignore[assignment]
            segments.append(Segment(kind, self.wording.lead + text if is_turn else text))
        is_open = open_reply and turns[-1] == "assistant"
        return segments if is_open else [*segments, *self._between[turns[-1], ""]]

    @cached_property
    def _between(self) -> dict[tuple[str, str], list[Segment]]:
        """What the program writes between messages of two roles, "" before the first one and after
        the last one.
        """
        between: dict[tuple[str, str], list[Segment]] = {}
        for roles in (_TURNS, ("system", *_TURNS, "user")):
            pieces: list[list[Segment]] = [[]]
            for segment in super().render([Message(role, role) for role in roles]):
                is_system = roles[0] == "system" and segment.kind == "instruction"
                if segment.kind in _TURNS or is_system:
                    pieces.append([])
                else:
                    pieces[-1].append(segment)
            between |= zip(pairwise(["", *roles, ""]), pieces, strict=True)
        return between

    def writes(self, messages: Sequence[Message]) -> bool:
        """Never more than turns of user and assistant."""
        return False

    @property
    def _variables(self) -> frozenset[str]:
        return frozenset()

    @cached_property
    def _default_place(self) -> tuple[int, int, str]:
        return 0, len(self.instruction), self.instruction

    def _ask(self, request: dict[str, Any], until: float) -> dict[str, Any]:
        from chatapp.prompting.template_program import answer  # Jinja is not needed before

        return next(answer({"source": self.source, "unbounded": True, **request}))

    def _segments_of(self, written: Written, messages: Sequence[Message]) -> list[Segment]:
        segments: list[Segment] = []
        lead = self.wording.lead
        for segment in super()._segments_of(written, messages):
            if segment.kind in ("user", "assistant"):
                segments.append(Segment("marker", segments.pop().text.removesuffix(lead)))
                segment = Segment(segment.kind, lead + segment.text)
            segments.append(END_OF_TEXT if segment.kind == "special" else segment)
        return segments


def _texts(wording: Wording) -> dict[str, str]:
    """The values of the template's variables, by their names."""
    texts = {name: text for name, text in asdict(wording).items() if isinstance(text, str)}
    del texts["name"]
    return {**texts, "instruction": wording.instruction.strip()}


PLAIN = ShippedTemplate.of(
    Wording(
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
)

ALPACA = ShippedTemplate.of(
    Wording(
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
)

# The bundled model was trained with this template.
CHAT = ShippedTemplate.of(
    replace(PLAIN.wording, name="chat", instruction="", after_instruction="\n", end_of_reply=True)
)

TEMPLATES = {template.name: template for template in (PLAIN, ALPACA, CHAT)}


def named(name: str) -> ShippedTemplate:
    """Look up a built-in template. Raises TemplateError that lists the known names."""
    try:
        return TEMPLATES[name]
    except KeyError:
        known = ", ".join(TEMPLATES)
        raise TemplateError(f"there is no template {name!r}; there are {known}") from None


def in_a_sentence(name: str) -> str:
    """A template, by its name."""
    return "the model's own template" if name == OWN else f"template {name}"


def save_template(template: ChatTemplate, folder: Path) -> None:
    """Write the template that a model was trained with next to its weights."""
    text = json.dumps(template.to_dict(), indent=2, ensure_ascii=False)
    write_whole(folder / TEMPLATE_FILE, text + "\n")


def load_template(folder: Path) -> ShippedTemplate | None:
    """Load the template stored with a model; None when there is none, or the tokenizer has it.

    Raises TemplateError, naming the file, when it is invalid.
    """
    path = folder / TEMPLATE_FILE
    if not path.is_file():  # also when the folder is a file, such as a GGUF file
        return None
    data = read_json_object(path, TemplateError)
    is_own = data.get("name") == OWN
    return None if is_own else ShippedTemplate.of(Wording.from_dict(data, str(path)))


def saved_fingerprint(folder: Path) -> str:
    """The fingerprint of the template stored with a model; empty when there is none.

    Raises TemplateError, naming the file.
    """
    try:
        return str(read_json_object(folder / TEMPLATE_FILE, TemplateError).get("fingerprint", ""))
    except FileNotFoundError:
        return ""


def as_jinja(template: ShippedTemplate, start: str = "") -> str:
    """The template for other programs; a closed reply ends in its variable `eos_token`.

    start: the special tokens that a model expects before any text, if nobody else adds them.
    """
    texts = {"start": start, **_texts(template.wording)}
    values = {name: json.dumps(text, ensure_ascii=False) for name, text in texts.items()}
    values["end"] = "eos_token" if template.wording.end_of_reply else '""'
    lines = (f"{{%- set {name} = {value} -%}}\n" for name, value in values.items())
    return "".join(lines) + _SOURCE
