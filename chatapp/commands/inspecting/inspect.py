"""`chatapp inspect`: what a model makes of a text, token by token.

Invariant: the terminal, the exported file and the JSON document show the same numbers, and foreign
text is plain text in all three.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands.console import interruptible, standard_input, write, write_json, write_output
from chatapp.commands.inspecting.close_ups import CloseUps, find_close_ups
from chatapp.commands.inspecting.heads import HeadOptions, find_heads
from chatapp.commands.inspecting.masked import find_masked
from chatapp.commands.inspecting.parts import PartOptions, find_parts
from chatapp.commands.inspecting.places import Place, checked_place, text_position
from chatapp.commands.inspecting.prompt_parts import explain_text
from chatapp.commands.loading import choices_for, load
from chatapp.commands.options import (
    ForceOption,
    JsonOption,
    ModelOption,
    grouped_options,
    sampling_options,
    settings_of,
)
from chatapp.common.userfiles import UserError
from chatapp.lab.findings import FINDINGS, Attention, Finding, Layers, NextToken, Tokens

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel, Sampling
    from chatapp.lab.inspectable import Inspectable
    from chatapp.lab.predictions import Stepper

SECTIONS = tuple(kind.name for kind in FINDINGS)

_MOST_IN_FULL = 128
"""Tokens whose attention is complete in the document: layers · heads · 128² numbers."""


@dataclass(frozen=True, slots=True)
class Sections:
    """What is shown of the text itself."""

    tokens: Annotated[
        bool, typer.Option("--tokens", help="Show the tokens and how probable each was.")
    ] = False
    next_token: Annotated[
        bool,
        typer.Option(
            "--next",
            help="Show the next token's distribution, before and after top-k, top-p and min-p.",
        ),
    ] = False
    attention: Annotated[
        bool, typer.Option("--attention", help="Show what a token attends to.")
    ] = False
    layers: Annotated[
        bool, typer.Option("--layers", help="Show what each layer would predict after a token.")
    ] = False
    parts: Annotated[
        bool,
        typer.Option(
            "--parts",
            help="Show what in the text mattered for the next token, by token and by part: what "
            "empty lines divide, or else each line.",
        ),
    ] = False

    @property
    def names(self) -> list[str]:
        """The chosen findings, in their order."""
        chosen = (self.tokens, self.next_token, self.attention, self.layers)
        return [name for name, is_chosen in zip(SECTIONS, chosen, strict=True) if is_chosen]


@dataclass(frozen=True, slots=True)
class Target:
    """Where the findings go."""

    output: Annotated[
        Path | None, typer.Option(help="Write a self-contained file: .html or .svg.")
    ] = None
    force: ForceOption = False
    as_json: JsonOption = False

    def check(self) -> None:
        """Raises UserError for a file that cannot be written."""
        output = self.output
        if output is None:
            return
        if output.suffix.lower() not in (".html", ".svg"):
            raise UserError(f"{output}: unsupported file type; use .html or .svg")
        if self.as_json:
            raise UserError("use either --output or --json, not both")
        if output.exists() and not self.force:  # before the model is loaded
            raise UserError(f"{output}: this file already exists; --force replaces it")

    def take(self, findings: Sequence[Finding], document: dict[str, Any]) -> None:
        """Print findings, write them to the file, or add them to the JSON document."""
        if self.as_json:
            write_json(document | {finding.name: finding.to_json() for finding in findings})
        elif self.output is not None:
            from chatapp.lab.figures.page import html_page
            from chatapp.lab.figures.svg import svg_picture

            draw = html_page if self.output.suffix.lower() == ".html" else svg_picture
            write_output(self.output, draw(findings), force=self.force)
        else:
            from chatapp.lab.figures.console import printed

            # Foreign text was made safe piece by piece; the rest are Rich's own colours.
            write(printed(findings, in_color=sys.stdout.isatty()), verbatim=True)


@sampling_options("temperature", "top_k", "top_p", "min_p")
@grouped_options
def inspect(
    context: typer.Context,
    sections: Sections,
    heads: HeadOptions,
    experiments: PartOptions,
    close_ups: CloseUps,
    place: Place,
    target: Target,
    text: Annotated[
        str | None, typer.Argument(help="The text to inspect. Standard input is appended to it.")
    ] = None,
    model: ModelOption = None,
) -> None:
    """Show what a model makes of a text: tokens, attention, layers, what comes next.

    Without any choice it shows --tokens, --next, --attention and --layers.
    """
    settings = settings_of(context)
    content = (text or "") + standard_input()
    target.check()
    against = experiments.against
    is_chosen = sections.parts or experiments.are_given or close_ups.are_given
    with interruptible("interrupted"):
        if heads.heads:
            if sections.names or sections.parts:
                raise UserError("--heads is about the whole model; leave the other parts out")
            cell = place.layer, place.head
            findings = find_heads(settings, heads, content, against, cell)
            target.take(findings, {"model": settings.model})
            return
        if not content:
            raise UserError("there is no text to inspect; pass it in quotes or on standard input")
        if (masked := find_masked(settings, content, sections.names, place, is_chosen)) is not None:
            target.take(masked, {"model": settings.model, "text": content})
            return
        language_model = load(settings.model, "float32", settings.device)
        sampling = choices_for(language_model, settings).sampling
        names = sections.names or ([] if is_chosen else list(SECTIONS))
        look = _Look(language_model, content, place)
        in_full = look.in_full(names) if target.as_json and place.token is None else {}
        findings = look.sections([name for name in names if name not in in_full], sampling)
        findings += look.questions(experiments, close_ups, has_parts=sections.parts)
        document = {"model": language_model.name, "text": content, **in_full}
        target.take(findings, document)


class _Look:
    """A text that a model has read. Raises UserError for a place that is not there."""

    def __init__(self, model: "LanguageModel", content: str, place: Place) -> None:
        from chatapp.lab.architectures.encoder_decoder import reply_of

        self._model, self._place = model, place
        self._opened = _opened(model)
        self._prompt = model.tokenizer.encode(content)
        self._reply = reply_of(model, self._prompt)
        self._trace = trace = self._opened.inspect(self._prompt, reply=self._reply)
        self._position = position = text_position(place.token, len(trace.ids))
        self._cell = (
            checked_place("layer", place.layer, trace.layers),
            checked_place("head", place.head, trace.heads),
        )
        self._before, self._after = trace.ids[: position + 1], trace.ids[position + 1 :]

    def sections(self, names: Sequence[str], sampling: "Sampling") -> list[Finding]:
        """What is shown of the text itself."""
        from chatapp.lab.architectures.encoder_decoder import CrossAttention, EncoderDecoderTrace

        trace, position, top = self._trace, self._position, self._place.top
        makers: dict[str, Callable[[], Finding]] = {
            Tokens.name: lambda: Tokens.of(trace, top),
            NextToken.name: lambda: NextToken.of(self._stepper(sampling), top),
            Attention.name: lambda: Attention.of(trace, position, *self._cell),
            Layers.name: lambda: Layers.of(trace, position, top),
        }
        findings = [makers[name]() for name in names]
        if isinstance(trace, EncoderDecoderTrace) and self._reply and Attention.name in names:
            findings.append(CrossAttention.of(trace, *self._cell))
        return findings

    def _stepper(self, sampling: "Sampling") -> "Stepper":
        return self._opened.stepper(self._prompt, sampling, reply=self._reply)

    def questions(
        self, experiments: PartOptions, close_ups: CloseUps, *, has_parts: bool
    ) -> list[Finding]:
        """What is asked about the token after the place."""
        model, before, follower = self._model, self._before, next(iter(self._after), None)
        findings: list[Finding] = []
        if experiments.are_given:
            findings += find_parts(model, before, experiments, follower)
        if close_ups.are_given:
            findings += find_close_ups(model, before, self._position, close_ups, self._place.top)
        if has_parts:
            pair = experiments.answer, experiments.against
            findings.append(explain_text(model, before, *pair, follower))
        return findings

    def in_full(self, sections: Sequence[str]) -> dict[str, Any]:
        """Attention and layers of every token, for a document without a choice of them.

        Raises UserError for a text that is too long.
        """
        trace, size = self._trace, len(self._trace.ids)
        wanted = {Attention.name, Layers.name} & set(sections)
        if wanted and size > _MOST_IN_FULL:
            raise UserError(
                f"the text has {size} tokens, but all attention and layers are shown for "
                f"{_MOST_IN_FULL} at most; choose a token with --token, or use only --tokens or "
                "--next"
            )
        data: dict[str, Any] = {}
        if Attention.name in wanted:
            data[Attention.name] = trace.attentions().tolist()
        if Layers.name in wanted:
            top = self._place.top
            by_token = [Layers.of(trace, position, top).to_json() for position in range(size)]
            data[Layers.name] = list(zip(*by_token, strict=True))
        return data


def _opened(model: "LanguageModel") -> "Inspectable":
    """Raises UserError for a model that cannot be inspected."""
    from chatapp.lab.inspectable import inspectable

    opened = inspectable(model)
    if opened is None:
        raise UserError(f"{model.name}: this kind of model cannot be inspected")
    return opened
