"""Greedy replies to the prompts of rows: what a run shows while it learns, what eval counts.

Keep: a prompt is the row's own tokens up to its last response, so a reply is asked for exactly
where the row was trained; and a generation that failed is told as such, never taken for a reply.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from chatapp.engine.events import Event, Finished
from chatapp.engine.model import LanguageModel, Request, Sampling, Tokenizer, whole_replies
from chatapp.prompting.chat_template import Template
from finetune.data.chats import Span
from finetune.data.encoding import Encoded, last_response
from finetune.objective_settings import GrpoSettings, Objectives


@dataclass(frozen=True, slots=True)
class Question:
    """The prompt of a row's last response. ids: its tokens. text: what the user wrote."""

    ids: list[int]
    text: str
    reference: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said. error: why the generation broke off, or nothing. reward: None where
    nothing gives one."""

    text: str
    error: str = ""
    reward: float | None = None

    def __str__(self) -> str:
        text = self.text if self.reward is None else f"[{self.reward:.3g}] {self.text}"
        return f"{text} (the reply failed: {self.error})".strip() if self.error else text


def questions(
    examples: Sequence[Encoded], tokenizer: Tokenizer, context: int, skip: int = 0
) -> Iterator[Question]:
    """The questions of rows, in their order; of each row the last.

    A plain text asks nothing and is left out, as is a prompt that fills the window.
    skip: tokens at the start of a row that the model puts there itself.
    """
    for example in examples:
        ids, spans = example.ids[skip:], example.spans[skip:]
        response = last_response(spans)
        first = response.start
        if 0 < first < context:
            yield Question(
                ids[:first].tolist(),
                tokenizer.decode(ids[:first][spans[:first] == Span.PROMPT].tolist()).strip(),
                tokenizer.decode(ids[response].tolist()).strip(),
            )


def stops(template: Template, objective: Objectives) -> tuple[str, ...]:
    """What ends a reply: the template's texts, and those that the replies were learnt with."""
    own = objective.stop if isinstance(objective, GrpoSettings) else ()
    return (*template.stop, *own)


def greedy_replies(
    model: LanguageModel, stop: Sequence[str], prompts: Iterable[Sequence[int]], max_tokens: int
) -> Iterator[Reply]:
    """To each prompt the most probable next token again and again, until the reply ends.

    stop: see `stops`.
    """
    greedy = Sampling(temperature=0.0, max_tokens=max_tokens)
    requests = (Request(ids, greedy, stop) for ids in prompts)
    for text, finished in whole_replies(model.generate_many(requests)):
        yield whole_reply([replace(finished, text=text)])


def whole_reply(events: Iterable[Event]) -> Reply:
    """The reply that a generation makes, without the space around it."""
    texts, error = [], ""
    for event in events:
        texts.append(event.text)
        if isinstance(event, Finished) and event.reason == "error":
            error = event.message or "no reason was given"
    return Reply("".join(texts).strip(), error)
