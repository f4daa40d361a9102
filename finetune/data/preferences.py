"""Rows of feedback and their tokens: a better and a worse reply to one prompt, or a verdict on one.

Preferences have the fields `chosen` and `rejected`, and may have a `margin`: how much better
(Bradley-Terry of `reward`). Verdicts have `completion` and `label`. The prompt of either is a
request as in `formats`, or a list of turns under `prompt`. A preference may omit it when both
replies begin with it: as lists of turns, as texts of "Human:" and "Assistant:" (HH-RLHF), or as
other texts, which are then trained without a template. Whole chats may also stand beside their
prompt (UltraFeedback). These are the layouts of TRL's documentation (dataset formats), of OpenAI's
preferences and OASST's trees, and the rows that the chat exports.

Invariant: both replies of a preference follow the same prompt, token for token, however it was cut;
neither is empty or equal to the other. Only the last reply of a sequence is a response.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from chatapp.common.userfiles import shown
from chatapp.prompting.messages import Message
from chatapp.rows.reading import BadRow, Row, names
from finetune.data.encoding import Encoded, ExampleEncoder, Span
from finetune.data.formats import (
    BESIDE,
    Layout,
    TrainingExample,
    chat_example,
    request_of,
    text_field,
)
from finetune.data.preparation import RowKind
from finetune.data.split import content_key
from finetune.data.turns import (
    all_turns,
    is_tree,
    rank_of,
    ranked,
    root_of,
    text_of_node,
    tools_of,
    turns_in,
    turns_of,
)


@dataclass(frozen=True, slots=True)
class Preference:
    """Two replies to one prompt. prompt_key: of the content of the prompt."""

    prompt_key: str
    chosen: TrainingExample
    rejected: TrainingExample
    margin: float = 0.0

    @property
    def examples(self) -> tuple[TrainingExample, ...]:
        return self.chosen, self.rejected

    def encoded(self, sequences: Sequence[Encoded]) -> "EncodedPair":
        """The pair with the tokens of its examples."""
        chosen, rejected = sequences
        key = content_key([self.chosen.key, self.rejected.key])
        return EncodedPair(chosen, rejected, key, self.prompt_key, self.margin)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reply, and whether it is a good one."""

    prompt_key: str
    reply: TrainingExample
    desirable: bool

    @property
    def examples(self) -> tuple[TrainingExample, ...]:
        return (self.reply,)

    def encoded(self, sequences: Sequence[Encoded]) -> "EncodedVerdict":
        """The verdict with the tokens of its reply."""
        (reply,) = sequences
        key = content_key([self.reply.key, self.desirable])
        return EncodedVerdict(reply, self.desirable, key, self.prompt_key)


FeedbackRow = Preference | Verdict

# The fields of a request, and of an input to it.
_REQUESTS = (
    ("instruction", "input"),
    ("instruction", "context"),
    ("prompt", ""),
    ("question", ""),
    ("query", ""),
    ("problem", ""),
    ("input", ""),
)
FIELDS = (
    *("chosen", "rejected", "margin", "completion", "label"),
    *dict.fromkeys(name for request in _REQUESTS for name in request if name),
    *BESIDE,
    "tools",
)
"""The fields of all layouts of feedback."""


def detect_preference(row: Row) -> Layout[FeedbackRow]:
    """The layout of a row that has to be a preference. Raises BadRow."""
    if "preferred_output" in row.fields:
        return Layout("OpenAI preferences", ("input", *_OPENAI_PAIR), _read_openai)
    if is_tree(row):
        return Layout("OASST trees: the best and the worst reply", ("prompt",), _read_tree)
    for name in ("chosen", "rejected"):
        if name not in row.fields:
            raise BadRow(
                f"no {name}",
                f"{row.location}: {name!r} is missing; a preference has a prompt, 'chosen' and "
                f"'rejected'; there are {names(row.fields)}",
            )
    fields = prompt_fields(row)
    if not fields:
        return Layout("preferences with the prompt in them", _PAIR, _read_implicit)
    return Layout("preferences", (*fields, *_PAIR, *BESIDE, "tools"), _read_preference)


def detect_feedback(row: Row) -> Layout[FeedbackRow]:
    """The layout of a verdict, or of a preference, which is two verdicts. Raises BadRow."""
    if {"chosen", "rejected", "preferred_output"} & row.fields.keys() or is_tree(row):
        return detect_preference(row)
    if "completion" not in row.fields:
        raise BadRow(
            "no completion",
            f"{row.location}: expected a prompt, 'completion' and 'label', or 'chosen' and "
            f"'rejected'; there are {names(row.fields)}",
        )
    fields = (*prompt_fields(row), "completion", "label", *BESIDE, "tools")
    return Layout("verdicts", fields, _read_verdict)


_PAIR = ("chosen", "rejected", "margin")


def prompt_fields(row: Row) -> tuple[str, ...]:
    """The fields of the prompt; none if the replies include it."""
    for request, input_field in _REQUESTS:
        if request in row.fields:
            return (request, input_field) if input_field in row.fields else (request,)
    return ()


def prompt_of(row: Row) -> list[Message]:
    """The prompt of a row: a request, or a list of turns under `prompt`. Raises BadRow."""
    fields = prompt_fields(row)
    if not fields:
        raise BadRow(
            "no prompt", f"{row.location}: there is no prompt; there are {names(row.fields)}"
        )
    if fields == ("prompt",) and isinstance(row.fields["prompt"], list):
        return turns_of(row, "prompt")
    return request_of(row, fields[0], fields[1] if len(fields) > 1 else "")


def _reply(row: Row, name: str) -> Message:
    """The text of a reply, or its only turn. Raises BadRow."""
    if not isinstance(row.fields.get(name), list):
        return Message("assistant", text_field(row, name))
    turns = turns_of(row, name)
    if len(turns) != 1 or turns[0].role != "assistant":
        raise BadRow(
            f"bad {name}",
            f"{row.location}: {name!r} has {len(turns)} turns, the last from "
            f"{turns[-1].role!r}; expected one from 'assistant'",
        )
    return turns[0]


def _read_preference(row: Row) -> Preference:
    pair = [row.fields.get(name) for name in _PAIR[:2]]
    if all(isinstance(reply, list) and len(reply) > 1 for reply in pair):
        return _read_implicit(row)
    prompt = prompt_of(row)
    return _preference(row, prompt, [[*prompt, _reply(row, name)] for name in _PAIR[:2]])


def _preference(row: Row, prompt: Sequence[Message], pair: Sequence[list[Message]]) -> Preference:
    _check_unlike(row, *((m[-1].text.strip(), m[-1].call, m[-1].further) for m in pair))
    tools = tools_of(row)
    chosen, rejected = (
        chat_example(row.location, messages, tools, f"{row.location}: {name} behind its prompt")
        for name, messages in zip(_PAIR[:2], pair, strict=True)
    )
    return Preference(_key(prompt), chosen, rejected, _margin(row))


_OPENAI_PAIR = ("preferred_output", "non_preferred_output")


def _read_openai(row: Row) -> Preference:
    """As OpenAI writes it: the prompt and its tools under `input`."""
    given = row.fields.get("input")
    if not isinstance(given, dict):
        expected = "expected an object with 'messages'"
        raise BadRow("no input", f"{row.location}: 'input' is {shown(given)}, {expected}")
    chosen, rejected = (row.fields.get(name) for name in _OPENAI_PAIR)
    fields = {"prompt": given.get("messages"), "tools": given.get("tools")}
    return _read_preference(Row(row.location, {**fields, "chosen": chosen, "rejected": rejected}))


def _read_tree(row: Row) -> Preference:
    """The best and the worst of the ranked replies to the first message."""
    question = root_of(row)
    replies = [reply for reply in ranked(question, row) if rank_of(reply, -1) >= 0]
    if len(replies) < 2:
        raise BadRow("no ranked replies", f"{row.location}: expected at least 2 ranked replies")
    prompt = [Message("user", text_of_node(question, row))]
    pair = [Message("assistant", text_of_node(node, row)) for node in (replies[0], replies[-1])]
    return _preference(row, prompt, [[*prompt, reply] for reply in pair])


def _read_implicit(row: Row) -> Preference:
    """Split off a prompt with which both replies begin: the same turns, or the same text.

    A prompt in a field of its own is compared with it.
    """
    pair = [turns_in(row.fields.get(name)) for name in _PAIR[:2]]
    if not all(len(turns) > 1 for turns in pair):
        if not isinstance(row.fields.get("chosen"), list):
            return _read_implicit_texts(row)
        pair = [turns_of(row, name) for name in _PAIR[:2]]
    prompt = pair[0][:-1]
    if not prompt or pair[1][:-1] != prompt:
        raise BadRow(
            "no prompt",
            f"{row.location}: there is no prompt: 'chosen' and 'rejected' have to begin with "
            "the same turns and to differ in the last one alone",
        )
    if prompt_fields(row):
        named = prompt_of(row)
        known = prompt if len(named) > 1 else [turn for turn in prompt if turn.role == "user"][-1:]
        if [turn.text.strip() for turn in named] != [turn.text.strip() for turn in known]:
            raise BadRow(
                "another prompt",
                f"{row.location}: 'prompt' is not the prompt with which 'chosen' and 'rejected' "
                "begin",
            )
    return _preference(row, prompt, pair)


def _read_implicit_texts(row: Row) -> Preference:
    texts = [text_field(row, name) for name in _PAIR[:2]]
    _check_unlike(row, *map(str.strip, texts))
    prefix = _shared_words(texts)
    if not prefix:
        raise BadRow(
            "no prompt",
            f"{row.location}: there is no prompt: 'chosen' and 'rejected' begin with no text in "
            f"common; there are {names(row.fields)}",
        )
    examples = []
    for name, text in zip(_PAIR[:2], texts, strict=True):
        parts = (prefix, text[len(prefix) :])
        if not parts[1].strip():
            raise BadRow(f"empty {name}", f"{row.location}: {name!r} has nothing after the prompt")
        examples.append(TrainingExample(row.location, content_key(parts), parts=parts))
    chosen, rejected = examples
    return Preference(content_key(prefix), chosen, rejected, _margin(row))


def _shared_words(texts: Sequence[str]) -> str:
    """The common beginning of texts, up to the last whole word; a word includes the space before
    it.
    """
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))
    shared = "".join(letter for letter, _ in alike)
    if not any(len(text) == len(shared) for text in texts):
        shared = re.sub(r"\S+$", "", shared) or shared
    return shared.rstrip(" ") if shared.strip() else ""


def _read_verdict(row: Row) -> Verdict:
    prompt, reply = prompt_of(row), _reply(row, "completion")
    place = f"{row.location}: completion behind its prompt"
    example = chat_example(row.location, [*prompt, reply], tools_of(row), place)
    return Verdict(_key(prompt), example, _label(row))


def _key(prompt: Sequence[Message]) -> str:
    return content_key(list(all_turns(prompt)))


def _check_unlike(row: Row, chosen: object, rejected: object) -> None:
    if chosen == rejected:
        raise BadRow(
            "equal replies",
            f"{row.location}: 'chosen' and 'rejected' are the same text, which is not a preference",
        )


def _margin(row: Row) -> float:
    value = row.fields.get("margin")
    if value is None or value == "":
        return 0.0
    try:
        margin = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError):
        margin = float("nan")
    if not 0 <= margin < float("inf"):
        raise BadRow(
            "bad margin",
            f"{row.location}: 'margin' is {shown(value)}, expected a number of 0 or more",
        )
    return margin


_LABELS = {"true": True, "1": True, "false": False, "0": False}


def _label(row: Row) -> bool:
    if "label" not in row.fields:
        raise BadRow(
            "no label",
            f"{row.location}: 'label' is missing; expected true for a good reply, false for a bad "
            f"one; there are {names(row.fields)}",
        )
    value = row.fields["label"]
    label = _LABELS.get(str(value).strip().lower())
    if label is None or isinstance(value, float):
        raise BadRow(
            "bad label", f"{row.location}: 'label' is {shown(value)}, expected true or false"
        )
    return label


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPair:
    """A preference as tokens. split_key: of its prompt."""

    chosen: Encoded
    rejected: Encoded
    key: str
    split_key: str
    margin: float = 0.0

    @property
    def content(self) -> bytes:
        return self.chosen.content + self.rejected.content + np.float64(self.margin).tobytes()

    @property
    def liked(self) -> Encoded | None:
        """The better reply."""
        return self.chosen

    @property
    def verdicts(self) -> "tuple[EncodedVerdict, ...]":
        """The chosen reply is a good one, the other a bad one."""
        return tuple(
            EncodedVerdict(reply, is_good, self.key, self.split_key)
            for reply, is_good in ((self.chosen, True), (self.rejected, False))
        )


@dataclass(frozen=True, slots=True, eq=False)
class EncodedVerdict:
    """A reply with a verdict, as tokens. split_key: of its prompt."""

    reply: Encoded
    desirable: bool
    key: str
    split_key: str

    @property
    def content(self) -> bytes:
        return self.reply.content + bytes([self.desirable])

    @property
    def liked(self) -> Encoded | None:
        """The reply, if it is a good one."""
        return self.reply if self.desirable else None

    @property
    def verdicts(self) -> "tuple[EncodedVerdict, ...]":
        return (self,)


EncodedFeedback = EncodedPair | EncodedVerdict


def encode_row(encoder: ExampleEncoder, row: FeedbackRow) -> list[EncodedFeedback]:
    """Feedback as tokens, alone in a list; its one prompt is cut for the longest reply if need be.

    Raises ExampleTooLong, and BadRow when the template refuses the chat.
    """
    sequences = [_last_reply(encoder.encode(e, sys.maxsize)[-1]) for e in row.examples]
    if max(len(sequence.ids) for sequence in sequences) <= encoder.length:
        return [row.encoded(sequences)]
    replies = [_reply_tokens(sequence) for sequence in sequences]
    order = np.argsort(replies)[::-1].tolist()  # the longest reply decides how it is cut
    for number in order:
        length = encoder.length - (max(replies) - replies[number])
        sequences[number] = _last_reply(encoder.encode(row.examples[number], length)[-1])
        if number == order[0]:
            counted = Counter(encoder.truncated), encoder.turns_left_out
    # A cut of both counts as one row.
    encoder.truncated, encoder.turns_left_out = counted
    return [row.encoded(sequences)]


PREFERENCES: RowKind[EncodedFeedback] = RowKind(FIELDS, detect_preference, encode_row)
FEEDBACK: RowKind[EncodedFeedback] = RowKind(FIELDS, detect_feedback, encode_row)
"""Verdicts, and preferences, each of which is two."""


def _last_reply(encoded: Encoded) -> Encoded:
    """The same with its earlier replies as prompt."""
    spans = encoded.spans.copy()
    first = len(spans) - _reply_tokens(encoded)
    spans[:first][spans[:first] == Span.RESPONSE] = Span.PROMPT
    return Encoded(encoded.ids, spans, encoded.key)


def _reply_tokens(encoded: Encoded) -> int:
    """Tokens of the last reply, which ends the sequence."""
    others = np.flatnonzero(encoded.spans != Span.RESPONSE)
    return len(encoded.spans) - (int(others[-1]) + 1 if len(others) else 0)
