"""The inspector: input, predictions and attention of the model, next to the chat or over it.

Invariant: nothing is computed on the event loop. Views post a `Compute`, which runs on a thread as
soon as no reply is being generated, and only the newest result is shown.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.widgets import ContentSwitcher, Static

from chatapp.common.foreign import printable
from chatapp.common.userfiles import reason
from chatapp.engine.models.resolving import step_beside, step_of
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.inspector.head_tabs import AttentionView, HeadsView, WhyView
from chatapp.tui.inspector.patching_tab import CompareView
from chatapp.tui.inspector.step import StepView
from chatapp.tui.inspector.tabs import LayersView, PromptView, TokensView
from chatapp.tui.inspector.token_choice import HeatMap, TokenText
from chatapp.tui.inspector.view import (
    CloserView,
    CloseUpView,
    Compute,
    InspectorTab,
    Look,
    LookCloser,
    Opening,
    Target,
    look,
)
from chatapp.tui.platform.actions import Acting, Action
from chatapp.tui.platform.runtime import in_words
from chatapp.tui.widgets.dialog import Notice
from chatapp.tui.widgets.rendered import in_rows

BESIDE_FROM = 120
"""The least number of terminal columns for the inspector next to the chat."""

_TALL_FROM = 24
"""The least number of rows for all lines below the tab."""

_MORE = "s saves this as a page and a picture · x: an example · Shift+← → other steps of a run"

_TABS = ("prompt", "tokens", "why", "attention", "heads", "layers", "compare", "step")


@dataclass
class UseStep(Message):
    """The user wants to look at the model of another step of the run."""

    model: str


class Inspector(Acting, Vertical, can_focus=True):
    """Shows the inside of the model for one message."""

    BINDING_GROUP_TITLE = "Inspector"
    ALSO = (
        *(
            Action(f"Inspector: {name}", str(number), call=f"tab('{name}')", name=f"tab_{name}")
            for number, name in enumerate(_TABS, start=1)
        ),
    )
    SCOPED_CSS = False
    DEFAULT_CSS = """
    Inspector {
        dock: right;
        width: 50%;
        height: 100%;
        background: $background;
        border-left: outer $border-blurred;
        padding: 0 1;
        &:focus-within { border-left: outer $accent; }
        &:ansi { border-left: vkey ansi_default; }
    }
    #inspector-tabs { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #inspector-about, #inspector-legend { height: auto; max-height: 2; }
    #inspector-about, #inspector-legend, #inspector-keys { color: $text-muted; }
    #inspector-keys { height: auto; max-height: 4; }
    #inspector-formula { height: auto; max-height: 12; display: none; }
    Inspector.-failed > #inspector-about { max-height: 100%; margin-top: 1; }
    Inspector ContentSwitcher { height: 1fr; }
    Inspector InspectorTab { height: 100%; }
    Inspector TokenText, Inspector HeatMap, Inspector VerticalScroll, Inspector OptionList {
        scrollbar-size-vertical: 1;
        scrollbar-background: $background;
        scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
        scrollbar-color: $border-blurred;
    }
    #tokens-detail, #layers-detail, #step-parameters {
        height: auto; max-height: 6; border-top: solid $border-blurred;
    }
    Inspector OptionList { height: 1fr; overflow-x: hidden;
        background: $background; background-tint: transparent; }
    ChatScreen { layers: default over; }
    Inspector.-over { layer: over; width: 100%; border-left: none; }
    """

    @dataclass
    class _Answer(Message):
        """A `Compute` has its result, or in words why there is none."""

        number: int

    class Closed(Message):
        """The user closes the inspector."""

    def __init__(
        self, conversation: Conversation, target: Target, opening: Opening | None = None
    ) -> None:
        super().__init__()
        self._opening = opening
        self._conversation = conversation
        self._target = target
        self._is_example = False
        self._chosen: int | None = None
        self._shown: Look | None = None
        self._up_to_date: set[InspectorTab] = set()
        self._numbers = count(1)
        self._newest: dict[str, int] = {}
        # Not in the messages: Textual keeps those of a closed inspector, and they keep the model.
        self._requests: dict[int, Compute] = {}
        self._results: dict[int, tuple[Any, str | None]] = {}
        self._opened_from = "tokens"

    def compose(self) -> ComposeResult:
        yield Static(id="inspector-tabs")
        yield Static(id="inspector-formula", markup=False)
        with ContentSwitcher(initial=self._opening.tab if self._opening else "tokens"):
            yield PromptView(self._conversation, id="prompt")
            yield TokensView(self._conversation, id="tokens")
            yield WhyView(self._conversation, id="why")
            yield AttentionView(self._conversation, id="attention")
            yield HeadsView(self._conversation, id="heads")
            yield LayersView(self._conversation, id="layers")
            yield CompareView(self._conversation, id="compare")
            yield StepView(self._conversation, id="step")
            yield CloseUpView(self._conversation, id="close-up")
        yield Notice(id="inspector-legend")
        yield Static(id="inspector-about", markup=False)
        yield Static(id="inspector-keys", markup=False)

    def on_mount(self) -> None:
        self._fit()
        if self._opening is None:
            self.screen.set_focus(self)  # at once: the target may arrive first
        elif self._opening.head is not None:
            for heat in self._view.query(HeatMap):
                heat.cell = self._opening.head
        self.query_one(ContentSwitcher).display = False
        self._show_tabs()
        self.look_at(self._target)

    def on_resize(self, event: Resize) -> None:
        self._fit()
        self.call_after_refresh(self._show_tabs)

    def on_unmount(self) -> None:
        self._shut_out(False)
        self._requests.clear()
        self._results.clear()
        if self._shown is not None:
            self._shown.close()

    def _fit(self) -> None:
        """Cover the chat if there is no room next to it."""
        self.set_class(self.is_over, "-over")
        self.set_class(self.app.size.height < _TALL_FROM, "-low")
        self._shut_out(self.is_over)

    def _shut_out(self, over: bool) -> None:
        """Keep the focus out of covered widgets, which those aside are not."""
        for sibling in self.screen.children:
            if sibling is not self and not sibling.has_class("-aside"):
                sibling.disabled = over

    @property
    def is_over(self) -> bool:
        """Whether it covers the chat."""
        return self.app.size.width < BESIDE_FROM

    def look_at(self, target: Target | None = None) -> None:
        """Inspect another target, or the same one in another model."""
        self._target = target or self._target
        self._look()

    def _look(self) -> None:
        session = self._conversation.session
        self._about("Looking …")
        if session is None:
            self._failed("The model is not loaded yet.")
            return
        target, example = self._target, self._is_example
        work = lambda: look(session, target, example=example)  # noqa: E731
        self._compute(Compute(work, self._show, self._failed, "look"))

    @property
    def _view(self) -> InspectorTab:
        """The open tab."""
        (view,) = (view for view in self.query(InspectorTab) if view.id == self._tab)
        return view

    @property
    def _tab(self) -> str:
        return self.query_one(ContentSwitcher).current or ""

    def _show(self, shown: Look) -> None:
        self.query_one(ContentSwitcher).display = True
        self.remove_class("-failed")
        reply = len(shown.tokens.ids) - shown.start
        words = f"{shown.start:,} tokens of prompt" if shown.template else "An example sentence"
        if reply:
            words += f", {reply:,} of reply"
        if shown.writer and self._conversation.model is not None:
            reader = self._conversation.model.name
            words += f" · written by {shown.writer}, read here by {reader}: its probabilities"
        if shown.is_draft:
            words += " · not sent"
        if shown.template:
            words += f" · {shown.template}"
        if shown.message is not None and shown.message.siblings > 1:
            words += f" · version {shown.message.sibling} of {shown.message.siblings}"
        self._about(words + self._step_in_words)
        if self._shown is None or self._shown.tokens.ids != shown.tokens.ids:
            before = shown.tokens.texts[: shown.start]
            self._chosen = self._opening.choose(before) if self._opening else None
        self._shown = shown
        self._up_to_date.clear()
        self._show_legend()
        self._show_view()
        if self.screen.focused is self:
            self.focus_view()

    def _failed(self, reason: str) -> None:
        self._shown = None
        if self.has_focus_within:
            self.focus()
        self.query_one(ContentSwitcher).display = False
        self.add_class("-failed")
        self._show_legend()
        self._about(reason)

    def _show_view(self) -> None:
        """Update the open tab. The others may never be opened."""
        view = self._view
        if self._shown is not None and view not in self._up_to_date:
            self._up_to_date.add(view)
            view.show(self._shown)
        self._share_choice()

    @on(TokenText.Moved)
    def _token_chosen(self, event: TokenText.Moved) -> None:
        if self._shown is not None and event.sender.texts is self._shown.tokens.texts:
            self._chosen = event.position

    def _share_choice(self) -> None:
        """Choose in the open tab the token that was chosen in another."""
        if isinstance(self._view, CloserView):
            self._view.shared = self._chosen
        for text in self._view.query(TokenText):
            is_whole = self._shown is not None and text.texts is self._shown.tokens.texts
            if is_whole and self._chosen is not None:
                text.choose(self._chosen)

    def _about(self, words: str) -> None:
        self.query_one("#inspector-about", Static).update(printable(words))

    def _show_tabs(self) -> None:
        line = self.query_one("#inspector-tabs", Static)
        tabs = self._tabs(_TABS)
        view, columns = self._view, line.size.width
        if 0 < columns < tabs.cell_length:
            tabs = self._tabs((self._tab,))
        line.update(tabs)
        more = f"{view.formula}\n{in_rows(_MORE, columns)}"
        if isinstance(view, CloserView):
            more += f"\n{in_rows(view.closer_hint, columns)}"
        keys = f"{view.hint} · F1 more"
        if not isinstance(view, CloseUpView):
            keys += " · Esc closes"
        if not self.has_class("-low"):  # where each row counts
            keys = in_rows(keys, columns)
        self.query_one("#inspector-keys", Static).update(keys)
        self.query_one("#inspector-formula", Static).update(more)
        self._show_legend()

    def _tabs(self, named: Sequence[str]) -> Content:
        """The numbers of all tabs, with the names of some."""
        return Content(" ").join(
            Content.styled(
                f"{number} {name.capitalize()}" if name in named else str(number),
                "bold $accent reverse" if name == self._tab else "dim",
            )
            for number, name in enumerate(_TABS, start=1)
        )

    def _show_legend(self) -> None:
        """Show the meaning of the open tab's colours, while it shows something."""
        legend = self._view.legend() if self._shown is not None else ""
        self.query_one("#inspector-legend", Notice).say(legend)

    @Action("The formula of this tab, its source, more keys", "f1")
    def action_formula(self) -> None:
        formula = self.query_one("#inspector-formula", Static)
        formula.display = not formula.display

    def focus_view(self) -> None:
        """Focus the open tab."""
        if self._shown is None:
            self.focus()
        else:
            self._view.take_focus()

    # Close-ups

    @on(LookCloser)
    def _look_closer(self, event: LookCloser) -> None:
        event.stop()
        if self._shown is not None:
            self._opened_from = self._tab
            self.query_one(CloseUpView).open(event)
            self.action_tab("close-up")

    @on(InspectorTab.GaveUp)
    def _gave_up(self, event: InspectorTab.GaveUp) -> None:
        self._up_to_date.discard(event.sender)

    @on(CloseUpView.Back)
    def _back(self, event: CloseUpView.Back) -> None:
        event.stop()
        self.action_tab(self._opened_from)

    # Computing

    @on(Compute)
    def _compute(self, request: Compute) -> None:
        request.stop()
        number = next(self._numbers)
        if request.slot:
            self._requests.pop(self._newest.get(request.slot, 0), None)
            self._newest[request.slot] = number
        self._requests[number] = request

        def work(session: object) -> None:
            if (request := self._requests.get(number)) is None:
                return
            try:
                result, reason = request.work(), None
            except BaseException as error:
                # A model's limits, or a text that does not fit, are shown to the user.
                result, reason = None, in_words(error)
            if number in self._requests:
                self._results[number] = result, reason
                self.post_message(self._Answer(number))

        if not self._conversation.in_background(work, "what the inspector computes"):
            self._requests.pop(number).fail("The model is not loaded yet.")

    @on(_Answer)
    def _answered(self, event: _Answer) -> None:
        event.stop()
        result, reason = self._results.pop(event.number, (None, None))
        if (request := self._requests.pop(event.number, None)) is None:
            return
        if reason is None:
            request.show(result)
        else:
            request.fail(reason)

    # Keys

    @Action("Save this view as a page (HTML) and a picture (SVG)", "s", name="save_view")
    async def action_save(self) -> None:
        """Save what the open tab shows, in the present folder."""
        from chatapp.lab.drawing.pictures import save_view

        views = self._view.views() if self._shown is not None else ()
        if not views:
            self.notify("There is nothing to save here yet.", markup=False)
            return
        try:
            name = f"chatapp-{views[0].name}"
            paths = await asyncio.to_thread(save_view, views, Path(), name)
        except OSError as error:
            words = f"The view cannot be saved in this folder: {reason(error)}"
            self.notify(printable(words), severity="error", markup=False)
            return
        self.notify(f"Saved: {' and '.join(path.name for path in paths)}", markup=False)

    def action_tab(self, name: str) -> None:
        self.query_one(ContentSwitcher).current = name
        self._show_tabs()
        self._show_view()
        self.focus_view()

    @Action("Look at an example sentence, or back", "x")
    def action_example(self) -> None:
        self._is_example = not self._is_example
        self._look()

    @property
    def _step_in_words(self) -> str:
        """The step of the model that is looked at; "" for a model that is none."""
        model = self._conversation.model
        step = None if model is None else step_of(model.name)
        return "" if step is None else f" · step {step:,} of the run"

    @Action(
        "The model at the run's step before", "shift+left", call="step(-1)", name="earlier_step"
    )
    @Action("The model at the run's step after", "shift+right", call="step(1)", name="later_step")
    def action_step(self, move: int) -> None:
        model = self._conversation.model
        if model is None:
            return  # one is loading
        if (name := step_beside(model.name, move)) is not None:
            self.post_message(UseStep(name))
        else:
            self.notify("This model is of no run that kept another step there.", markup=False)

    @Action("Close the inspector", "escape")
    def action_close(self) -> None:
        self.post_message(self.Closed())
