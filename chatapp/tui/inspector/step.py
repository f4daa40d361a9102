"""The inspector's tab that generates a reply one token at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.events import Resize
from textual.widgets import OptionList, Static

from chatapp.common.foreign import printable
from chatapp.common.shading import bar, percent
from chatapp.engine.model import Sampling
from chatapp.lab.view import View
from chatapp.lab.views.text_views import NextToken
from chatapp.tui.inspector.token_choice import TokenText, likelihood_legend, padded, surprise
from chatapp.tui.inspector.view import ALTERNATIVES, Branch, Compute, InspectorTab, Look
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.dialog import MarkedOptions

if TYPE_CHECKING:
    from chatapp.lab.predictions import Candidate, Stepper
    from chatapp.tui.conversation.conversation import Conversation

_STEPS: dict[str, tuple[float, ...]] = {
    "temperature": (*(tenth / 10 for tenth in range(16)), 2.0, 3.0, 5.0),
    "top_k": (0, 1, 2, 3, 5, 10, 20, 40, 100, 200, 500),
    "top_p": (*(twentieth / 20 for twentieth in range(1, 20)), 0.99, 1.0),
    "min_p": (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
}
_PAUSE = 0.15
"""Seconds between two tokens while it plays."""
_CONTEXT = 40
"""Tokens of the prompt shown before the new ones."""


@dataclass(frozen=True)
class GenerationStep:
    """The state of a generation. next: the possible next tokens; None when it is over."""

    taken: "tuple[Candidate, ...]"
    next: NextToken | None


def stepped(value: float, steps: tuple[float, ...], direction: int) -> float:
    """The next step above or below a value, or the value itself at the end."""
    if direction > 0:
        return next((step for step in steps if step > value), value)
    return next((step for step in reversed(steps) if step < value), value)


class LazyStepper:
    """A stepper that is created on first use. For threads."""

    def __init__(self, look: Look, sampling: Sampling) -> None:
        assert look.model is not None
        self._model, self._prompt = look.model, look.tokens.ids[: look.start]
        self._sampling, self._changes = sampling, look.changes
        self._constraint = look.constraint
        self._stepper: Stepper | None = None

    def after(self, change: "Callable[[Stepper], object]") -> GenerationStep:
        """The state after a change. A finished generation stays unchanged."""
        if self._stepper is None:
            self._stepper = self._model.stepper(
                self._prompt, self._sampling, self._changes, constraint=self._constraint
            )
        stepper = self._stepper
        change(stepper)
        after = None if stepper.is_over else NextToken.of(stepper, ALTERNATIVES)
        return GenerationStep(tuple(stepper.taken), after)


class StepView(InspectorTab):
    """The next token's distribution before and after the cut, and the token taken from it."""

    BINDING_GROUP_TITLE = "Inspector: step by step"
    DEFAULT_CSS = """
    StepView TokenText { border-top: solid $border-blurred; }
    StepView #step-sentence { height: auto; max-height: 3; }
    """
    formula = NextToken.formula
    hint = "Space samples · Enter takes it · Backspace undoes · p plays · ← → + - set, k keeps"

    def legend(self) -> Content:
        return likelihood_legend(self.app.native_ansi_color)

    def __init__(self, conversation: "Conversation", *, id: str | None = None) -> None:
        super().__init__(conversation, id=id)
        self._stepper: LazyStepper | None = None
        self._step = GenerationStep((), None)
        self._parameter = "temperature"
        self._sampling = Sampling()
        self._is_playing = False

    def compose(self) -> ComposeResult:
        yield Static(id="step-sentence", markup=False)
        yield TokenText(id="step-text")
        yield Static(id="step-parameters", markup=False)
        yield MarkedOptions(id="step-candidates")

    def on_unmount(self) -> None:
        self._stepper = None

    def views(self) -> Sequence[View]:
        return [] if self._step.next is None else [self._step.next]

    def show(self, look: Look) -> None:
        self._look = look
        self._is_playing = False
        self._sampling = self._conversation.choices.sampling
        self._step = GenerationStep((), None)
        self._stepper = None
        self.query_one(MarkedOptions).show([])
        self.query_one(TokenText).show((), 0)
        if look.model is None:
            self._failed(look.reason)
            return
        self._stepper = LazyStepper(look, self._sampling)
        self._change(lambda stepper: None)

    def take_focus(self) -> None:
        self.query_one(MarkedOptions).focus()

    def on_hide(self) -> None:
        self._is_playing = False

    def _change(self, change: "Callable[[Stepper], object]") -> None:
        stepper = self._stepper
        if stepper is None:
            return

        def arrived(step: GenerationStep) -> None:
            if stepper is self._stepper:
                self._arrived(step)

        self.post_message(Compute(lambda: stepper.after(change), arrived, self._failed))

    def _failed(self, reason: str) -> None:
        self._is_playing = False
        words = Content.styled(printable(reason), "dim")
        self.query_one("#step-sentence", Static).update(words)

    def _arrived(self, step: GenerationStep) -> None:
        self._step = step
        start = self._look.start
        context = self._look.tokens.texts[max(0, start - _CONTEXT) : start]
        texts = [*context, *(candidate.text for candidate in step.taken)]
        paints = [surprise(candidate.probability) for candidate in step.taken]
        text = self.query_one(TokenText)
        text.show(texts, len(texts) - 1)
        text.paint([*[None] * len(context), *paints])
        self._show_parameters()
        self._list()
        if step.next is None:
            self._is_playing = False
        if self._is_playing:
            self.set_timer(_PAUSE, self._play_on)

    def _show_parameters(self) -> None:
        """Show the parameters, and their effect on the distribution."""
        parts = []
        for name in _STEPS:
            value = f" {name.replace('_', '-')} {getattr(self._sampling, name):g} "
            chosen = name == self._parameter
            parts.append(Content.styled(value, "reverse" if chosen else "dim"))
        after = self._step.next
        ended = "The reply has ended. Backspace undoes the last token."
        words = ended if after is None else after.reading
        state = "▶ " if self._is_playing else ""
        lines = [Content("").join(parts)]
        if after is not None:
            constraint = " and the constraint" if after.cut.limit else ""
            words_below = f"the model's own probabilities → with these settings{constraint}"
            lines.append(Content.styled(words_below, "dim"))
        self.query_one("#step-parameters", Static).update(Content("\n").join(lines))
        sentence = Content.styled(f"{state}{words}", "$text-accent")
        self.query_one("#step-sentence", Static).update(sentence)

    @on(Resize)
    def _list(self) -> None:
        choices = self.query_one(MarkedOptions)
        lines: list[tuple[str, Content]] = []
        size = max(2, (self.size.width - 46) // 2)
        if self._step.next is not None:
            cut = self._step.next.cut
            for candidate, drawn in zip(cut.before.candidates, cut.drawn, strict=True):
                probability = candidate.probability
                left = percent(drawn) if drawn else "  cut"
                line = Content.assemble(
                    f"{candidate.rank:>2} ", padded(candidate.text), f" {percent(probability)} ",
                    (bar(probability, size), "dim"), f" → {left} {bar(drawn, size)}",
                )  # fmt: skip
                lines.append((str(candidate.id), line if drawn else line.stylize("dim")))
        choices.show(lines, choices.highlighted or 0)

    @Action("Sample one token", "space", name="draw_token")
    def action_draw(self) -> None:
        self._is_playing = False
        self._draw()

    def _draw(self) -> None:
        if self._step.next is not None:
            self._change(lambda stepper: None if stepper.is_over else stepper.draw())

    def _play_on(self) -> None:
        if self._is_playing:
            self._draw()

    @Action("Sample token after token, or pause", "p")
    def action_play(self) -> None:
        self._is_playing = not self._is_playing and self._step.next is not None
        self._show_parameters()
        self._play_on()

    @Action("Undo the last token", "backspace", name="undo_token")
    def action_back(self) -> None:
        self._is_playing = False
        self._change(lambda stepper: stepper.back())

    @Action("Previous setting", "left", call="parameter(-1)", name="previous_setting")
    @Action("Next setting", "right", call="parameter(1)", name="next_setting")
    def action_parameter(self, step: int) -> None:
        names = list(_STEPS)
        self._parameter = names[(names.index(self._parameter) + step) % len(names)]
        self._show_parameters()

    @Action("Raise the setting", "plus,equals_sign", call="change(1)", name="raise_setting")
    @Action("Lower the setting", "minus", call="change(-1)", name="lower_setting")
    def action_change(self, direction: int) -> None:
        name = self._parameter
        value = stepped(getattr(self._sampling, name), _STEPS[name], direction)
        sampling = replace(self._sampling, **{name: value})  # type: ignore[arg-type]
        self._sampling = sampling
        self._change(lambda stepper: stepper.draw_by(sampling))

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._is_playing = False
        id = int(str(event.option_id))
        self._change(lambda stepper: None if stepper.is_over else stepper.choose(id))

    @Action("Keep these tokens and continue them as another version", "k", name="keep_tokens")
    def action_keep(self) -> None:
        if self._look.message is None:
            self.notify("There is no reply here to make another version of.", markup=False)
        elif not self._step.taken:
            self.notify("No token has been sampled yet.", markup=False)
        else:
            begin = tuple(candidate.id for candidate in self._step.taken)
            self.post_message(Branch(self._look.message.id, begin))
