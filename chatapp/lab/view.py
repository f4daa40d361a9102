"""What a view of the model is: one class, from which every place that shows it follows.

A subclass of `View` in a file of `lab/views`, named in the table `VIEWS` there, is the whole of a
view: its name, words, formula and key; its options; how it is computed; what it says in a sentence;
the blocks that it is drawn with; its JSON. From it follow `chatapp inspect NAME` with help and
completion, the inspector's close-up with its key and F1, pages and pictures, the table in the
guide, and what a notebook shows.

Invariant: a view has every number that is drawn. Whoever draws it computes nothing, so the
terminal, files, JSON and the inspector agree. This module knows no screen, and imports no torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from chatapp.common.shading import visible
from chatapp.common.userfiles import Progress, UserError, no_progress
from chatapp.lab.drawing.blocks import Block

if TYPE_CHECKING:
    from chatapp.engine.backends.masked import MaskedModel
    from chatapp.engine.decoder.interventions import Interventions, Part
    from chatapp.engine.model import LanguageModel, Sampling, Tokenizer
    from chatapp.lab.inspectable import Inspectable
    from chatapp.lab.predictions import Prediction
    from chatapp.lab.traces import Trace
    from chatapp.prompting.messages import Segment


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a view on the command line, as its field declares it.

    flag: its name there, where it is not the field's. is_argument: whether it stands before the
    text, without a name. least, most: the bounds of a number. names: the values that it takes.
    is_local: whether it names a file or a model of this machine, as no request to a server may.
    """

    help: str
    flag: str = ""
    metavar: str | None = None
    is_argument: bool = False
    least: int | None = None
    most: int | None = None
    names: tuple[str, ...] = ()
    is_local: bool = False


def option(help: str, default: Any = None, **declared: Any) -> Any:
    """A field of a view's `Options`. declared: further fields of `Option`."""
    given = MISSING if declared.get("is_argument") else default
    made = Option(help, **declared)
    return field(default=given, metadata={"option": made, "ge": made.least, "le": made.most})


@dataclass(frozen=True)
class NoOptions:
    """What most views need beside the text: nothing."""


@dataclass(frozen=True, kw_only=True)
class AtToken:
    """Where in the text it is looked."""

    token: int | None = option("The token's index, from 0; -1 is the last and the default.")


@dataclass(frozen=True, kw_only=True)
class Top:
    """How many alternatives are shown."""

    top: int = option("Number of alternatives to show.", 10, least=1, most=100)


@dataclass(frozen=True, kw_only=True)
class Compared(AtToken):
    """Which two tokens are compared after the place that is looked at."""

    answer: str | None = option(
        'The token in question, such as " Mary": the one that follows --token, or the most likely.',
        metavar="TOKEN",
    )
    against: str | None = option(
        "The token to compare it with: the runner-up by default, or mean for the mean of all "
        "logits.",
        metavar="TOKEN",
    )


@dataclass
class Subject:
    """A text that a model reads, and the place in it that is looked at.

    ids: those from `start` on are the reply. position: of the chosen token. cell: the chosen layer
    and head. changes: inside the model. segments: the parts of the text before the reply. is_chat:
    whether it is a chat's text, in which views of the whole model have no interest. masked: the
    model, where it fills in masks; there is no other then.
    """

    model: "LanguageModel"
    ids: tuple[int, ...] = ()
    position: int = 0
    start: int | None = None
    cell: tuple[int, int] | None = None
    changes: "Interventions | None" = None
    sampling: "Sampling | None" = None
    segments: "Sequence[Segment]" = ()
    is_chat: bool = False
    masked: "MaskedModel | None" = None
    progress: Progress = field(default=no_progress, repr=False)

    @property
    def ids_up_to_token(self) -> tuple[int, ...]:
        """The tokens up to the chosen one."""
        return self.ids[: self.position + 1]

    @property
    def following(self) -> int | None:
        """The token after the chosen one; None after the last."""
        return next(iter(self.ids[self.position + 1 :]), None)

    @property
    def interventions(self) -> "Interventions":
        """The changes inside the model, none by default."""
        from chatapp.engine.decoder.interventions import UNCHANGED

        return UNCHANGED if self.changes is None else self.changes

    @cached_property
    def opened(self) -> "Inspectable":
        """The model as one that can be looked into. Raises UserError."""
        from chatapp.lab.inspectable import inspectable

        if (opened := inspectable(self.model)) is None:
            raise UserError(f"{self.model.name}: this kind of model cannot be inspected")
        return opened

    @cached_property
    def trace(self) -> "Trace":
        """What the model did while it read the text: one pass."""
        if self.masked is not None:
            from chatapp.lab.masks import MaskedTrace

            return MaskedTrace(self.masked, self.ids, self.position)
        start = len(self.ids) if self.start is None else self.start
        return self.opened.inspect(self.ids[:start], self.interventions, self.ids[start:])

    @property
    def head(self) -> str:
        """The chosen head, such as 4.1. Raises UserError where none is chosen."""
        if self.cell is None:
            raise UserError(
                "Choose a head first, in Why, Attention or Heads: Tab, then the arrows."
            )
        return "{}.{}".format(*self.cell)

    def part(self, name: str) -> "Part":
        """A part of the model by its name, such as 4.1 or 3.mlp. Raises UserError."""
        from chatapp.engine.decoder.interventions import parse_part
        from chatapp.lab.heads import own_decoder

        return parse_part(name, own_decoder(self.model).decoder.architecture)


class View(ABC):
    """What is seen of a model in one place. A subclass is a dataclass of its numbers.

    name: of the command and in JSON. title: above what is drawn. summary: what it shows, in a
    sentence. formula: what is computed, and its source. key: of the close-up in the inspector;
    "" for none. takes_text: whether it is about a text. samples: whether sampling parameters
    matter. reads_masks: whether masked models have it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    formula: ClassVar[str]
    key: ClassVar[str] = ""
    takes_text: ClassVar[Literal["always", "possibly", "never"]] = "always"
    samples: ClassVar[bool] = False
    reads_masks: ClassVar[bool] = False
    Options: ClassVar[type[Any]] = AtToken

    @classmethod
    @abstractmethod
    def look(cls, subject: Subject, options: Any) -> "View":
        """Compute it; `subject.progress` may raise to stop. Raises UserError."""

    @classmethod
    def here(cls, subject: Subject) -> Any:
        """The options that stand for what is chosen in the inspector. Raises UserError."""
        return cls.Options()

    @property
    @abstractmethod
    def reading(self) -> str:
        """What is seen here, in a plain sentence made from the numbers. Safe for a terminal."""

    @abstractmethod
    def blocks(self) -> Sequence[Block]:
        """What it is drawn with, below its title and reading."""

    def to_json(self) -> Any:
        """Its numbers as plain data. Probabilities are those of the plain softmax, entropies in
        bits."""
        return asdict(self)  # type: ignore[call-overload]

    @classmethod
    def whole(cls, subject: Subject, options: Any) -> Any:
        """JSON of every token where none is chosen; None where that is the same. Raises UserError
        for a text that is too long."""
        return None

    @classmethod
    def document(cls, subject: Subject, options: Any) -> dict[str, Any]:
        """Its JSON, by the name of what is shown: of every token where none is chosen and there is
        such a document, see `whole`. Raises as `look` does.
        """
        is_whole = subject.masked is None and getattr(options, "token", 0) is None
        whole = cls.whole(subject, options) if is_whole else None
        if whole is not None:
            return {cls.name: whole}
        view = cls.look(subject, options)
        return {view.name: view.to_json()}

    @classmethod
    def options_of(cls, values: Mapping[str, Any]) -> Any:
        """The options of a request to a server. Raises UserError for one that does not exist, is of
        another kind or out of range, or names a file or a model of this machine."""
        from chatapp.common.validation import strict_model, validated

        for item in fields(cls.Options):
            declared = item.metadata.get("option")
            if item.name in values and declared is not None and declared.is_local:
                raise UserError(f"{cls.name}: no request may set {item.name}")
        checked = validated(
            strict_model(cls.Options), values, UserError, origin=f"views.{cls.name}", what="view"
        )
        return cls.Options(**checked.model_dump())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from chatapp.lab.drawing.pictures import notebook_frame

        return notebook_frame([self])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What a notebook keeps beside it: the sentence, instead of thousands of numbers."""
        return {"text/plain": self.reading}


def checked_place(name: str, value: int | None, size: int) -> int | None:
    """A layer or head from an option. Raises UserError when there is none."""
    if value is not None and not 0 <= value < size:
        raise UserError(f"--{name} is {value}; the model has {size}, numbered from 0")
    return value


def token_position(token: int | None, count: int) -> int:
    """The position of a chosen token among `count`: from 0, or from the end by a negative number;
    None is the last. Raises UserError when there is none."""
    position = count - 1 if token is None else token + count * (token < 0)
    if not 0 <= position < count:
        raise UserError(f"--token is {token}; the text has {count} tokens, numbered from 0")
    return position


def token_of(tokenizer: "Tokenizer", text: str, option: str) -> int:
    """The token that a text is. Raises UserError where it is none, or several."""
    ids = tokenizer.encode(text, begins=False)
    if len(ids) != 1:
        spaced = tokenizer.encode(f" {text}", begins=False)
        hint = f'; " {text}" is one' if text and len(spaced) == 1 else ""
        raise UserError(f"{option} is {text!r}, which is {len(ids)} tokens, not one{hint}")
    return ids[0]


def state_name(index: int) -> str:
    """The name of a state of the residual stream, of those from the embeddings on: `embed`, or the
    layer that it comes from, counted from 0.
    """
    return str(index - 1) if index else "embed"


def named_token(texts: Sequence[str], position: int) -> str:
    """A token in a sentence, between bars, so that its spaces are visible."""
    return f"token {position} │{visible(texts[position])}│"


def candidates_json(prediction: "Prediction") -> list[dict[str, Any]]:
    """The most likely tokens as plain data."""
    return [asdict(candidate) for candidate in prediction.candidates]
