"""Actions on the model of a chat: another one, its template, thoughts, tools, and what is changed
inside it.
"""

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

from textual import work

from chatapp.common.userfiles import UserError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions, parse_parts, switched_off
from chatapp.engine.models.known_models import LARGER
from chatapp.prompting.template import TEMPLATES
from chatapp.tui.chat.actions import NONE, ON_OFF, ChatActions, Rest
from chatapp.tui.platform.actions import Action, ActionError
from chatapp.tui.screens.models import ModelScreen
from chatapp.tui.screens.teaching import LearnScreen, command

if TYPE_CHECKING:
    from chatapp.dialogue.tools.registry import Registry
    from chatapp.engine.backends.local import LocalModel


def _directions() -> list[str]:
    """The names of the saved directions."""
    from chatapp.lab.steering import direction_names

    return direction_names()


class ModelActions(ChatActions):
    """The actions on the model of a chat."""

    # Which model, and its template

    @Action(
        "Switch to another model; alone, list them",
        "f8",
        also="download change load",
        command="model",
        argument="[NAME]",
        values=lambda chat: chat.controls.models.names(),
        empty=True,
        waits=True,
    )
    def action_models(self, argument: str = "") -> None:
        if argument:
            self.controls.models.load_other(argument)
        elif not self.controls.is_busy():
            self._choose_model()

    @Action(
        f"Download {LARGER} and go on with it, as an empty chat offers",
        "ctrl+r",
        unless=lambda chat: chat.why_not_offered(),
    )
    def action_larger(self) -> None:
        if not self.controls.is_busy():
            self._choose_model(LARGER)

    def why_not_offered(self) -> str:
        """Why the larger model is not to be had by a key now; empty when it is."""
        is_offered = self.widgets.is_empty and self.widgets.welcome.offers_larger
        return "" if is_offered else "Only an empty chat with the bundled model offers it."

    @work
    async def _choose_model(self, download: str = "") -> None:
        screen = ModelScreen(self.conversation, self.widgets.status.model, download)
        self._load_other(await self.app.push_screen_wait(screen))

    @Action("Fine-tune the model on your feedback", command="learn", waits=True)
    def action_learn(self) -> None:
        if not self.conversation.chat.store.is_kept:
            raise ActionError("This chat isn't saved, so there is no feedback to learn from.")
        self._learn()

    @work
    async def _learn(self) -> None:
        """Train the model on the user's feedback, and use the result."""
        screen = LearnScreen(self.conversation, command(self.widgets.status.model))
        self._load_other(await self.app.push_screen_wait(screen))

    def _load_other(self, name: str | None) -> None:
        if name is not None and not self.controls.is_busy():
            self.widgets.show_problem("")
            self.controls.models.load_other(name)

    @Action(
        "Switch to another dialogue template",
        command="template",
        argument="NAME",
        values=lambda _: TEMPLATES,
        waits=True,
        rare=True,
    )
    def action_template(self, argument: str) -> None:
        from chatapp.dialogue.writers.choosing import mismatch

        self.conversation.use_template(argument)
        session = self.conversation.session
        if session is not None and (warning := mismatch(session.model, session.template)):
            self.widgets.inform(f"{warning[0].upper()}{warning[1:]}.")
        self.controls.models.show()

    # What it may do before and in a reply

    @Action(
        "Let the model think before it replies, or not",
        command="think",
        argument="on|off",
        values=lambda _: ON_OFF,
        waits=True,
    )
    def action_think(self, argument: str) -> None:
        if argument not in ON_OFF:
            raise ActionError("Usage: /think on|off")
        self.conversation.set_thinking(argument == "on")
        how = "thinks before" if argument == "on" else "does not think before"
        self.controls.models.show()
        self.widgets.inform(f"The model {how} its replies from the next message on.")

    @Action(
        "Answer with JSON that fits a schema; none ends it, alone, show it",
        command="schema",
        argument="[FILE|JSON]",
        values=lambda _: (NONE,),
        empty=True,
    )
    def action_schema(self, argument: str) -> None:
        opened = self.conversation.chat
        if not argument:
            given = opened.constraint
            self.widgets.inform("Replies are free." if given is None else given.in_words)
            return
        self.refuse_while_busy()
        try:
            constraint = None if argument == NONE else Constraint.read("schema", argument)
        except ValueError as error:
            raise ActionError(f"/schema: {error}") from None
        opened.constraint = constraint
        self.widgets.inform(
            "Replies are free."
            if constraint is None
            else "The next replies are JSON of this schema."
        )

    @Action(
        "Let the model call programs; none switches them off, alone, list them",
        command="tools",
        argument="[NAME …]",
        values=lambda chat: chat.tool_names(),
        empty=True,
        waits=True,
    )
    def action_tools(self, argument: str) -> Rest:
        names = argument.replace(",", " ").split()
        if not names:
            return self._list_tools
        return partial(self._choose_tools, [] if names == [NONE] else names)

    async def _list_tools(self, cancel: threading.Event) -> None:
        registry = await self._registry()
        if registry.servers:
            self.widgets.inform(f"Asking {', '.join(registry.servers)} for tools …")
        # On a thread, because servers may take long.
        there_are, problems = await asyncio.to_thread(registry.list_names, cancel)
        if self._was_left(registry):
            return
        on = self.conversation.chat.tools
        others = [name for name in there_are if name not in on]
        self.widgets.inform(f"On: {', '.join(on) or NONE}. Off: {', '.join(others) or NONE}.")
        self.widgets.show_problem(" ".join(f"{problem}." for problem in problems))

    async def _choose_tools(self, names: list[str], cancel: threading.Event) -> None:
        registry = await self._registry()
        try:
            chosen = await asyncio.to_thread(registry.chosen, names, cancel)
            session = self.conversation.session
            if session is None:
                raise UserError("the model is not loaded yet")
            if not self._was_left(registry):
                self.refuse_while_busy()  # a message may have been sent in the meantime
                await asyncio.to_thread(session.set_tools, list(chosen))
        except UserError as error:
            if self._was_left(registry):
                return
            raise ActionError(f"/tools: {error}") from None
        if not self._was_left(registry):
            self.widgets.inform(f"Tools of this chat: {', '.join(session.chat.tools) or NONE}")
            problems = registry.problems_of(names)
            self.widgets.show_problem(" ".join(f"{problem}." for problem in problems))

    def _was_left(self, registry: "Registry") -> bool:
        """Whether another chat has been opened since the search for tools."""
        return self.conversation.chat.servers is not registry.running

    async def _registry(self) -> "Registry":
        """The tools available to the chat. Raises PromptError when its prompt file is broken."""
        # On a thread, because the prompt file may have to be read.
        owner = self.conversation.session or self.conversation.chat
        return await asyncio.to_thread(owner.find_tools)

    def tool_names(self) -> list[str]:
        """For completion while typing, so no prompt file is read."""
        session, own = self.conversation.session, self.conversation.chat
        registry = own.find_tools() if session is None else session.find_tools_without_reading()
        return [*registry.tools, *registry.servers, NONE]

    # Inside it

    @Action(
        "Switch off heads, MLPs and layers: 3.5 4.mlp 6; none ends it",
        command="ablate",
        argument="[PART …]",
        values=lambda _: (NONE,),
        empty=True,
    )
    def action_ablate(self, argument: str) -> None:
        changes = self.conversation.chat.interventions
        if not argument:
            words = changes.words or "Nothing is switched off; /ablate 3.5 4.mlp does it."
            self.widgets.inform(words)
            return
        self.refuse_while_busy()
        off = UNCHANGED
        if argument != NONE:
            off = switched_off(parse_parts(argument, self._own_model().decoder.architecture))
        self._change_model(off + changes.added)

    @Action(
        "Add a direction of `chatapp steer` to replies: calm 0.1; none ends it",
        command="steer",
        argument="[NAME STRENGTH]",
        values=lambda _: (NONE, *_directions()),
        empty=True,
    )
    def action_steer(self, argument: str) -> None:
        from chatapp.lab.steering import steering

        changes = self.conversation.chat.interventions
        if not argument:
            known = ", ".join(_directions()) or "none yet; `chatapp steer make` makes one"
            self.widgets.inform(changes.added.words or f"Nothing is added. Directions: {known}.")
            return
        self.refuse_while_busy()
        added = UNCHANGED
        if argument != NONE:
            added = steering(argument, self._own_model().decoder.architecture)
        self._change_model(changes.off + added)

    def _change_model(self, interventions: Interventions) -> None:
        """Change the model inside, and say so. Raises UserError."""
        self.conversation.change_model(interventions)
        words = self.controls.show_changes()
        self.widgets.inform(f"The next reply is written {words or 'by the whole model'}.")

    def _own_model(self) -> "LocalModel":
        """The loaded model, if this program computes it. Raises ActionError."""
        from chatapp.engine.backends.local import LocalModel
        from chatapp.engine.models.running import model_here

        model = self.conversation.model and model_here(self.conversation.model)
        if not isinstance(model, LocalModel):
            name = model.name if model is not None else "the model"
            words = "only models that chatapp computes itself have parts to change"
            raise ActionError(f"{name}: {words}")
        return model
