"""Slash commands that change the model: another one, its template, thoughts, parts and directions.

Invariant: an action is carried out completely, or fails with a reason and changes nothing.
"""

from typing import TYPE_CHECKING

from chatapp.common.userfiles import UserError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.decoder.interventions import (
    UNCHANGED,
    Interventions,
    parse_parts,
    switched_off,
)
from chatapp.tui.chat.controls import ChatControls
from chatapp.tui.chat.slash_actions import SlashError, refuse_while_busy
from chatapp.tui.conversation.conversation import Conversation

if TYPE_CHECKING:
    from chatapp.engine.backends.local import LocalModel

NO_PARTS = "none"


async def load_model(chat: ChatControls, argument: str) -> None:
    refuse_while_busy(chat)
    if argument:
        chat.models.load_other(argument)
    else:
        await chat.screen.run_action("models")


async def use_template(chat: ChatControls, argument: str) -> None:
    from chatapp.dialogue.writers.choosing import mismatch

    refuse_while_busy(chat)
    try:
        chat.conversation.use_template(argument)
        session = chat.conversation.session
        if session is not None and (warning := mismatch(session.model, session.template)):
            chat.widgets.inform(f"{warning[0].upper()}{warning[1:]}.")
    except ValueError as error:
        raise SlashError(str(error)) from None
    chat.models.show()


def template_names(chat: ChatControls) -> list[str]:
    from chatapp.prompting.template import TEMPLATES

    return list(TEMPLATES)


async def set_thinking(chat: ChatControls, argument: str) -> None:
    refuse_while_busy(chat)
    if argument not in ("on", "off"):
        raise SlashError("Usage: /think on|off")
    try:
        chat.conversation.set_thinking(argument == "on")
    except ValueError as error:
        raise SlashError(str(error)) from None
    how = "thinks before" if argument == "on" else "does not think before"
    chat.models.show()
    chat.widgets.inform(f"The model {how} its replies from the next message on.")


async def switch_off(chat: ChatControls, argument: str) -> None:
    conversation = chat.conversation
    changes = conversation.chat.interventions
    if not argument:
        chat.widgets.inform(changes.words or "Nothing is switched off; /ablate 3.5 4.mlp does it.")
        return
    refuse_while_busy(chat)
    try:
        off = UNCHANGED if argument == NO_PARTS else _parts_of(conversation, argument)
        conversation.change_model(off + changes.added)
    except ValueError as error:
        raise SlashError(str(error)) from None
    words = chat.show_changes()
    chat.widgets.inform(f"The next reply is written {words or 'by the whole model'}.")


async def steer(chat: ChatControls, argument: str) -> None:
    conversation = chat.conversation
    changes = conversation.chat.interventions
    if not argument:
        known = ", ".join(directions()) or "none yet; `chatapp steer make` makes one"
        chat.widgets.inform(changes.added.words or f"Nothing is added. Directions: {known}.")
        return
    refuse_while_busy(chat)
    try:
        added = UNCHANGED if argument == NO_PARTS else _steering_of(conversation, argument)
        conversation.change_model(changes.off + added)
    except ValueError as error:
        raise SlashError(str(error)) from None
    words = chat.show_changes()
    chat.widgets.inform(f"The next reply is written {words or 'by the whole model'}.")


def directions() -> list[str]:
    """The names of the saved directions."""
    from chatapp.lab.steering import direction_names

    return direction_names()


def _steering_of(conversation: Conversation, text: str) -> Interventions:
    """The direction and its strength, for the loaded model."""
    from chatapp.lab.steering import steering

    try:
        return steering(text, _own_model(conversation).decoder.architecture)
    except UserError as error:
        raise SlashError(str(error)) from None


def _own_model(conversation: Conversation) -> "LocalModel":
    """The loaded model, if this program computes it."""
    from chatapp.engine.backends.local import LocalModel
    from chatapp.engine.models.running import model_here

    model = conversation.model and model_here(conversation.model)
    if not isinstance(model, LocalModel):
        name = model.name if model is not None else "the model"
        raise SlashError(f"{name}: only models that chatapp computes itself have parts to change")
    return model


def _parts_of(conversation: Conversation, names: str) -> Interventions:
    """The parts of the loaded model that names stand for, switched off."""
    return switched_off(parse_parts(names, _own_model(conversation).decoder.architecture))


async def use_schema(chat: ChatControls, argument: str) -> None:
    opened = chat.conversation.chat
    if not argument:
        given = opened.constraint
        chat.widgets.inform("Replies are free." if given is None else given.in_words)
        return
    refuse_while_busy(chat)
    try:
        constraint = None if argument == NO_PARTS else Constraint.read("schema", argument)
    except ValueError as error:
        raise SlashError(f"/schema: {error}") from None
    opened.constraint = constraint
    chat.widgets.inform(
        "Replies are free." if constraint is None else "The next replies are JSON of this schema."
    )
