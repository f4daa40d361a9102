"""Rows with a prompt and, optionally, the reference reply.

Rows are those of `formats`, whose last reply is the reference that checks compare with, and rows of
a prompt alone: its fields are those of a request, or a list of turns under `prompt`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from chatapp.engine.model import Tokenizer
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import Message
from chatapp.rows.reading import BadRow, Row
from finetune.config.sections import TooLong
from finetune.data.encoding import Encoded, ExampleEncoder, Span, last_response
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
from finetune.data.turns import Tools, chat_of, tools_of

PROMPT_FIELDS = FIELDS
"""The fields of all layouts of prompt rows."""

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


class PromptEncoder:
    """Makes prompts of rows. length: the most tokens of a row, including its reply; start: see
    `ChatEncoder`.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        length: int,
        too_long: TooLong,
        start: Sequence[int],
    ) -> None:
        self.rows = ExampleEncoder(template, tokenizer, length, too_long, start)

    @property
    def too_long(self) -> TooLong:
        return self.rows.too_long

    @property
    def truncated(self) -> Counter[str]:
        return self.rows.truncated

    @property
    def turns_left_out(self) -> int:
        return self.rows.turns_left_out

    def encode(self, example: TrainingExample) -> list[EncodedPrompt]:
        """The prompt of the last reply. Raises ExampleTooLong and BadRow."""
        encoded = self.rows.encode(example)[-1]
        response = last_response(encoded.spans)
        if example.text or not response.start:
            raise BadRow(
                "asks nothing",
                f"{example.location}: a plain text has no question; expected a prompt",
            )
        return [self._prompt(example, encoded, response)]

    def _prompt(self, example: TrainingExample, encoded: Encoded, response: slice) -> EncodedPrompt:
        decode = self.rows.tokenizer.decode
        prompt = slice(0, response.start)
        written = encoded.ids[prompt][encoded.spans[prompt] == Span.PROMPT]
        text = decode(written.tolist()).strip()
        return EncodedPrompt(
            encoded.ids[prompt].tolist(),
            text,
            example.messages[:-1] or (Message("user", text),),
            example.reply.strip(),
            encoded.key,
            encoded.content,
        )


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
