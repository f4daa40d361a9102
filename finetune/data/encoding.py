"""A chat or a text to token ids, with the span of every token, through the one renderer.

Invariant: the ids before a reply are the prompt of a chat at that point, and no text of a message
becomes a special token. A response is never cut: an example that does not fit is shortened in its
prompt or by its oldest turns, and counted, or dropped.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chatapp.engine.encoding import in_order, segment_ids, without_start
from chatapp.engine.model import Tokenizer
from chatapp.prompting.chat_template import ChatTemplate, ChatTemplateError
from chatapp.prompting.messages import END_OF_TEXT, Call, Message, Segment, text_of
from chatapp.prompting.template import ShippedTemplate
from chatapp.prompting.thoughts_and_calls import CALCULATOR, as_text, explained
from chatapp.rows.reading import BadRow
from finetune.config.sections import ConfigError, TooLong
from finetune.data.formats import TrainingExample
from finetune.data.split import content_key
from finetune.data.turns import Tools, regular


class Span(IntEnum):
    """The origin of a token."""

    TEMPLATE = 0
    """Instruction, markers and delimiters of the template."""
    PROMPT = 1
    """Text of system and user messages, results of tools, and replies that are not trained here."""
    RESPONSE = 2
    """Text of the assistant, and the template's end of it. A plain text is all response; of a
    few-shot prompt the answers are.
    """


class TokenPiece(NamedTuple):
    """Tokens of one origin. may_be_cut: whether a row that is too long can be shortened here."""

    span: Span
    ids: list[int]
    may_be_cut: bool = False


class ChatEncoder:
    """Encodes chats in a template.

    start: special tokens that the model itself puts before each sequence; they are left out.
    has_encoder: whether replies are sequences of their own, of a decoder beside an encoder.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        start: Sequence[int] = (),
        has_encoder: bool = False,
    ) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self.start = start
        self._has_encoder = has_encoder
        self._tooled = template
        # Markers are the same few texts in every chat, and earlier turns recur.
        self._encoded = lru_cache(maxsize=256)(tokenizer.encode)

    def encode(self, messages: Sequence[Message], tools: Tools = ()) -> list[list[TokenPiece]]:
        """The chat as the examples that train its replies: one, unless turns are rewritten.

        In the patterns of this program, which rewrite nothing, a chat is one example. In a model's
        own template each reply is trained in the text in which it would be generated: the prompt of
        a chat at that turn, then the template's text of the reply, up to the next turn, as in TRL's
        `assistant_only_loss`. If that continues the example of the reply before, token by token, it
        is the same example; if the template renders earlier turns differently now (it drops their
        thoughts), a new one begins, in which they are part of the prompt. A template that marks by
        `{% generation %}` what is trained decides that itself, as in transformers'
        `return_assistant_tokens_mask`. A call of a tool is text of its reply, and its result is
        part of the prompt. tools: those that the chat may call. Raises ChatTemplateError when a
        model's own template refuses the chat.
        """
        if isinstance(self.template, ShippedTemplate):
            return [self._whole(self.template, messages, tools)]
        template = self._with_tools(self.template, tools)
        marked = template.render_trained(messages)
        if marked is not None:
            return [self._marked(marked, messages)]
        examples: list[list[TokenPiece]] = []
        for turn, message in enumerate(messages):
            if message.role != "assistant":
                continue
            segments = template.render(messages[:turn])
            prompt = self._pieces(without_start(segments, self), messages)
            reply = self._reply(template, messages[: turn + 1], text_of(segments))
            if not message.learnt:
                reply = [piece._replace(span=Span.PROMPT) for piece in reply]
            rest = _after(examples[-1], prompt) if examples else None
            if rest is None:
                examples.append([*prompt, *reply])
            else:
                examples[-1] += [*rest, *reply]
        return [pieces for pieces in examples if any(p.span == Span.RESPONSE for p in pieces)]

    def writes(self, messages: Sequence[Message], tools: Tools) -> bool:
        """Whether the template has a place for each turn of a chat in which roles do not
        alternate."""
        with suppress(ChatTemplateError):
            is_whole = self._with_tools(self.template, tools).writes(messages)
            return is_whole and bool(self.encode(messages, tools))
        return False

    def _with_tools(self, template: ChatTemplate, tools: Tools) -> ChatTemplate:
        if self._tooled.tools != tools:  # rows with the same tools often follow each other
            self._tooled = replace(template, tools=tools)
        return self._tooled

    def _whole(
        self, template: ShippedTemplate, messages: Sequence[Message], tools: Tools
    ) -> list[TokenPiece]:
        marked = dialogue_segments(template, messages, tools)
        # Even if replies run on to the next marker, the last one of a chat must end.
        if marked[-1][0].kind != "end":
            marked.append((END_OF_TEXT, True))
        return self._marked(marked, messages)

    def _marked(
        self, marked: Sequence[tuple[Segment, bool]], messages: Sequence[Message]
    ) -> list[TokenPiece]:
        segments = without_start([segment for segment, _ in marked], self)
        trained = [is_trained for _, is_trained in marked][len(marked) - len(segments) :]
        return [
            piece._replace(span=Span.RESPONSE, may_be_cut=False) if is_trained else piece
            for piece, is_trained in zip(self._pieces(segments, messages), trained, strict=True)
        ]

    def _pieces(self, segments: Sequence[Segment], messages: Sequence[Message]) -> list[TokenPiece]:
        """A prompt segment by segment."""
        # The instruction is the template's own if the chat has none.
        texts = {"user", "assistant", "tool"}
        texts |= {"instruction"} if messages[0].role == "system" else set()
        pieces: list[TokenPiece] = []

        def of(segment: Segment, begins: bool) -> list[int]:
            span = Span.PROMPT if segment.kind in texts else Span.TEMPLATE
            ids = self._ids(segment, begins)
            pieces.append(TokenPiece(span, ids, segment.kind == "user"))
            return ids

        in_order(segments, of)
        return pieces

    def _reply(
        self, template: ChatTemplate, messages: Sequence[Message], prompt: str
    ) -> list[TokenPiece]:
        """The template's text of the last message after a prompt, closed.

        If the chat with its reply does not begin with the prompt (which opens a thought that the
        reply lacks), it is the text of the reply and the text after it.
        """
        segments = template.render(messages)
        given = [i for i, segment in enumerate(segments) if segment.kind in ("user", "tool")]
        asked = max(given, default=-1)
        replied = [i for i, segment in enumerate(segments) if segment.kind == "assistant"]
        is_asked = not any(message.role == "user" for message in messages) or bool(given)
        if not is_asked or not replied or replied[-1] < asked:
            raise ChatTemplateError(f"{template.origin}: the chat template leaves a message out")
        if text_of(segments).startswith(prompt):
            reply = _from(segments, len(prompt))
        elif messages[-1].call:  # whose marks stand before its name
            begun = accumulate(segment.text for segment in segments)
            reply = segments[next(i for i, t in enumerate(begun) if not prompt.startswith(t)) :]
        else:
            reply = segments[next(i for i in replied if i > asked) :]
        pieces = [TokenPiece(Span.RESPONSE, self._ids(segment)) for segment in reply]
        ended = max(i for i, segment in enumerate(reply) if segment.kind == "assistant")
        if not any(segment.kind == "special" for segment in reply[ended:]):
            # The token at which chats stop.
            end = template.end if template.end.kind == "special" else END_OF_TEXT
            pieces.append(TokenPiece(Span.RESPONSE, self._ids(end)))
        return pieces

    def reply_ids(self, text: str) -> list[int]:
        """The tokens of a reply after its prompt; of a decoder beside an encoder, of a text that
        begins there, without the white space that led to it."""
        if self._has_encoder:
            return self._encoded(text.strip(), begins=True)
        return self._encoded(text, begins=False)

    def _ids(self, segment: Segment, begins: bool = False) -> list[int]:
        if segment.kind == "assistant" and not begins:
            return self.reply_ids(segment.text)
        return segment_ids(segment, self.tokenizer, self._encoded, begins=begins)


def dialogue_segments(
    template: ShippedTemplate, messages: Sequence[Message], tools: Tools = ()
) -> "list[Marked]":
    """A chat in a pattern of this program, each segment with whether it is trained.

    A call is text of the reply, as the chat writes it: `<<48*76=` of the calculator, else JSON
    between marks, for which the instructions then explain the tools. Its result is not trained.
    Raises ValueError when the roles do not alternate.
    """
    turns, replies = _folded(messages)
    others = [tool for tool in tools if tool["function"]["name"] != CALCULATOR.tool]
    if others:
        given = turns.pop(0).text if turns[0].role == "system" else template.instruction
        turns.insert(0, Message("system", f"{given}\n\n{explained(others)}".strip()))
    segments: list[Marked] = []
    left = iter(replies)
    for segment in template.render(turns):
        if segment.kind == "assistant":
            (first, is_trained), *rest = next(left)
            lead = segment.text[: segment.text.index(segment.text.lstrip())]
            segments += [(replace(first, text=lead + first.text), is_trained), *rest]
        else:
            segments.append((segment, segment.kind == "end" and segments[-1][1]))
    return segments


Marked = tuple[Segment, bool]
"""A piece of a chat, and whether it is trained."""


def _folded(messages: Sequence[Message]) -> tuple[list[Message], list[list[Marked]]]:
    """The chat with each reply, its calls and their results as one message; and their pieces."""
    turns: list[Message] = []
    replies: list[list[Marked]] = []
    results = iter([message.call for message in messages if message.role == "tool"])
    for place, message in enumerate(messages):
        if message.role in ("system", "user"):
            turns.append(message)
        elif message.role == "assistant":
            if not turns or turns[-1].role != "assistant":
                turns.append(message)
                replies.append([])
            is_answered = [after.role for after in messages[place + 1 : place + 2]] == ["tool"]
            called = [call for call in (message.call, *message.further) if call is not None]
            pieces = [Segment("assistant", f" {message.text.strip()}")] if message.text else []
            for call in called:
                pieces += _call_segments(call, next(results) if is_answered else None)
            replies[-1] += [(p, message.learnt and p.kind == "assistant") for p in pieces]
    for reply in replies:
        for end, strip in ((0, str.lstrip), (-1, str.rstrip)):
            piece, is_trained = reply[end]
            reply[end] = replace(piece, text=strip(piece.text)), is_trained
    texts = iter(text_of(piece for piece, _ in reply) for reply in replies)
    return [replace(t, text=next(texts)) if t.role == "assistant" else t for t in turns], replies


def _call_segments(call: Call, answered: Call | None) -> list[Segment]:
    """A call in a reply. answered: the same with its result, if it has one."""
    argument = call.arguments.get(CALCULATOR.argument)
    if call.name == CALCULATOR.tool and isinstance(argument, str) and answered:
        return [
            Segment("assistant", f" {CALCULATOR.begin}{argument.strip()}{CALCULATOR.end}"),
            Segment("tool", f"{answered.result.strip()}{CALCULATOR.close}"),
        ]
    text, result = as_text(answered or call)
    results = [Segment("tool", f"{result}\n")] if answered else []
    return [Segment("assistant", f"\n{text}\n"), *results]


def count(pieces: Sequence[TokenPiece]) -> int:
    """Tokens of an example."""
    return sum(len(piece.ids) for piece in pieces)


def _from(segments: Sequence[Segment], start: int) -> list[Segment]:
    """The segments from a character on, cutting the one that contains it."""
    rest = []
    for segment in segments:
        if start < len(segment.text):
            rest.append(Segment(segment.kind, segment.text[max(0, start) :]))
        start -= len(segment.text)
    return rest


def _after(before: Sequence[TokenPiece], prompt: Sequence[TokenPiece]) -> list[TokenPiece] | None:
    """The rest of a prompt after an example that it begins with; None when it does not."""
    known = [id for piece in before for id in piece.ids]
    if [id for piece in prompt for id in piece.ids][: len(known)] != known:
        return None
    rest, skip = [], len(known)
    for piece in prompt:
        if skip < len(piece.ids):
            rest.append(piece._replace(ids=piece.ids[max(0, skip) :]))
        skip -= len(piece.ids)
    return rest


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """An example as tokens.

    ids: int32, spans: uint8 (see `Span`), equally long. key: that of its row. is_window: whether it
    is a part of a plain text, which another tokenizer would cut elsewhere. location: of its row.
    """

    ids: NDArray[np.int32]
    spans: NDArray[np.uint8]
    key: str
    is_window: bool = False
    location: str = ""

    @property
    def split_key(self) -> str:
        """The key that decides between training and evaluation."""
        return self.key

    @property
    def content(self) -> bytes:
        """Its trained content, for a digest."""
        return self.ids.tobytes() + self.spans.tobytes()


def last_response(spans: NDArray[np.uint8]) -> slice:
    """The position of the last response; empty if there is none, or nothing before it."""
    responses = np.flatnonzero(spans == Span.RESPONSE)
    if not len(responses):
        return slice(0, 0)
    end = int(responses[-1]) + 1
    before = np.flatnonzero(spans[:end] != Span.RESPONSE)
    return slice(int(before[-1]) + 1, end) if len(before) else slice(0, 0)


class ExampleTooLong(ConfigError):
    """An example that does not fit and, under the chosen policy, cannot be shortened."""


# A prompt cut to less than this loses the question.
_SHORTEST_PROMPT = 8


class ExampleEncoder:
    """Encodes examples one by one, and counts the shortened ones.

    length: the most tokens of an example. start, has_encoder: see `ChatEncoder`. truncated: changed
    rows, by how: "prompt", "history", "windows" (of a plain text), "last turn", and of chats in
    which roles do not alternate "joined" or "in their order". turns_left_out: messages removed by
    "history".
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        length: int,
        too_long: TooLong = "raise",
        start: Sequence[int] = (),
        has_encoder: bool = False,
    ) -> None:
        self.chats = ChatEncoder(template, tokenizer, start, has_encoder)
        self.tokenizer = tokenizer
        self.length = length
        self.too_long = too_long
        self.truncated: Counter[str] = Counter()
        self.turns_left_out = 0
        self._counted = ""

    def encode(self, example: TrainingExample, length: int | None = None) -> list[Encoded]:
        """A row as examples: a plain text as many windows as it fills, else see `ChatEncoder`.

        Those of one chat have one key, so that they are trained on or evaluated together. length:
        the most tokens of this chat. Raises ExampleTooLong, and BadRow when the template refuses
        the chat.
        """
        length = self.length if length is None else length
        if example.text:
            return self._windows(example)
        examples = [self._parts(example)] if example.parts else self._chat(example)
        if max(map(count, examples)) > length:
            examples = self._shorten(example, examples, length)
        return [_encoded(pieces, example) for pieces in examples]

    def _chat(self, example: TrainingExample) -> list[list[TokenPiece]]:
        messages, tools = self.ordered(example), example.tools
        try:
            return self.chats.encode(messages, tools)
        except ChatTemplateError as error:
            raise BadRow("refused by the chat template", f"{example.location}: {error}") from None

    def ordered(self, example: TrainingExample) -> Sequence[Message]:
        """The messages as they are if the template can write them, else in turn; counted."""
        messages: Sequence[Message] = regular(example.messages, example.location)
        changes = ["last turn"] if example.is_cut else []
        if len(messages) < len(example.messages):
            is_kept = self.chats.writes(example.messages, example.tools)
            messages = example.messages if is_kept else messages
            changes.append("in their order" if is_kept else "joined")
        if changes and example.location != self._counted:  # a pair is one row
            self._counted = example.location
            self.truncated.update(changes)
        return messages

    def _parts(self, example: TrainingExample) -> list[TokenPiece]:
        """A few-shot prompt unchanged, without the template; the last answer is closed."""
        pieces = [
            TokenPiece(Span.RESPONSE, self.chats.reply_ids(part))
            if number % 2
            else TokenPiece(
                Span.PROMPT, self.tokenizer.encode(part, begins=number == 0), may_be_cut=True
            )
            for number, part in enumerate(example.parts)
        ]
        return [*pieces, TokenPiece(Span.RESPONSE, [self.tokenizer.end_id])]

    def _windows(self, example: TrainingExample) -> list[Encoded]:
        """A plain text in equal windows, so that none is a single token without a label."""
        ids = np.array([*self.tokenizer.encode(example.text), self.tokenizer.end_id], np.int32)
        windows = np.array_split(ids, -(-len(ids) // self.length))
        if len(windows) > 1:
            self.truncated["windows"] += 1
        keys = [example.key, *(content_key([example.key, n]) for n in range(1, len(windows)))]
        spans, cut = np.full(len(ids), Span.RESPONSE, np.uint8), len(windows) > 1
        return [
            Encoded(window, spans[: len(window)], key, cut, example.location)
            for window, key in zip(windows, keys, strict=True)
        ]

    def _shorten(
        self, example: TrainingExample, examples: list[list[TokenPiece]], length: int
    ) -> list[list[TokenPiece]]:
        """Shorten the examples by the policy. Raises ExampleTooLong."""
        shorter: list[list[TokenPiece]] | None = None
        if self.too_long == "truncate-prompt":
            cut = [_cut_prompts(pieces, length) for pieces in examples]
            shorter = [pieces for pieces in cut if pieces is not None]
            shorter = shorter if len(shorter) == len(examples) else None
            how = "prompt"
        elif self.too_long == "truncate-history" and example.messages:
            shorter = self._cut_history(example, length)
            how = "history"
        if shorter is None:
            longest = max(examples, key=count)
            response = [piece for piece in longest if piece.span == Span.RESPONSE]
            raise ExampleTooLong(
                f"{example.location}: {count(longest):,} tokens with {count(response):,} of "
                f"response; a row may have {length:,}"
            )
        self.truncated[how] += 1
        return shorter

    def _cut_history(self, example: TrainingExample, length: int) -> list[list[TokenPiece]] | None:
        """As many of the newest turns as fit, after the system message; at least one pair."""
        messages = self.ordered(example)
        first = 1 if messages[0].role == "system" else 0
        system, turns = messages[:first], messages[first:]

        def left(dropped: int) -> list[list[TokenPiece]]:
            return self.chats.encode([*system, *turns[dropped:]], example.tools)

        learnt = [i for i, turn in enumerate(turns) if turn.role == "assistant" and turn.learnt]
        starts = [i for i, turn in enumerate(turns) if turn.role == "user" and 0 < i < learnt[-1]]
        fitting = bisect_left(starts, -length, key=lambda dropped: -max(map(count, left(dropped))))
        if fitting == len(starts):
            return None
        self.turns_left_out += starts[fitting]
        return left(starts[fitting])


def _encoded(pieces: Sequence[TokenPiece], row: TrainingExample) -> Encoded:
    ids = np.fromiter((id for piece in pieces for id in piece.ids), np.int32)
    spans = np.array([piece.span for piece in pieces], np.uint8)
    spans = spans.repeat([len(piece.ids) for piece in pieces])
    return Encoded(ids, spans, row.key, location=row.location)


def _cut_prompts(pieces: list[TokenPiece], length: int) -> list[TokenPiece] | None:
    """The longest prompts cut to one length, in the middle: a request is often at the beginning of
    a long text or at its end. None when hardly anything would remain.
    """
    lengths = [len(piece.ids) for piece in pieces if piece.may_be_cut]
    budget = length - count(pieces) + sum(lengths)
    caps = range(max(lengths) + 1)
    cap = bisect_right(caps, budget, key=lambda cap: sum(min(size, cap) for size in lengths)) - 1
    if cap < min(_SHORTEST_PROMPT, max(lengths)):
        return None

    def shortened(piece: TokenPiece) -> TokenPiece:
        ids = piece.ids
        if not piece.may_be_cut or len(ids) <= cap:
            return piece
        return piece._replace(ids=ids[: cap - cap // 2] + ids[len(ids) - cap // 2 :])

    return [shortened(piece) for piece in pieces]
