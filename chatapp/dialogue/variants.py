"""Two ways to answer one message: another model, another template, other parameters.

Keep: both replies answer the same message with the same history before it, so
that nothing but what the user has set differs between them.
"""

import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from chatapp.dialogue.session import Session, SessionEvent, Started
from chatapp.dialogue.store import Store
from chatapp.dialogue.template_choice import choose_template, thinking_of, with_thinking
from chatapp.engine.load import PRECISIONS
from chatapp.engine.model import Generate, LanguageModel, Sampling
from chatapp.parameters import PARAMETERS

_TEXTS = ("model", "precision", "template")


@dataclass(frozen=True, slots=True)
class Variant:
    """What a reply is drawn with. template: a name, or "" for the model's own."""

    model: str
    precision: str
    template: str
    sampling: Sampling

    def changed(self, text: str) -> "Variant":
        """This variant with `NAME=VALUE …` in place, as a shell would split it.

        Raises ValueError in one sentence for what is no such list.
        """
        try:
            parts = shlex.split(text)
        except ValueError:
            raise ValueError("a quotation mark has no partner") from None
        variant = self
        for part in parts:
            name, equals, value = part.partition("=")
            if not equals:
                raise ValueError(f"{part!r} is no NAME=VALUE, such as temperature=0")
            if name == "precision" and value not in PRECISIONS:
                raise ValueError(f"precision is {value!r}; expected one of {', '.join(PRECISIONS)}")
            if name == "model" and not value:
                raise ValueError("model is empty; expected a name, a folder or a hub id")
            if name in _TEXTS:
                variant = replace(variant, **{name: value})  # type: ignore[arg-type]
            else:
                variant = replace(variant, sampling=variant.sampling.changed(name, value))
        return variant

    def words(self) -> list[str]:
        """What it is, piece by piece; parameters that are off are left out, and a guard over
        what is drawn that is as usual."""
        pieces = [self.model, self.precision if self.precision != "auto" else "", self.template]
        for name, parameter in PARAMETERS.items():
            value = getattr(self.sampling, name)
            is_usual_guard = parameter.is_heeded_here and value == parameter.default
            if value not in (None, parameter.off) and not is_usual_guard:
                pieces.append(f"{name} {value}")
        return [piece for piece in pieces if piece]


class Pair:
    """One message of a chat, and the replies to it.

    session: the chat is its own, or will be. message: a text to say at the end of the chat,
    or the id of a message of the user that is there already. load: gives a model by its name
    and precision. A tool that asks is not run: there are two who would.
    """

    def __init__(
        self,
        store: Store,
        session: Session,
        message: str | int,
        load: Callable[[str, str], LanguageModel],
    ) -> None:
        self._store = store
        self._chat_id = session.chat_id
        self._system = session.system
        self._prompt = session.prompt
        self._asked_template = session.asked_template
        self._documents = session.documents
        self._tools = session.tools
        self._thinking = thinking_of(session.template)
        self._message = message
        self._load = load

    def answers(
        self, variants: Sequence[Variant], cancel: threading.Event
    ) -> list[Iterator[SessionEvent]]:
        """Replies by each of the variants, beside those there are, to be drawn in turn.

        With one model for all, each of its passes serves all of them. Each raises what loading
        the model, `choose_template` and `Session.say` raise; ValueError when it was cancelled
        before the model was loaded.
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
        stopped = ValueError("stopped before there was a reply")
        if cancel.is_set():
            raise stopped
        model = self._load(variant.model, variant.precision)
        if cancel.is_set():
            raise stopped
        template = choose_template(model, variant.template, self._asked_template)
        if self._thinking is not None:
            with suppress(ValueError):  # of a model that has no such switch
                template = with_thinking(model, template, self._thinking)
        session = Session(
            model,
            template=template,
            store=self._store,
            chat_id=self._chat_id,
            system=self._system,
            prompt=self._prompt,
            asked_template=self._asked_template,
            documents=self._documents,
            generate=generate_by(model),
        )
        session.sampling = variant.sampling  # not what the prompt file would have
        with closing(session):
            if self._chat_id is None and self._tools:
                session.set_tools(self._tools)
            if isinstance(self._message, str):
                events = session.say(self._message, cancel)
            else:
                events = session.regenerate(self._message, cancel)
            for event in events:
                if isinstance(event, Started):
                    self._chat_id = event.message.chat_id
                    if event.user_message is not None:
                        self._message = event.user_message.id
                yield event
