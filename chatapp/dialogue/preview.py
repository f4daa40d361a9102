"""What a chat would be held with, and what a message would then become, before it is chosen.

Keep: what is shown is written by the writer that would write the chat.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chatapp.dialogue.fewshot_chat import FewShotWriter
from chatapp.dialogue.prompt import Exchange, Prompt, Writer
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Basis
from chatapp.dialogue.template_choice import INSIST, choose_template, writer_for
from chatapp.fewshot.answering import sampling_of
from chatapp.foreign import without_surrogates
from chatapp.prompting.promptfile import Persona, PromptFile

_ANY_MESSAGE = "…"


@dataclass(frozen=True, slots=True)
class Preview:
    """What a message would become.

    message: the one it is shown for; the draft, or else one of the file's own inputs.
    about: in words, what becomes of the chat. generate: how replies would be drawn, as far as
    the file says.
    """

    message: str
    prompt: Prompt
    about: str
    generate: Mapping[str, int | float] = field(default_factory=dict)


def basis_of(name: str, chosen: PromptFile | Persona | None) -> Basis:
    """What a chat is held with once this is chosen under this name; None is nothing.

    Raises PromptError when the file asks for a sampling there is not.
    """
    if chosen is None:
        return Basis()
    if isinstance(chosen, Persona):
        return Basis(chosen.system, asked_template=chosen.template)
    sampling_of(chosen)
    return Basis(prompt=name)


def preview(
    session: Session, name: str, chosen: PromptFile | Persona | None, draft: str
) -> Preview:
    """What the message `draft` would become at the beginning of a chat.

    It may take long: a pool is encoded. Raises ValueError in words when it does not fit the
    window, PromptError when the file cannot be used.
    """
    model, sampling = session.model, session.sampling
    message = without_surrogates(draft)
    writer: Writer
    if isinstance(chosen, PromptFile):
        writer = few_shot = FewShotWriter.of(model, name, chosen, session.template)
        if not message.strip() and len(chosen.pool) and not few_shot.goes_on:
            message = chosen.pool.inputs[0]
        sampling, about = few_shot.sampling(sampling), _about(chosen, goes_on=few_shot.goes_on)
    else:
        asked = chosen.template if chosen is not None else ""
        template = choose_template(model, f"{session.template.name}{INSIST}", asked)
        writer = writer_for(model, template)
        about = f"A persona: instructions for the chat, in template {template.name}."
        if chosen is None:
            about = f"A chat in template {template.name}, with the template's instructions."
    message = message.strip() or _ANY_MESSAGE
    system = basis_of(name, chosen).system
    prompt = writer.write(system, [Exchange(message)], max_tokens=sampling.max_tokens)
    generate = chosen.generate if isinstance(chosen, PromptFile) else {}
    return Preview(message, prompt, about, generate)


def _about(prompt: PromptFile, *, goes_on: bool) -> str:
    count, of = min(prompt.select.k, len(prompt.pool)), len(prompt.pool)
    shown = f"{count} of {of} examples" if count else "the instruction"
    if goes_on:
        return f"The chat follows {shown}."
    chosen = f" chosen for it: {prompt.select.method}" if count else ""
    words = f"Each message is asked by itself, after {shown}{chosen}."
    words += " All of it is written as turns of a chat." if prompt.style == "turns" else ""
    return f"{words} The reply is one of {', '.join(prompt.labels)}." if prompt.labels else words
