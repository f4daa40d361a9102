"""`chatapp inspect --why, --ablate, --patch, --circuit`: which parts of a model did it.

Invariant: nothing of torch is imported before a model is loaded.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands.console import progress
from chatapp.common.userfiles import UserError, quoted
from chatapp.lab.experiments import (
    MEAN,
    Ablation,
    Losses,
    Patches,
    Question,
    SmallestCircuit,
    Why,
    ask,
    token_of,
)
from chatapp.lab.findings import Finding

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.patching import Direction

ALL = "all"
"""Stands for each head and each MLP, one after the other."""

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class PartOptions:
    """What the options of `inspect` say of these questions; None or False where not given.

    ablate: names of parts, or `ALL`. patch: the corrupt prompt. noise: tokens that get noise.
    """

    why: Annotated[
        bool,
        typer.Option("--why", help="Show what each part of the model adds to the answer's logit."),
    ] = False
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help='The token that --why, --ablate, --patch and --circuit are about, such as " '
            'Mary": the one that follows --token, or the most likely one. For --parts it may be '
            "several tokens, and so may --against.",
        ),
    ] = None
    against: Annotated[
        str | None,
        typer.Option(
            help="A token to compare the answer with: the runner-up by default, or mean for the "
            "mean of all logits. For --heads and --layers, a model of the same shape to show what "
            "differs from it."
        ),
    ] = None
    ablate: Annotated[
        str | None,
        typer.Option(
            metavar="PARTS",
            help="Show what changes without parts, such as 3.5,4.mlp (head 5 of layer 3, the MLP "
            "of layer 4); all is each head and MLP alone.",
        ),
    ] = None
    mean: Annotated[
        bool,
        typer.Option("--mean", help="Replace parts of --ablate by their means over the text."),
    ] = False
    losses: Annotated[
        bool,
        typer.Option("--losses", help="Show how the text's loss rises without each head and MLP."),
    ] = False
    patch: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="A text of as many tokens: show which states carry the difference between the "
            "two.",
        ),
    ] = None
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS", help="As --patch, with noise on tokens of the text, as 2-4,7."
        ),
    ] = None
    destroy: Annotated[
        bool,
        typer.Option(
            "--destroy",
            help="Patch the other text into this one, instead of this into the other.",
        ),
    ] = False
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Estimate patches by one backward pass; the ten largest are measured.",
        ),
    ] = False
    circuit: Annotated[
        bool,
        typer.Option(
            "--circuit", help="Find the fewest heads and MLPs that keep 90 % of the answer."
        ),
    ] = False

    @property
    def are_given(self) -> bool:
        """Whether one of these questions is put."""
        return bool(
            self.why
            or self.circuit
            or self.losses
            or self.ablate is not None
            or self.patch is not None
            or self.noise is not None
        )


def find_parts(
    model: "LanguageModel", ids: Sequence[int], options: PartOptions, following: int | None
) -> list[Finding]:
    """The answers to the questions, in the order of the options. Raises UserError.

    ids: the text up to the token after which it is looked. following: what did follow it, which
    is asked for unless an answer is named.
    """
    if options.patch is not None and options.noise is not None:
        raise UserError("use either --patch or --noise, not both")
    if options.destroy and options.patch is None and options.noise is None:
        raise UserError("--destroy needs --patch or --noise")
    question = ask(model, ids, *_contrast(model, options, following))
    findings: list[Finding] = []
    if options.why:
        with progress("Switching parts off") as report:
            findings.append(Why.of(question, progress=report))
    if options.ablate is not None:
        findings.append(_ablated(question, options))
    if options.losses:
        with progress("Switching parts off") as report:
            findings.append(Losses.of(question, report))
    if options.patch is not None or options.noise is not None:
        findings.append(_patched(model, question, options))
    if options.circuit:
        with progress("Searching the circuit") as report:
            findings.append(SmallestCircuit.of(question, progress=report))
    return findings


def _contrast(
    model: "LanguageModel", options: PartOptions, following: int | None
) -> tuple[int | None, int | str | None]:
    """The two tokens that are compared, as far as they are named."""
    tokenizer, answer, against = model.tokenizer, options.answer, options.against
    token = following if answer is None else token_of(tokenizer, answer, "--answer")
    if against is None or against == MEAN:
        return token, against
    return token, token_of(tokenizer, against, "--against")


def _ablated(question: Question, options: PartOptions) -> Finding:
    from chatapp.engine.decoder.interventions import parse_parts

    names = options.ablate or ""
    if names.strip() == ALL:
        if options.mean:
            raise UserError("--ablate all replaces by zeros; leave --mean out, or name the parts")
        with progress("Switching parts off") as report:
            return Ablation.of_each(question, report)
    parts = parse_parts(names, question.reading.decoder.architecture)
    return Ablation.of(question, parts, is_mean=options.mean)


def _patched(model: "LanguageModel", question: Question, options: PartOptions) -> Finding:
    other: Question | list[int]
    if options.noise is not None:
        other = _tokens(options.noise)
    else:
        if not options.patch:
            raise UserError("--patch is empty; expected a text of as many tokens as the first")
        corrupt = model.tokenizer.encode(options.patch)
        contrast = question.contrast
        other = ask(model, corrupt, contrast.token, MEAN)
    direction: Direction = "destroy" if options.destroy else "restore"
    with progress("Patching") as report:
        return Patches.of(question, other, direction, estimate=options.estimate, progress=report)


def _tokens(text: str) -> list[int]:
    """The tokens that `2-4,7` stands for. Raises UserError."""
    indices: list[int] = []
    for part in re.split(r"[\s,]+", text.strip()):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UserError(f"--noise is {quoted(text)}; expected numbers of tokens, such as 2-4,7")
        first, last = int(match[1]), int(match[2] or match[1])
        indices += range(first, min(last, 10**6) + 1)
    return indices
