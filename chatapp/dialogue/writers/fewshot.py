"""A chat with a prompt file: each message is inserted into its fields, after demonstrations.

A file whose demonstrations are fixed begins a dialogue, which the chat continues. A file with
demonstrations chosen by input, or with labels, is a task: each message is a separate input, and
labels are the only replies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from chatapp.common.shading import percent
from chatapp.dialogue.writers.prompt import Exchange, Label, Prompt, Shot, Writer
from chatapp.engine.encoding import without_start
from chatapp.engine.errors import ModelError
from chatapp.engine.model import LanguageModel, Sampling
from chatapp.prompting import messages
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import Message, Segment, set_apart
from chatapp.prompting.template import PLAIN
from chatapp.rows.examples import Example, PromptError, item_of
from chatapp.rows.reading import RowsError
from chatapp.tasks.answering import Answerer, Question, constraint_of, sampling_of
from chatapp.tasks.files.layout import (
    Demonstration,
    Fitted,
    Layout,
    TurnsLayout,
    demonstrations,
    layout_of,
)
from chatapp.tasks.files.library import find
from chatapp.tasks.files.promptfile import Persona, PromptFile, load_for_chat, selector_for
from chatapp.tasks.selection.methods import Selector

_MOST_LABELS = 4


class FewShotWriter(Writer):
    """Writes chats in the layout of a prompt file.

    selector: chooses from the file's pool; None shows no demonstrations. template: renders turns.
    """

    def __init__(
        self,
        model: LanguageModel,
        name: str,
        prompt: PromptFile,
        selector: Selector | None,
        template: ChatTemplate,
    ) -> None:
        super().__init__(model)
        self.name = name
        self.prompt = prompt
        # Whatever the scoring of labels, the shown prompt has the normal layout.
        self._prompt = replace(prompt, scoring="direct")
        self._template = template
        self.stop = self._layout(self._prompt).stop
        self.documents = prompt.documents
        self.calls, self.tool_choice = prompt.calls, "own"
        self.constraint = constraint_of(prompt)
        self._selector = selector
        method = prompt.select.selector
        self.goes_on = not (method.ranks or method.draws or prompt.labels)
        self.prefix, self.ends_anywhere = prompt.input_prefix, not prompt.output_prefix

    @classmethod
    def open(
        cls, model: LanguageModel, name: str, template: ChatTemplate = PLAIN
    ) -> "FewShotWriter":
        """Open the writer for the chat's prompt file of this name.

        It may take long, because a pool is read and encoded. Raises PromptError when the file, or
        its encoder, cannot be used.
        """
        prompt = load_for_chat(find(name))
        if isinstance(prompt, Persona):
            raise PromptError(f"{prompt.path}: is a persona, expected a prompt file")
        return cls.of(model, name, prompt, template)

    @classmethod
    def of(
        cls, model: LanguageModel, name: str, prompt: PromptFile, template: ChatTemplate
    ) -> "FewShotWriter":
        """The writer for a loaded prompt file (see `open`)."""
        try:
            return cls(model, name, prompt, selector_for(prompt, model), template)
        except ModelError as error:
            raise PromptError(f"{prompt.path}: {error}") from None

    def sampling(self, base: Sampling) -> Sampling:
        """The file's sampling parameters; missing ones are those of `base`."""
        return sampling_of(self._prompt, base)

    def write(
        self, system: str | None, exchanges: Sequence[Exchange], *, max_tokens: int
    ) -> Prompt:
        *history, newest = exchanges
        prompt, window = self._prompt, self._model.context
        if system is not None:
            prompt = replace(prompt, instruction=system.strip())
        layout = self._layout(prompt)
        begun = self._replied(newest)
        full_message = newest.full_message
        bare = layout.render([], full_message)
        alone = self._count(bare)
        room = window - alone - self._count(begun)
        self._check_room(bare, room, begun=bool(begun))
        reserve = min(max_tokens, window // 4)
        # A message without an answer is not an example.
        answered = [
            (place, Example(exchange.user, exchange.reply))
            for place, exchange in enumerate(history)
            if exchange.reply and self.goes_on
        ]
        costs = [
            self._count(layout.render([], full_message, [turn])) - alone for _, turn in answered
        ]
        # The chat so far may take up to half of the demonstrations' room.
        for_turns = min(max(0, room - reserve) // 2, sum(costs))
        limit = window - reserve - self._count(begun) - for_turns
        chosen = self._choose(newest.user)
        fitted = self._fit(layout, list(chosen), full_message, limit)
        shown = self._count([*layout.render(fitted.kept, full_message), *begun])
        turns = messages.fit(
            window=window, instructions=0, history=costs, newest=shown, reserve=reserve
        )
        kept_turns = [turn for _, turn in answered[turns.dropped :]]
        rendered = set_apart(layout.render(fitted.kept, full_message, kept_turns), newest.passages)
        segments = (*without_start(rendered, self._model), *begun)
        shots = [chosen[index] for index in fitted.kept]
        question = Question(item_of(newest.user), list(segments), shots, [], newest.passages)
        return Prompt(
            segments,
            self._tokens(segments),
            dropped=answered[turns.dropped - 1][0] + 1 if turns.dropped else 0,
            shots=self._shots(shots),
            dropped_shots=self._shots(chosen[index] for index in fitted.dropped),
            choose=partial(self._label, prompt, question) if prompt.labels and not begun else None,
            messages=() if begun else self._sent(layout, fitted.kept, full_message, kept_turns),
            opening=tuple(
                TurnsLayout(prompt, self._template).messages(fitted.kept, full_message)[:-1]
            ),
        )

    def render_instruction(self, system: str | None) -> list[Segment]:
        text = self._prompt.instruction if system is None else system.strip()
        return [Segment("instruction", text)] if text else []

    def render_reply(self, reply: str) -> list[Segment]:
        return self._layout(self._prompt).answer(reply)

    def _layout(self, prompt: PromptFile) -> Layout:
        return layout_of(prompt, self._template)

    def _sent(
        self, layout: Layout, ranked: Sequence[int], query: str, turns: Sequence[Example]
    ) -> tuple[Message, ...]:
        """The messages for a server that renders turns itself; none for other models."""
        if isinstance(layout, TurnsLayout) and self._model.takes_messages:
            return tuple(layout.messages(ranked, query, turns))
        return ()

    def _label(self, prompt: PromptFile, question: Question) -> Label | None:
        """The answer to a question; None for a model that cannot score, which then generates it."""
        scored = replace(prompt, scoring=self.prompt.scoring)
        try:
            answerer = Answerer(self._model, scored, None, template=self._template)
            (answer,) = answerer.answer([question])
        except ModelError:
            return None
        ids = self.reply_ids(answer.output)
        likeliest = sorted(answer.probabilities.items(), key=lambda item: -item[1])[:_MOST_LABELS]
        remark = " · ".join(f"{label} {100 * share:.1f}%" for label, share in likeliest)
        if among_all := sum(answer.of_vocabulary.values()):
            remark += f"; all labels together {percent(among_all).strip()} of the vocabulary"
        return Label(tuple(ids), remark)

    def _choose(self, query: str) -> dict[int, Demonstration]:
        try:
            return demonstrations(self._prompt, self._selector, query)
        except ModelError as error:
            raise PromptError(f"{self._prompt.path}: {error}") from None

    def _fit(self, layout: Layout, ranked: list[int], query: str, limit: int) -> Fitted:
        try:
            return layout.fit(ranked, query, lambda part: self._count([part]), limit)
        except RowsError:  # the message leaves the reply less room than it should have
            return Fitted([], ranked, 0)

    def _shots(self, chosen: Iterable[Demonstration]) -> tuple[Shot, ...]:
        pool = self._prompt.pool
        return tuple(
            Shot(pool.inputs[shot.index], pool.outputs[shot.index], shot.similarity)
            for shot in chosen
        )
