"""A lecture: the steps of a lesson beside a chat of their own, which stays live."""

import asyncio
from collections.abc import Callable
from time import monotonic

from textual import on, work
from textual.app import ComposeResult

from chatapp.common.settings import Settings
from chatapp.dialogue.lessons.lesson import Lesson, Step, record_guess
from chatapp.dialogue.lessons.teaching import Workshop
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import Basis
from chatapp.engine.model import LanguageModel
from chatapp.tui import events
from chatapp.tui.chat.screen import ChatScreen
from chatapp.tui.conversation.model_loading import LoadRequest
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.view import Opening, Target
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.lesson_panel import OTHER_SIDE, LessonPanel

_SOON = 1.0
"""Seconds within which a second Esc leaves the lesson."""

_OFTEN = 0.03
"""Seconds between two looks at whether a model is loaded or a reply has ended."""


class LessonScreen(ChatScreen):
    """A lesson beside its chat.

    load: loads the first step's model; None loads it by name.
    """

    ALSO = (
        OTHER_SIDE,
        Action("Go to the messages", "ctrl+up", call="focus_last_message", name="messages"),
    )

    def __init__(
        self,
        settings: Settings,
        store: Store,
        load: Callable[[], LanguageModel] | None,
        lesson: Lesson,
    ) -> None:
        self._lesson = lesson
        self._workshop = Workshop(lesson)
        self._number = 0
        self._guesses: dict[int, str] = {}
        self._left = -_SOON
        self._model = lesson.model_of(lesson.steps[0])
        super().__init__(settings, store, load or self._loader(self._model), None)
        self._first_model = self._model
        self._wants_sidebar = False
        self._panel = LessonPanel()

    def compose(self) -> ComposeResult:
        yield self._panel
        yield from super().compose()

    def _after_first_frame(self) -> None:
        super()._after_first_frame()
        self._show_step()

    def on_unmount(self) -> None:
        self.end()

    def end(self) -> None:
        """End a training that runs."""
        self._workshop.close()

    def _loader(self, name: str) -> Callable[[], LanguageModel]:
        """Loads a model, and before that teaches it if the lesson does."""

        def load() -> LanguageModel:
            from chatapp.engine.models.loading import load_model

            chosen = self.conversation
            folder = self._workshop.folder(name, self._say)
            return load_model(folder, precision=chosen.precision, device=chosen.device)

        return load

    def _say(self, line: str) -> None:
        """Show a line of a training. Called on a thread."""
        self.app.call_from_thread(self.widgets.show_problem, f"Teaching: {line}")

    # Steps

    @property
    def _step(self) -> Step:
        return self._lesson.steps[self._number]

    @on(LessonPanel.Stepped)
    def _stepped(self, event: LessonPanel.Stepped) -> None:
        number = self._number + event.by
        if 0 <= number < len(self._lesson.steps):
            self._number = number
            self._show_step()
        else:
            self.widgets.inform("This is the last step." if event.by > 0 else "This is the first.")

    def _show_step(self) -> None:
        lesson, step, number = self._lesson, self._step, self._number
        name = f"{lesson.title} · {number + 1} of {len(lesson.steps)}"
        guess = self._guesses.get(number)
        self._panel.show(name, step.title, step.text, step.predict, guess)
        self._panel.focus()
        self._perform(step, waits=self._panel.waits)

    @on(LessonPanel.Revealed)
    async def _revealed(self, event: LessonPanel.Revealed) -> None:
        step = self._step
        if step.predict is not None and self._number not in self._guesses:
            self._guesses[self._number] = event.guess
            if event.guess:
                try:
                    await asyncio.to_thread(record_guess, self._lesson, step, event.guess)
                except OSError as error:
                    self.widgets.inform(f"The guess could not be saved: {error}.")
        self._perform(step, waits=False)

    @work(exclusive=True, group="lesson")
    async def _perform(self, step: Step, *, waits: bool) -> None:
        """Do on the live screen what a step shows; before a guess, show its text alone.

        waits: whether the outcome waits for a guess.
        """
        for inspector in self.query(Inspector):
            await inspector.remove()
        await self.controls.stop()
        self.commands.stop()
        await self.controls.open(None)
        self.widgets.prompt.empty()
        self._panel.focus()
        if not step.input:
            return
        if waits and not self._workshop.has_made(self._lesson.model_of(step)):
            return  # a training is a part of the step's outcome
        if not await self._has_model(self._lesson.model_of(step)):
            return
        conversation = self.conversation
        conversation.use_basis(Basis(prompt=self._lesson.prompt_file_of(step)))
        conversation.set_sampling(self._lesson.sampling_of(step))
        if conversation.session is not None and not step.cache:
            from chatapp.dialogue.lessons.outcome import afresh

            conversation.session.generate = afresh(conversation.session.model)
        elif conversation.session is not None:
            conversation.session.generate = None
        self.controls.models.show()
        if step.off:
            await self.commands.run(f"/ablate {step.off}")
            self.app.clear_notifications()  # the step says it, and so does the status line
        if waits or not step.reply:
            self.widgets.prompt.give_back(step.input)
        if waits:
            return
        if step.reply:
            await self.controls.send(events.Submitted(step.input))
            while conversation.turn is not None:
                await asyncio.sleep(_OFTEN)
        if step.view is not None:
            # Not what may have been typed meanwhile.
            target = Target() if step.reply else Target(draft=step.input)
            await self.mount(Inspector(conversation, target, _opening(step)))

    async def _has_model(self, name: str) -> bool:
        """Load a model unless it is loaded; False when that failed."""
        conversation = self.conversation
        if name != self._model:
            self._model = name
            self.widgets.status.state = "loading"
            self.widgets.status.model = name
            request = LoadRequest(self._loader(name), conversation.precision)
            conversation.load_other(request)
        while conversation.session is None and conversation.loading is not None:
            await asyncio.sleep(_OFTEN)
        if conversation.session is None:
            self._model = ""  # the next step tries again
            return False
        self.widgets.show_problem("")
        return True

    def action_sidebar(self) -> None:
        """Nothing: a lesson's chats are gone with it, and the lesson stands in their place."""

    # Keys

    def action_other_side(self) -> None:
        """Go from the lesson to the open inspector, from there to the prompt, and back."""
        inspector = self.widgets.inspector
        if self._panel.has_focus and inspector is not None:
            inspector.focus_view()
        elif self._panel.has_focus or (
            inspector is not None and inspector.has_focus_within and not inspector.is_over
        ):
            self.widgets.prompt.focus()
        else:
            self._panel.focus()

    async def action_stop(self) -> None:
        """Stop what runs; from the live screen go back to the lesson; twice there, leave it."""
        if not self._panel.has_focus:
            was_idle = self.widgets.prompt.has_focus and self.conversation.turn is None
            await super().action_stop()
            if was_idle and not self.widgets.prompt.text:
                self._panel.focus()
            return
        now = monotonic()
        if await self.controls.stop():
            return
        if now - self._left < _SOON:
            await self._leave()
        else:
            self._left = now
            self.widgets.inform("Esc again leaves the lesson.")

    async def _leave(self) -> None:
        self.end()
        self.conversation.close(0)
        if self.app.screen_stack[0] is self:
            await self.app.run_action("app.quit")
        else:
            self.conversation.chat.close()
            self.app.pop_screen()


def _opening(step: Step) -> Opening:
    layer, _, head = (step.head or "").partition(".")
    assert step.view is not None
    return Opening(step.view, step.position, (int(layer), int(head)) if head else None)
