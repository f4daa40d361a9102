"""The door for Python and notebooks: models, chats, completions, views and prompt files.

`chatapp` itself offers what is public here, and imports this file at the first use. The commands
use the same functions, so that a notebook shows what a terminal shows.
"""

import json
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatapp.common.parameters import Choices, Sampling, parameter, seeded
from chatapp.common.settings import load_settings
from chatapp.common.userfiles import UserError, suggestion
from chatapp.dialogue.chat import Chat, Decision, never
from chatapp.dialogue.events import Options, Started
from chatapp.dialogue.lessons.outcome import afresh
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import Basis, StoredMessage
from chatapp.dialogue.turn import complete
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.decoder.interventions import UNCHANGED
from chatapp.engine.events import Finished, Token
from chatapp.engine.files.model_files import read_generation_config
from chatapp.engine.model import LanguageModel
from chatapp.engine.models.loading import load_model
from chatapp.lab.drawing.pictures import notebook_frame, rich_html
from chatapp.lab.inspectable import inspectable
from chatapp.lab.steering import changes_of
from chatapp.lab.view import Subject, View, token_position
from chatapp.lab.views import FIRST, VIEWS
from chatapp.prompting.messages import Segment

if TYPE_CHECKING:
    from chatapp.dialogue.tools.tool import PermissionRequest
    from chatapp.prompting.chat_template import ChatTemplate
    from chatapp.tasks.answering import Answer
    from chatapp.tasks.evaluation.report import Result
    from chatapp.tasks.files.promptfile import PromptFile


def load(name: str | Path = "", *, precision: str = "float32", device: str = "auto") -> "OpenModel":
    """Load a model.

    name: as `--model` takes it: "bundled", "smollm2", a folder, a GGUF file, a hub id, a server's
    address; "" is the one in the settings. precision: "float32", "int8", "int4" or "bfloat16", or
    "auto" for the fastest; the views need float32. Raises ModelError, a sentence; also for a masked
    model, such as BERT, which writes no replies: `chatapp inspect` shows what it fills in.
    """
    name = str(name) or load_settings().model
    return OpenModel(load_model(name, precision=precision, device=device))


def open_chat(chat_id: int, model: "OpenModel | None" = None) -> "OpenChat":
    """Open a stored chat: with `model`, or with the one that it was held with. What is said in it
    is stored, as in the program. Raises StoreError where there is no such chat, and ModelError.
    """
    from chatapp.common.paths import database_path

    store = Store(database_path())
    try:
        opened = model or load(store.chat(chat_id).model)
        return OpenChat(opened, Chat(store, chat_id))
    except BaseException:
        store.close()
        raise


def prompt_file(name: str | Path) -> "OpenPrompt":
    """A prompt file: a name of the library, or a path. Raises UserError."""
    from chatapp.tasks.files.library import find_task
    from chatapp.tasks.files.promptfile import load_prompt

    return OpenPrompt(load_prompt(find_task(str(name))))


class OpenModel:
    """A loaded model.

    model: computes it. changes: what is changed inside it, for replies, completions and views.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.changes = model, UNCHANGED

    def __repr__(self) -> str:
        changes = f", {self.changes.words}" if self.changes else ""
        return f"<{type(self).__name__} {self.model.name}{changes}>"

    def chat(
        self,
        system: str | None = None,
        *,
        prompt: str | Path = "",
        template: str = "",
        tools: Sequence[str] = (),
        allow: Sequence[str] = (),
        **sampling: float | int | None,
    ) -> "OpenChat":
        """A new chat, in memory alone.

        system: instructions in place of the template's own. prompt: a prompt file that each message
        is an input of: a name of the library, or a path. template: a shipped one's name; ""
        is the model's own. tools: names of those that the model may call. allow: those of them
        that may run although they need permission. sampling: values by name, such as
        temperature=0. Raises ValueError for a parameter that does not exist or is out of range,
        or an unusable template, and ToolError.
        """
        basis = Basis(system, str(prompt))
        chat = Chat(Store(None), basis=basis, choices=self.choices(sampling))
        opened = OpenChat(self, chat, allow, choose_template(self.model, template))
        if tools:
            opened.session.set_tools(tools)
        return opened

    def complete(
        self,
        text: str,
        *,
        schema: Mapping[str, Any] | None = None,
        pattern: str | None = None,
        grammar: str | None = None,
        stop: Sequence[str] = (),
        cache: bool = True,
        **sampling: float | int | None,
    ) -> "Completion":
        """Continue a text, without a dialogue.

        schema, pattern, grammar: what the completion may look like; at most one of them. stop:
        strings that end it. cache: False computes each token from the whole text, to show what that
        saves. sampling: as in `chat`. Raises ValueError for an empty text, wrong
        values and an unusable constraint, ContextOverflow for a text that fills the window.
        """
        given = {"schema": schema, "pattern": pattern, "grammar": grammar}
        named = [(kind, value) for kind, value in given.items() if value is not None]
        if len(named) > 1:
            raise ValueError(f"use one of {' and '.join(kind for kind, _ in named)}")
        constraint = None
        for kind, value in named:
            of = getattr(Constraint, f"of_{kind}")
            constraint = of(value, spaced=True)
        options = Options(
            seeded(self.choices(sampling).sampling),
            constraint=constraint,
            stop=stop,
            changes=self.changes,
            generate=None if cache else afresh(self.model),
        )
        *tokens, finished = complete(self.model, text, options)
        assert isinstance(finished, Finished)
        drawn = tuple(token for token in tokens if isinstance(token, Token))
        written = "".join(t.text for t in drawn) + finished.text
        prompt = self.model.tokenizer.encode(text)
        read = Inspection(self, [*prompt, *(token.id for token in drawn)], len(prompt))
        return Completion(written, drawn, finished, read, self.changes.words)

    def inspect(self, text: str = "", **sampling: float | int | None) -> "Inspection":
        """What the model makes of a text: each view is a method, such as `why`, `attention` or
        `layers`; `dir` lists them. sampling: what `next` shows the effect of, as in `chat`. Raises
        ValueError, UserError for a model that cannot be inspected.
        """
        if inspectable(self.model) is None:
            raise UserError(f"{self.model.name}: this kind of model cannot be inspected")
        from chatapp.lab.encoder_decoder import reply_of

        prompt = tuple(self.model.tokenizer.encode(text)) if text else ()
        reply = tuple(reply_of(self.model, prompt)) if text else ()
        chosen = self.choices(sampling).sampling
        return Inspection(self, (*prompt, *reply), len(prompt), sampling=chosen)

    @contextmanager
    def changed(self, *parts: str, **steer: float) -> Iterator["OpenModel"]:
        """Switch parts off while the context lasts, such as "3.5", "4.mlp"; add directions of
        `chatapp steer make` with a strength, such as calm=0.1. Contexts add up. Raises UserError
        for a part or direction that the model does not have.
        """
        before = self.changes
        directions = [f"{name}={strength}" for name, strength in steer.items()]
        self.changes += changes_of(self.model, ",".join(parts) if parts else None, directions)
        try:
            yield self
        finally:
            self.changes = before

    def choices(self, sampling: Mapping[str, float | int | None]) -> Choices:
        """The sampling parameters: the user's, then the model's, then the program's. Raises
        ValueError."""
        values = {name: parameter(name).checked(value) for name, value in sampling.items()}
        return load_settings(values).choices(read_generation_config(self.model.files).sampling)


class Reply:
    """A reply as it is drawn: iterate over its tokens, each with its `probability`; `str` draws
    what is left. Leaving the loop ends the reply, and keeps its text so far.

    left_out: the chat's oldest messages that its prompt has no room for, once it has begun; a
    warning says so, too.
    """

    def __init__(self, chat: "OpenChat", text: str) -> None:
        self._chat, self._events = chat, chat.session.say(text)
        self._id: int | None = None
        self.left_out = 0
        self.tokens: list[Token] = []
        self.finished: Finished | None = None

    def __iter__(self) -> Iterator[Token]:
        yield from self.tokens
        try:
            for event in self._events:
                if isinstance(event, Token):
                    self.tokens.append(event)
                    yield event
                elif isinstance(event, Finished):
                    self.finished = event
                elif isinstance(event, Started):
                    self._id, self.left_out = event.message.id, event.dropped
                    if event.dropped:
                        warnings.warn(f"messages out of context: {event.dropped}", stacklevel=2)
        finally:
            self._events.close()  # type: ignore[attr-defined]

    def __str__(self) -> str:
        self.finish()
        return self.message.text

    def _repr_html_(self) -> str:
        self.finish()
        rest = "" if self.finished is None else self.finished.text  # None where it was left
        visible = [token for token in self.tokens if token.thought is None]
        return _shaded(visible, rest, self.message.changes)

    def finish(self) -> None:
        """Draw what is left."""
        for _ in self:
            pass

    @property
    def message(self) -> StoredMessage:
        """The reply's row: its text so far, its thoughts, its calls, and how it ended. Raises
        ValueError before its first token."""
        if self._id is None:
            raise ValueError("the reply has not begun; iterate over it, or take its text")
        return next(m for m in self._chat.messages if m.id == self._id)


class OpenChat:
    """A chat with a model. Close it, or use it as a context, where tools run servers.

    session: the dialogue, with everything that the program's screen can do. reply: the last one
    that was begun here, or None.
    """

    def __init__(
        self,
        model: OpenModel,
        chat: Chat,
        allow: Sequence[str] = (),
        template: "ChatTemplate | None" = None,
    ) -> None:
        """allow, template: as in `OpenModel.chat`; None is the chat's, or the model's own."""
        self.model, self.session = model, Session(chat, model.model, template=template)
        self.reply: Reply | None = None
        chat.ask = partial(_decision, frozenset(allow)) if allow else never

    def say(self, text: str) -> Reply:
        """Send a message; the reply is drawn while it is read. One that is not finished is finished
        first. Raises ValueError for an empty text.
        """
        if self.reply is not None:
            self.reply.finish()
        if not text.strip():
            raise ValueError("the message is empty")
        self.session.chat.interventions = self.model.changes
        self.reply = Reply(self, text)
        return self.reply

    @property
    def messages(self) -> list[StoredMessage]:
        """The messages of the chat's current path, oldest first."""
        return list(self.session.chat.messages)

    def inspect(self, message: str = "") -> "Inspection":
        """The last message as the model reads it: a reply with its whole prompt. message: one that
        is not sent, whose prompt is looked at instead. Raises ValueError for a chat without any.
        """
        from chatapp.dialogue.reading import draft, read

        if self.reply is not None:
            self.reply.finish()
        if message:
            reading = draft(self.session, message)
        elif not self.messages:
            raise ValueError("the chat has no messages yet")
        else:
            reading = read(self.session, self.messages[-1].id)
        prompt = reading.prompt
        ids = (*prompt.ids, *reading.reply_ids)
        sampling = self.session.sampling
        return Inspection(self.model, ids, len(prompt.ids), prompt.segments, sampling)

    def _repr_html_(self) -> str:
        rows = (
            f"<p><b>{m.role.title()}</b> {escape(m.text)}{_mark(m.changes)}</p>"
            for m in self.messages
        )
        return f'<div style="white-space: pre-wrap">{"".join(rows)}</div>'

    def close(self) -> None:
        """End the servers of its tools, and close the store."""
        self.session.chat.close()
        self.session.chat.store.close()

    def __enter__(self) -> "OpenChat":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _decision(
    allowed: frozenset[str], request: "PermissionRequest", cancel: threading.Event
) -> Decision:
    """Whether a tool may run: if it was allowed, and need not be asked for each time."""
    tool = request.tool
    return "once" if tool.name in allowed and not tool.asks_each_time else "no"


@dataclass(frozen=True)
class Completion:
    """A continued text. tokens: those drawn, each with its `probability`. finished: its end.
    inspection: of the text with its continuation. changes: inside the model, in words."""

    text: str
    tokens: tuple[Token, ...]
    finished: Finished
    inspection: "Inspection" = field(repr=False)
    changes: str = ""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return _shaded(self.tokens, self.finished.text, self.changes)


class Inspection:
    """What a model makes of a text: each view of `chatapp inspect` is a method, with `_` for `-`.

    Its arguments are the view's options, in their order except for `token`, the place that is
    looked at, by its number or its text; the result is the view, with its numbers and `to_json`,
    and a notebook draws it. ids: those from `start` on are a reply. segments: the parts of the text
    before it.
    """

    def __init__(
        self,
        opened: OpenModel,
        ids: Sequence[int],
        start: int,
        segments: Sequence[Segment] = (),
        sampling: Sampling | None = None,
    ) -> None:
        self._opened, self._ids, self._start = opened, tuple(ids), start
        self._segments, self._sampling = segments, sampling

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name.replace("-", "_") for name in VIEWS)]

    def __getattr__(self, name: str) -> Callable[..., View]:
        if (view := VIEWS.get(name.replace("_", "-"))) is None or name.startswith("_"):
            raise AttributeError(f"there is no view {name!r}{suggestion(name, VIEWS)}")

        def look(*values: Any, **options: Any) -> View:
            return self._look(view, values, options)

        look.__name__, look.__doc__ = name, f"{view.summary}\n\n{view.formula}"
        return look

    def subject(self, token: int | str | None = None, sampling: Sampling | None = None) -> Subject:
        """The text with the place that is looked at; see `token_position`; a token's text is the
        last one before the reply. sampling: None is the model's own. Raises UserError for a token
        that does not exist.
        """
        if isinstance(token, str):
            piece = self._opened.model.tokenizer.piece  # type: ignore[attr-defined]
            places = [at for at, id in enumerate(self._ids[: self._start]) if piece(id) == token]
            if not places:
                raise UserError(f"the text has no token {token!r}")
            token = places[-1]
        model, changes = self._opened.model, self._opened.changes.added_after(self._start)
        position = token_position(token, len(self._ids)) if self._ids else 0
        return Subject(
            model,
            self._ids,
            position,
            self._start,
            changes=changes,
            sampling=sampling or self._sampling or self._opened.choices({}).sampling,
            segments=self._segments,
        )

    def _look(self, view: type[View], values: Sequence[Any], options: dict[str, Any]) -> View:
        if not self._ids and view.takes_text == "always":
            raise UserError("there is no text to inspect")
        names = [field.name for field in fields(view.Options)]
        places = [name for name in names if name != "token"]
        if len(values) > len(places):
            raise TypeError(f"{view.name} takes {', '.join(places) or 'no option'}")
        options |= dict(zip(places, values, strict=False))
        for name in options:
            if name not in names:
                raise TypeError(
                    f"{view.name}: there is no option {name!r}{suggestion(name, names)}"
                )
        chosen = view.Options(**options)
        return view.look(self.subject(getattr(chosen, "token", None)), chosen)

    def _repr_html_(self) -> str:
        return notebook_frame([self._look(view, (), {}) for view in FIRST])


@dataclass(frozen=True)
class OpenPrompt:
    """A prompt file. prompt: as it was read."""

    prompt: "PromptFile"

    def run(self, model: OpenModel, *inputs: Any, **settings: Any) -> "Answer | list[Answer]":
        """The answer to an input, with its `output` and `probabilities`; a list for several inputs.

        An input with named fields is a mapping. settings: as the options of `chatapp run`: shots,
        select, order, score, style, instruction, seed. Raises UserError, also while the model is
        changed, because labels are scored by the unchanged one.
        """
        _require_unchanged(model)
        from chatapp.dialogue.prompt_files import answerer_for
        from chatapp.tasks.evaluation.inputs import query_of

        prompt = self.prompt.changed(**settings)
        answerer = answerer_for(prompt, model.model)
        for value in inputs:
            if not isinstance(value, str | Mapping):
                raise UserError(
                    f"an input is a {type(value).__name__}, expected a text or a mapping of "
                    "fields; several inputs are several arguments: run(model, *texts)"
                )
        texts = [text if isinstance(text, str) else json.dumps(dict(text)) for text in inputs]
        queries = [query_of(text, prompt.columns, "the input") for text in texts]
        if prompt.text is not None:
            queries = [""]
        answers = answerer.answer([answerer.prepare(query) for query in queries])
        return answers[0] if len(answers) == 1 else answers

    def evaluate(
        self,
        model: OpenModel,
        test: str | Path,
        *,
        limit: int | None = None,
        seeds: int = 1,
        seed: int = 0,
        **settings: Any,
    ) -> "Evaluation":
        """Measure it on test items.

        test: a file of them. limit: at most this many, drawn by the seed. settings: as in `run`;
        each may be a list of values to compare. Raises UserError, as `run`.
        """
        _require_unchanged(model)
        from chatapp.dialogue.prompt_files import measure_tasks
        from chatapp.tasks.evaluation.evaluate import Grid, Task, subset
        from chatapp.tasks.evaluation.inputs import read_test

        items = subset(read_test(Path(test), self.prompt.columns), limit, seed)
        task = Task(self.prompt.path.stem, self.prompt, items, str(test))
        values = {
            name: [str(one) for one in (value if isinstance(value, list | tuple) else [value])]
            for name, value in settings.items()
        }
        results = measure_tasks(model.model, [task], Grid.of(values, seeds, seed))
        return Evaluation([replace(result, model=model.model.name) for result in results])


def _require_unchanged(model: OpenModel) -> None:
    if model.changes:
        raise UserError(f"{model}: prompt files are answered by unchanged models alone")


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation, one for each setting."""

    results: "list[Result]"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The results as plain data, as `chatapp eval --json` prints them."""
        return [result.to_json() for result in self.results]

    def _repr_html_(self) -> str:
        from chatapp.tasks.evaluation.report import table

        return rich_html(table(self.results), 200)


def _mark(changes: str) -> str:
    """What a reply of a changed model carries; changes: in words, "" for none."""
    return f" <small>({escape(changes)})</small>" if changes else ""


def _shaded(tokens: Sequence[Token], rest: str, changes: str) -> str:
    """Tokens as HTML: the likelier, the darker; the probability appears at the pointer. rest: what
    was held back until the end."""
    spans = []
    for token in tokens:
        likely = 0.0 if math.isnan(token.logprob) else token.probability
        style = f"background: rgba(46, 125, 50, {0.55 * likely:.2f})"
        title = f"{token.piece!r}: {likely:.1%}"
        spans.append(f'<span style="{style}" title="{escape(title)}">{escape(token.text)}</span>')
    return (
        f'<div style="white-space: pre-wrap">{"".join(spans)}{escape(rest)}{_mark(changes)}</div>'
    )
