"""A prompt file as turns of a dialogue, its demonstrations as exchanges.

The instruction is the system message, each input with its prefix (or as `query` lays it out) a
user's message, and each output the reply to it. The other keys of a layout (output prefix,
separator) do not apply.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import Message, Segment, text_of
from chatapp.prompting.thinking import ends_in_thought
from chatapp.rows.examples import Example, PromptError, Query, item_of
from chatapp.tasks.files.form import fill
from chatapp.tasks.files.layout import Fitted, TextLayout, arrange
from chatapp.tasks.files.promptfile import PromptFile


class TurnsLayout:
    """Lays out a prompt file in turns, with the methods of `layout.TextLayout`.

    template: renders the turns. A thinking model is asked not to think, because the label or output
    is expected at the beginning of the reply.
    """

    def __init__(self, prompt: PromptFile, template: ChatTemplate) -> None:
        self._prompt = prompt
        if template.switch:
            template = replace(template, thinking=False)
        self._template = template
        self.stop = (*prompt.stop, *template.stop)

    def messages(
        self, ranked: Sequence[int], query: Query, turns: Sequence[Example] = ()
    ) -> list[Message]:
        """The chat that asks for the output of `query`; for ranked and turns see
        `layout.render`."""
        prompt = self._prompt
        opens = bool(prompt.instruction) and not prompt.form.places_instruction
        chat = [Message("system", prompt.instruction)] if opens else []
        shots = [prompt.pool[index] for index in arrange(ranked, prompt.select)]
        for example in (*shots, *turns):
            chat.append(Message("user", self.render_query(example)))
            chat.append(Message("assistant", example.output.strip()))
        return [*chat, Message("user", self.render_query(query))]

    def render(
        self, ranked: Sequence[int], query: Query, turns: Sequence[Example] = ()
    ) -> list[Segment]:
        segments = self._template.render(self.messages(ranked, query, turns))
        marks = self._template.marks
        if marks is not None and ends_in_thought(segments, marks):
            special = marks.end in self._template.special
            end = Segment("special" if special else "marker", marks.end)
            segments += [end, Segment("marker", "\n\n")]
        return segments

    def answer(self, output: str) -> list[Segment]:
        return self._template.reply(output.strip())

    def after_answer(self) -> Segment:
        return self._template.end

    def render_query(self, query: Query) -> str:
        form = self._prompt.form
        parts = fill(form.turn, item_of(query), form, self._prompt.instruction, "user", "assistant")
        return text_of(parts).strip()

    def fit(
        self, ranked: Sequence[int], query: Query, count: Callable[[Segment], int], limit: int
    ) -> Fitted:
        count = functools.cache(count)
        possible = item_of(query).choices or self._prompt.labels
        answers = [self.answer(answer) for answer in possible]
        longest = max((sum(map(count, answer)) for answer in answers), default=0)

        def size(kept: Sequence[int]) -> int:
            return longest + sum(map(count, self.render(kept, query)))

        kept = list(ranked)
        if (tokens := size(kept)) > limit:
            alone = size([])
            if alone > limit:
                raise PromptError(
                    f"{self._prompt.path}: the instruction and the input alone take {alone} "
                    f"tokens, and there is room for {limit}"
                )
            kept = [index for index in ranked if size([index]) <= limit]
            while (tokens := size(kept)) > limit:
                kept.pop()
        left = set(ranked) - set(kept)
        return Fitted(kept, [index for index in ranked if index in left], tokens)


Layout = TextLayout | TurnsLayout
"""The layout for the `style` of a prompt file."""


def layout_of(prompt: PromptFile, template: ChatTemplate) -> Layout:
    """The layout of a prompt file. template: renders turns."""
    return TurnsLayout(prompt, template) if prompt.style == "turns" else TextLayout(prompt)
