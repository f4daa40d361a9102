"""What a step of a lesson shows."""

from functools import cached_property
from typing import TYPE_CHECKING, cast

from chatapp.common.userfiles import UserError
from chatapp.dialogue.chat import Chat
from chatapp.dialogue.lessons.lesson import Lesson, Step
from chatapp.dialogue.reading import draft, read
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import Basis
from chatapp.engine.decoder.interventions import parse_parts, switched_off
from chatapp.engine.events import Finished, Token
from chatapp.engine.generation import LocalGenerator
from chatapp.engine.model import Generate, Request
from chatapp.lab.heads import own_decoder
from chatapp.lab.inspectable import inspectable
from chatapp.lab.views.attention_views import Attention
from chatapp.lab.views.head_views import HeadScores, score_heads
from chatapp.lab.views.part_views import Why, ask
from chatapp.lab.views.text_views import NextToken

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.inspectable import Inspectable
    from chatapp.lab.predictions import Candidate
    from chatapp.lab.traces import Trace


class StepOutcome:
    """The outcome of a step with a prompt or a message.

    reply: the model's; "" without one. ids: the tokens of the text before it.
    """

    def __init__(self, lesson: Lesson, step: Step, model: "LanguageModel") -> None:
        """Raises UserError for a model without the named parts."""
        self._step, self._model = step, model
        chat = Chat(Store(None), basis=Basis(prompt=lesson.prompt_file_of(step)))
        if step.off:
            parts = parse_parts(step.off, own_decoder(model).decoder.architecture)
            chat.interventions = switched_off(parts)
        self._changes = chat.interventions
        session = Session(chat, model, generate=None if step.cache else afresh(model))
        session.sampling = lesson.sampling_of(step)  # also in place of a prompt file's
        try:
            if step.reply:
                for _ in session.say(step.input):
                    pass
                reading = read(session, chat.messages[-1].id)
            else:
                reading = draft(session, step.input)
            self._sampling = session.sampling
        finally:
            chat.close()
            chat.store.close()
        self.reply = "" if reading.reply is None else reading.reply.text
        self.ids, self._reply_ids = reading.prompt.ids, reading.reply_ids
        self.examples = len(reading.prompt.shots)

    @cached_property
    def _inside(self) -> "Inspectable":
        opened = inspectable(self._model)
        if opened is None:
            raise UserError(f"{self._model.name}: this model cannot be inspected")
        return opened

    @cached_property
    def trace(self) -> "Trace":
        """What the model computed for the text with the reply."""
        return self._inside.inspect(self.ids, self._changes, self._reply_ids)

    @cached_property
    def next(self) -> NextToken:
        """The distribution after the text, before and after the sampling parameters."""
        return NextToken.of(self._inside.stepper(self.ids, self._sampling, self._changes))

    @cached_property
    def slower(self) -> float:
        """How many times as long the reply's tokens after the first take without the cache. Raises
        UserError where they are not the same."""
        request = Request(self.ids, self._sampling, interventions=self._changes)
        (cached, own), (whole, others) = map(
            _timed, (self._model.generate, afresh(self._model)), [request] * 2
        )
        if own != others:
            raise UserError("without the cache the reply has other tokens")
        return whole / cached

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The tokens of the text."""
        return self.trace.texts[: len(self.ids)]

    @cached_property
    def position(self) -> int:
        """The place of the chosen token. Raises UserError where the text has no such token."""
        place = self._step.position(self.texts)
        if place is None:
            raise UserError(f"the text has no token {self._step.token!r}")
        return place

    def probability(self, token: str) -> float:
        """The probability of a token after the text. Raises UserError where it is not one token."""
        ids = self._model.tokenizer.encode(token, begins=False)
        if len(ids) != 1:
            raise UserError(f"{token!r} is {len(ids)} tokens, not one")
        with_it = self._inside.inspect(self.ids, self._changes, ids)
        actual = with_it.predictions(1)[-2].actual
        return cast("Candidate", actual).probability

    def weight(self, token: str) -> float:
        """The chosen token's largest weight on a token before it with that text, by the chosen
        head or as the mean of all.
        """
        place = map(int, self._step.head.split(".")) if self._step.head else ()
        attention = Attention.of(self.trace, self.position, *place)
        places = [at for at, text in enumerate(attention.texts[:-1]) if text == token]
        return max((attention.weights[place] for place in places), default=0.0)

    def likeliest(self, layer: str) -> str:
        """The likeliest token after a layer, or after the embeddings (`embed`), at the chosen
        token.
        """
        index = 0 if layer == "embed" else int(layer) + 1
        return self.trace.lens(self.position, 1)[index].candidates[0].text

    def induction(self, head: str) -> float:
        """A head's induction score on random tokens."""
        layer, _, number = head.partition(".")
        return float(self._scores.values["induction"][int(layer), int(number)])

    @cached_property
    def _scores(self) -> HeadScores:
        return score_heads(self._model)

    @cached_property
    def shares(self) -> dict[str, float]:
        """The share of each part in the difference of the two likeliest tokens after the text."""
        why = Why.of(ask(self._model, self.ids, interventions=self._changes), effects=False)
        return {part.name: part.share for part in why.components}


def afresh(model: "LanguageModel") -> Generate:
    """Draws replies without the cache. Raises UserError for a model that is computed elsewhere."""
    if not isinstance(model, LocalGenerator):
        raise UserError(f"{model.name}: its cache is not in this process")
    return model.generate_afresh


def _timed(generate: Generate, request: Request) -> tuple[float, list[int]]:
    """The seconds after the first token, and the tokens."""
    *tokens, end = generate(request)
    assert isinstance(end, Finished)
    ids = [token.id for token in tokens if isinstance(token, Token)]
    return end.seconds - end.time_to_first_token, ids
