"""Two ways to answer one message (model, template, parameters), and previews of a basis."""

import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from chatapp.common.foreign import without_surrogates
from chatapp.common.parameters import PARAMETERS, check_choice
from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import Options, SessionEvent, Started
from chatapp.dialogue.session import Session
from chatapp.dialogue.store.rows import Basis
from chatapp.dialogue.turn import write_prompt
from chatapp.dialogue.writers.choosing import INSIST, choose_template, writer_for
from chatapp.dialogue.writers.fewshot import FewShotWriter
from chatapp.dialogue.writers.prompt import Exchange, Prompt, Writer
from chatapp.engine.model import Generate, LanguageModel, Sampling
from chatapp.prompting.template import in_a_sentence
from chatapp.tasks.files.promptfile import Persona, PromptFile

_TEXTS = ("model", "precision", "template")


@dataclass(frozen=True, slots=True)
class Variant:
    """What to draw a reply with. template: a name, or "" for the model's own."""

    model: str
    precision: str
    template: str
    sampling: Sampling

    def changed(self, text: str) -> "Variant":
        """A copy changed by `NAME=VALUE …`, split like a shell's words.

        Raises ValueError with one sentence for any other text.
        """
        try:
            parts = shlex.split(text)
        except ValueError:
            raise ValueError("a quotation mark is not closed") from None
        variant = self
        for part in parts:
            name, equals, value = part.partition("=")
            if not equals:
                raise ValueError(f"{part!r} is not of the form NAME=VALUE, such as temperature=0")
            check_choice(name, value)
            if name == "model" and not value:
                raise ValueError("model is empty; expected a name, a folder or a hub id")
            if name in _TEXTS:
                variant = replace(variant, **{name: value})  # type: ignore[arg-type]
            else:
                variant = replace(variant, sampling=variant.sampling.changed(name, value))
        return variant

    def words(self) -> list[str]:
        """Its description in pieces, without parameters that are off or usual."""
        pieces = [self.model, self.precision if self.precision != "auto" else "", self.template]
        for name, parameter in PARAMETERS.items():
            value = getattr(self.sampling, name)
            is_usual_guard = parameter.is_heeded_here and value == parameter.default
            if value not in (None, parameter.off) and not is_usual_guard:
                pieces.append(f"{name} {value}")
        return [piece for piece in pieces if piece]


class Pair:
    """One message of a chat, and the replies to it.

    message: a new text at the end of the chat, or the id of an existing message of the user.
    thinking: whether the models think before they reply; None is their default. load: loads a model
    by its name and precision. A tool that needs permission is not run, because two replies would
    ask.
    """

    def __init__(
        self,
        chat: Chat,
        message: str | int,
        thinking: bool | None,
        load: Callable[[str, str], LanguageModel],
    ) -> None:
        self._chat = chat
        self._message = message
        self._thinking = thinking
        self._load = load

    def answers(
        self, variants: Sequence[Variant], cancel: threading.Event
    ) -> list[Iterator[SessionEvent]]:
        """Replies by each of the variants, to be drawn in turn.

        With one model for all, each of its passes serves all of them. Each raises the errors of
        loading the model, of `choose_template` and of `Session.say`; ValueError when it was
        cancelled before the model was loaded.
        """
        models = {(variant.model, variant.precision) for variant in variants}
        shared: dict[str, Generate] = {}

        def generate_by(model: LanguageModel) -> Generate:
            if len(models) == len(variants):
                return model.generate
            return shared.setdefault(model.name, model.together(len(variants)))

        return [self._answer(variant, cancel, generate_by) for variant in variants]

    def _answer(
        self,
        variant: Variant,
        cancel: threading.Event,
        generate_by: Callable[[LanguageModel], Generate],
    ) -> Iterator[SessionEvent]:
        stopped = ValueError("stopped before the reply began")
        if cancel.is_set():
            raise stopped
        model = self._load(variant.model, variant.precision)
        if cancel.is_set():
            raise stopped
        with closing(self._chat.apart()) as chat:
            template_name = chat.basis.asked_template
            template = choose_template(model, variant.template, template_name, self._thinking)
            session = Session(chat, model, template=template, generate=generate_by(model))
            session.sampling = variant.sampling  # the prompt file's values do not apply
            if chat.id is None and chat.tools:
                session.set_tools(chat.tools)  # this model may be unable to call them
            if isinstance(self._message, str):
                events = session.say(self._message, cancel)
            else:
                events = session.regenerate(self._message, cancel)
            for event in events:
                if isinstance(event, Started):
                    self._chat = chat  # it is stored by now
                    if event.user_message is not None:
                        self._message = event.user_message.id
                yield event


_ANY_MESSAGE = "…"


@dataclass(frozen=True, slots=True)
class Preview:
    """The prompt that a message would become.

    message: the one shown; the draft, or else one of the file's own inputs. about: in words, the
    consequence for the chat. generate: the sampling parameters of the file.
    """

    message: str
    prompt: Prompt
    about: str
    generate: Mapping[str, int | float] = field(default_factory=dict)


def basis_of(name: str, chosen: PromptFile | Persona | None) -> Basis:
    """The basis of a chat after this choice under this name; None is not a choice."""
    if chosen is None:
        return Basis()
    if isinstance(chosen, Persona):
        return Basis(chosen.system, asked_template=chosen.template)
    return Basis(prompt=name)


def preview(
    session: Session, name: str, chosen: PromptFile | Persona | None, draft: str
) -> Preview:
    """The prompt that `draft` would become at the beginning of a chat.

    It may take long, because a pool is encoded. Raises ValueError with a sentence when it does not
    fit the window, PromptError when the file is invalid.
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
        template_name = chosen.template if chosen is not None else ""
        template = choose_template(model, f"{session.template.name}{INSIST}", template_name)
        writer = writer_for(model, template)
        about = f"A persona: instructions for the chat, in {in_a_sentence(template.name)}."
        if chosen is None:
            about = f"A chat in {in_a_sentence(template.name)}, with the template's instructions."
    message = message.strip() or _ANY_MESSAGE
    system = basis_of(name, chosen).system
    prompt = write_prompt(writer, [Exchange(message)], Options(sampling, system=system))
    generate = chosen.generate if isinstance(chosen, PromptFile) else {}
    return Preview(message, prompt, about, generate)


def _about(prompt: PromptFile, *, goes_on: bool) -> str:
    count, of = min(prompt.select.k, len(prompt.pool)), len(prompt.pool)
    shown = f"{count} of {of} examples" if count else "the instruction"
    if goes_on:
        return f"The chat follows {shown}."
    chosen = f" chosen for it: {prompt.select.method}" if count else ""
    words = f"Each message is sent on its own, after {shown}{chosen}."
    words += " They are written as turns of a chat." if prompt.style == "turns" else ""
    return f"{words} The reply is one of {', '.join(prompt.labels)}." if prompt.labels else words
