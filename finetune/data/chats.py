"""A chat as pieces of tokens, through the one renderer, each with where it comes from.

Keep: the ids before a reply are those a chat would prompt with at that point, and no text of a
message becomes a special token.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from chatapp.engine.model import Tokenizer
from chatapp.fewshot.encoding import in_order, segment_ids, without_start
from chatapp.prompting.chat_template import ChatTemplate, ChatTemplateError, Template
from chatapp.prompting.messages import Message
from chatapp.prompting.segments import END_OF_TEXT, Segment, text_of
from chatapp.prompting.template import DialogueTemplate


class Span(IntEnum):
    """Where a token comes from."""

    TEMPLATE = 0
    """Instruction, markers and delimiters of the template."""
    PROMPT = 1
    """Text of system and user messages, and of replies that another example teaches."""
    RESPONSE = 2
    """Text of the assistant, and what the template closes it with. A plain text is all
    response; of a few-shot prompt the answers are."""


class Piece(NamedTuple):
    """Tokens of one origin. may_be_cut: whether a row that is too long can do with fewer."""

    span: Span
    ids: list[int]
    may_be_cut: bool = False


class ChatEncoder:
    """Encodes chats in a template.

    start: special tokens that the model puts before each sequence itself; they are left out.
    """

    def __init__(self, template: Template, tokenizer: Tokenizer, start: Sequence[int] = ()) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self.start = start
        # Markers are the same few texts in every chat, and earlier turns come again.
        self._encoded = lru_cache(maxsize=256)(tokenizer.encode)

    def encode(self, messages: Sequence[Message]) -> list[list[Piece]]:
        """The chat as the examples that teach its replies: one, unless turns are rewritten.

        In the patterns of this program, which rewrite nothing, a chat is one example. In a
        model's own template each reply is taught in the text that it would be generated in: the
        prompt as a chat would write it at that turn, then what the template adds for the reply,
        up to the next turn, as TRL's `assistant_only_loss` has it. Where that goes on from the
        reply before token by token it is the same example; where the template writes earlier
        turns differently now (it drops what was thought in them), a new one begins, in which
        they are part of the prompt.
        Raises ChatTemplateError when a model's own template refuses the chat.
        """
        if isinstance(self.template, DialogueTemplate):
            return [self._whole(self.template, messages)]
        examples: list[list[Piece]] = []
        for turn, message in enumerate(messages):
            if message.role != "assistant":
                continue
            segments = self.template.render(messages[:turn])
            prompt = self._pieces(without_start(segments, self), messages)
            reply = self._reply(self.template, messages[: turn + 1], text_of(segments))
            rest = _after(examples[-1], prompt) if examples else None
            if rest is None:
                examples.append([*prompt, *reply])
            else:
                examples[-1] += [*rest, *reply]
        return examples

    def _whole(self, template: DialogueTemplate, messages: Sequence[Message]) -> list[Piece]:
        segments = template.render(messages)
        # Even where replies run on to the next marker, the last one of a chat must end.
        if segments[-1].kind != "end":
            segments.append(END_OF_TEXT)
        return [
            piece._replace(span=Span.RESPONSE) if segment.kind in ("assistant", "end") else piece
            for segment, piece in zip(segments, self._pieces(segments, messages), strict=True)
        ]

    def _pieces(self, segments: Sequence[Segment], messages: Sequence[Message]) -> list[Piece]:
        """A prompt segment by segment."""
        # The instruction is the template's own where the chat has none.
        texts = ("user", "assistant", *(["instruction"] if messages[0].role == "system" else []))
        pieces: list[Piece] = []

        def of(segment: Segment, begins: bool) -> list[int]:
            span = Span.PROMPT if segment.kind in texts else Span.TEMPLATE
            ids = self._ids(segment, begins)
            pieces.append(Piece(span, ids, segment.kind == "user"))
            return ids

        in_order(segments, of)
        return pieces

    def _reply(
        self, template: ChatTemplate, messages: Sequence[Message], prompt: str
    ) -> list[Piece]:
        """What a template adds to a prompt for the last message, closed.

        Where the chat with its reply does not begin with the prompt for it (which opens a
        thought that the reply has not), it is the text of the reply and what comes after it.
        """
        segments = template.render(messages)
        asked = [i for i, segment in enumerate(segments) if segment.kind == "user"]
        spoken = [i for i, segment in enumerate(segments) if segment.kind == "assistant"]
        if not asked or not spoken or spoken[-1] < asked[-1]:
            raise ChatTemplateError(f"{template.origin}: the chat template leaves a message out")
        if text_of(segments).startswith(prompt):
            reply = _from(segments, len(prompt))
        else:
            reply = segments[next(i for i in spoken if i > asked[-1]) :]
        pieces = [Piece(Span.RESPONSE, self._ids(segment)) for segment in reply]
        ended = max(i for i, segment in enumerate(reply) if segment.kind == "assistant")
        if not any(segment.kind == "special" for segment in reply[ended:]):
            pieces.append(Piece(Span.RESPONSE, [self._end]))
        return pieces

    @property
    def _end(self) -> int:
        """The token that ends a reply which the template leaves open: the one chats stop at."""
        special = self.tokenizer.special
        return next(
            (special[text] for text in self.template.stop if text in special),
            self.tokenizer.end_id,
        )

    def _ids(self, segment: Segment, begins: bool = False) -> list[int]:
        return segment_ids(segment, self.tokenizer, self._encoded, begins=begins)


def count(pieces: Sequence[Piece]) -> int:
    """Tokens of an example."""
    return sum(len(piece.ids) for piece in pieces)


def _from(segments: Sequence[Segment], start: int) -> list[Segment]:
    """The segments from a character on, the one it stands in cut there."""
    rest = []
    for segment in segments:
        if start < len(segment.text):
            rest.append(Segment(segment.kind, segment.text[max(0, start) :]))
        start -= len(segment.text)
    return rest


def _after(before: Sequence[Piece], prompt: Sequence[Piece]) -> list[Piece] | None:
    """What a prompt holds beyond an example that it begins with; None when it does not."""
    known = [id for piece in before for id in piece.ids]
    if [id for piece in prompt for id in piece.ids][: len(known)] != known:
        return None
    rest, skip = [], len(known)
    for piece in prompt:
        if skip < len(piece.ids):
            rest.append(piece._replace(ids=piece.ids[max(0, skip) :]))
        skip -= len(piece.ids)
    return rest
