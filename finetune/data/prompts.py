"""Rows with a prompt and, optionally, the reference reply.

Rows are those of `formats`, whose last reply is the reference that checks compare with, and rows of
a prompt alone: its fields are those of a request, or a list of turns under `prompt`.
"""

from dataclasses import dataclass, replace
from functools import partial

from chatapp.prompting.messages import Message
from chatapp.rows.reading import BadRow, Row
from finetune.data.encoding import ExampleEncoder, Span, last_response
from finetune.data.formats import (
    CHAT_FIELDS,
    FIELDS,
    Layout,
    TrainingExample,
    chat_example,
    detect,
    system_of,
)
from finetune.data.preferences import prompt_fields, prompt_of
from finetune.data.preparation import RowKind
from finetune.data.turns import Tools, chat_of, tools_of

# Templates render a reply only if there is one; the prompt does not depend on its text.
_ANY_REPLY = Message("assistant", "-")


@dataclass(frozen=True, slots=True)
class PromptOnly(TrainingExample):
    """A request without a reply: the last message is only there for the template."""

    @property
    def reply(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt.

    ids: its tokens, without those that start every sequence. text: the user's text. messages: the
    chat before the reply. reference: the row's own reply, or "". key: of the row.
    """

    ids: list[int]
    text: str
    messages: tuple[Message, ...]
    reference: str
    key: str
    content: bytes

    @property
    def split_key(self) -> str:
        """The key that decides between training and evaluation."""
        return self.key


def encode_prompt(encoder: ExampleEncoder, example: TrainingExample) -> list[EncodedPrompt]:
    """The prompt of the last reply, alone in a list. encoder: its length includes the reply.

    Raises ExampleTooLong and BadRow.
    """
    encoded = encoder.encode(example)[-1]
    prompt = slice(0, last_response(encoded.spans).start)
    if example.text or not prompt.stop:
        raise BadRow(
            "asks nothing",
            f"{example.location}: a plain text has no question; expected a prompt",
        )
    written = encoded.ids[prompt][encoded.spans[prompt] == Span.PROMPT]
    text = encoder.tokenizer.decode(written.tolist()).strip()
    return [
        EncodedPrompt(
            encoded.ids[prompt].tolist(),
            text,
            example.messages[:-1] or (Message("user", text),),
            example.reply.strip(),
            encoded.key,
            encoded.content,
        )
    ]


def detect_prompt(row: Row) -> Layout[TrainingExample]:
    """The layout of a prompt row; a chat that ends with its user is one, too. Raises BadRow."""
    try:
        layout = detect(row)
    except BadRow:
        fields = prompt_fields(row)
        if not fields:
            raise
        return Layout("prompts", (*fields, "system", "history", "tools"), _read_prompt)
    is_chat = layout.needs[0] in CHAT_FIELDS
    return replace(layout, read=partial(_read_chat, layout)) if is_chat else layout


def _read_chat(layout: Layout[TrainingExample], row: Row) -> TrainingExample:
    messages, tools = chat_of(row, layout.needs[0], system_of(row))
    return layout.read(row) if messages[-1].role == "assistant" else _prompt(row, messages, tools)


def _read_prompt(row: Row) -> PromptOnly:
    return _prompt(row, prompt_of(row), tools_of(row))


def _prompt(row: Row, messages: list[Message], tools: Tools) -> PromptOnly:
    example = chat_example(row.location, [*messages, _ANY_REPLY], tools, f"{row.location}: prompt")
    return PromptOnly(row.location, example.key, example.messages, tools=tools)


PROMPTS = RowKind(FIELDS, detect_prompt, encode_prompt, phrased=True)
