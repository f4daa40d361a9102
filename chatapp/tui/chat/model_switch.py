"""The chat's model, template and precision, and their display."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chatapp.dialogue.store.database import StoreError
from chatapp.tui.conversation.model_loading import LoadFailed, LoadRequest, ModelLoaded
from chatapp.tui.platform import runtime
from chatapp.tui.platform.actions import shown_key
from chatapp.tui.platform.runtime import in_words
from chatapp.tui.screens.library import persona_of
from chatapp.tui.screens.parameters import Parameters

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel
    from chatapp.engine.models.catalogue import ListedModel
    from chatapp.tui.chat.parts import ChatWidgets
    from chatapp.tui.conversation.conversation import Conversation


class ModelSwitch:
    """Loads the models of a conversation."""

    def __init__(self, conversation: "Conversation", widgets: "ChatWidgets") -> None:
        self._conversation = conversation
        self._widgets = widgets
        self._names: list[str] | None = None
        self._followed = ""

    def load(self) -> None:
        """Load the chat's model, or try again."""
        self._widgets.status.state = "loading"
        self._conversation.load()

    def load_other(self, name: str, precision: str = "", *, follows: bool = False) -> None:
        """Load another model and use it afterwards.

        precision: another than now. follows: whether the model belongs to a chat that was opened.
        """
        precision = precision or self._conversation.precision
        device, say = self._conversation.device, self._widgets.inform

        def load() -> "LanguageModel":
            from chatapp.engine.models.loading import load_model

            return load_model(name, precision=precision, device=device, say=say)

        self._widgets.status.state = "loading"
        self._widgets.status.model = name
        self._followed = name if follows else ""
        self._conversation.load_other(LoadRequest(load, precision))

    def follow(self, name: str) -> None:
        """Use the model of a chat, if it is another one.

        Only after the first model is loaded, because that is the one that the program was started
        for.
        """
        is_here = name in ("", self._widgets.status.model)
        if not is_here and self._conversation.model is not None:
            self.load_other(name, follows=True)

    def take(self, event: ModelLoaded | LoadFailed) -> str:
        """Use a loaded model, or after a failure the previous one.

        event: the answer to the newest request. Returns the reason of a failure; "" for success.
        """
        if isinstance(event, ModelLoaded):
            from chatapp.engine.files.model_files import read_generation_config

            runtime.mark("model_ready")
            is_switch = self._conversation.model is not None
            try:
                self._conversation.attach(event.request, event.model)
            except (ValueError, StoreError) as error:
                return self._recover(in_words(error))
            runtime.settle(is_switch=is_switch)
            self.show()
            if (remote := self._conversation.remote()) is not None and remote.remark:
                self._widgets.inform(remote.remark)
            for sentence in read_generation_config(event.model.files).ignored:
                self._widgets.inform(sentence)
            return ""
        self._conversation.loading = None
        return self._recover(event.reason)

    def _recover(self, reason: str) -> str:
        """Return to the previous model; return a sentence on that."""
        words = f"The model could not be loaded: {reason}"
        if self._followed:
            words = f"This chat used {self._followed}, which cannot be loaded: {reason}"
        self._widgets.status.state = "no model"
        if self._conversation.recover():
            self.show()
            return words
        key = shown_key(self._widgets.status.app, "models")
        return f"{words}\n{key} chooses another one; the next message tries this one again."

    def show(self) -> None:
        """Show the chat's model and template."""
        session, status = self._conversation.session, self._widgets.status
        if session is None:
            return
        status.state = "ready"
        status.model = session.model.name
        status.limit = session.model.context
        status.template, status.is_prompt_file = session.layout, bool(session.chat.basis.prompt)
        status.persona = persona_of(session.chat.basis.system)
        status.changes = session.chat.interventions.words
        remote = self._conversation.remote()
        status.is_estimate = remote is not None and remote.estimates_tokens
        self._conversation.measure()

    def names(self) -> list[str]:
        """The names of the known models."""
        if self._names is None:
            self._names = []
            self._conversation.find_models()
        return self._names

    def set_known(self, models: "Sequence[ListedModel]") -> None:
        """Store the list of known models."""
        self._names = [model.name for model in models]
        self._widgets.prompt.suggest_again()

    def parameters(self) -> Parameters:
        """The parameters of the next reply."""
        session, choices = self._conversation.session, self._conversation.choices
        template = session.template.name if session is not None else ""
        precision = self._conversation.precision
        return Parameters(choices.sampling, template, precision, choices.origins)

    def use(self, now: Parameters, new: Parameters, for_all: bool) -> None:
        """Use other parameters than `now`.

        for_all: the sampling in all chats. Raises ValueError or SettingsError with a sentence.
        """
        if (new.template, new.precision) != (now.template, now.precision):
            self._use_other(now, new)
        self._conversation.set_sampling(new.sampling, for_all=for_all)
        where = "All chats use" if for_all else "The next message uses"
        self._widgets.inform(f"{where} the new sampling settings.")

    def _use_other(self, now: Parameters, new: Parameters) -> None:
        """Change the template or precision. Raises ValueError with a sentence."""
        model = self._conversation.model
        if model is None or self._conversation.loading is not None:
            raise ValueError("the model is still loading; template and precision can be set later")
        if self._conversation.turn is not None:
            raise ValueError("a reply is being written; Esc stops it")
        if new.template != now.template:
            self._conversation.use_template(new.template)
            self.show()
        if new.precision != now.precision:
            self.load_other(model.name, new.precision)
