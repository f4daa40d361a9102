"""`chatapp inspect`: what a model makes of a text, token by token.

Invariant: the terminal, the exported file and the JSON document show the same numbers, and foreign
text is plain text in all three.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands.console import interruptible, standard_input, write, write_json, write_output
from chatapp.commands.inspecting.heads import find_heads
from chatapp.commands.inspecting.parts import PartOptions, find_parts
from chatapp.commands.inspecting.prompt_parts import explain_text
from chatapp.commands.loading import choices_for, load
from chatapp.commands.options import (
    ForceOption,
    JsonOption,
    ModelOption,
    sampling_options,
    settings_of,
)
from chatapp.common.userfiles import UserError
from chatapp.lab.findings import FINDINGS, Attention, Finding, Layers, NextToken, Tokens

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.inspectable import Inspectable
    from chatapp.lab.traces import Trace

SECTIONS = tuple(kind.name for kind in FINDINGS)

_MOST_IN_FULL = 128
"""Tokens whose attention is complete in the document: layers · heads · 128² numbers."""


TextArgument = Annotated[
    str | None, typer.Argument(help="The text to inspect. Standard input is appended to it.")
]
TokensOption = Annotated[
    bool, typer.Option("--tokens", help="Show the tokens and how probable each was.")
]
NextOption = Annotated[
    bool,
    typer.Option(
        "--next",
        help="Show the next token's distribution, before and after top-k, top-p and min-p.",
    ),
]
AttentionOption = Annotated[bool, typer.Option("--attention", help="Show what a token attends to.")]
LayersOption = Annotated[
    bool, typer.Option("--layers", help="Show what each layer would predict after a token.")
]
HeadsOption = Annotated[
    bool,
    typer.Option(
        "--heads",
        help="Show what each head does: previous token, induction, copying and more. Without a "
        "text, measured on the texts of --texts, or on a sample.",
    ),
]
PartsOption = Annotated[
    bool,
    typer.Option(
        "--parts",
        help="Show what in the text mattered for the next token, by token and by part: what empty "
        "lines divide, or else each line.",
    ),
]
SortOption = Annotated[str, typer.Option(help="The measure that --heads sorts by.")]
TextsOption = Annotated[
    Path | None, typer.Option(help="A file of texts for --heads, an empty line after each.")
]
AgainstOption = Annotated[
    str | None,
    typer.Option(
        help="A token to compare the answer with: the runner-up by default, or mean for the mean "
        "of all logits. For --heads and --layers, a model of the same shape to show what differs "
        "from it."
    ),
]
LensOption = Annotated[
    Path | None,
    typer.Option(
        metavar="TEXTS",
        help="Compute the model's Jacobian lens on the texts of a file, an empty line after each, "
        "and keep it for --layers. It goes on where it was interrupted.",
    ),
]
WhyOption = Annotated[
    bool,
    typer.Option("--why", help="Show what each part of the model adds to the answer's logit."),
]
AnswerOption = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        help='The token that --why, --ablate, --patch and --circuit are about, such as " Mary": '
        "the one that follows --token, or the most likely one.",
    ),
]
AblateOption = Annotated[
    str | None,
    typer.Option(
        metavar="PARTS",
        help="Show what changes without parts, such as 3.5,4.mlp (head 5 of layer 3, the MLP of "
        "layer 4); all is each head and MLP alone.",
    ),
]
MeanOption = Annotated[
    bool,
    typer.Option("--mean", help="Replace parts of --ablate by their means over the text."),
]
LossesOption = Annotated[
    bool,
    typer.Option("--losses", help="Show how the text's loss rises without each head and MLP."),
]
PatchOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="A text of as many tokens: show which states carry the difference between the two.",
    ),
]
NoiseOption = Annotated[
    str | None,
    typer.Option(metavar="TOKENS", help="As --patch, with noise on tokens of the text, as 2-4,7."),
]
DestroyOption = Annotated[
    bool,
    typer.Option(
        "--destroy", help="Patch the other text into this one, instead of this into the other."
    ),
]
EstimateOption = Annotated[
    bool,
    typer.Option(
        "--estimate", help="Estimate patches by one backward pass; the ten largest are measured."
    ),
]
CircuitOption = Annotated[
    bool,
    typer.Option("--circuit", help="Find the fewest heads and MLPs that keep 90 % of the answer."),
]
NeighboursOption = Annotated[
    str | None,
    typer.Option(metavar="TOKEN", help='Show the tokens nearest to a token, such as " king".'),
]
StateOption = Annotated[
    str | None,
    typer.Option(
        metavar="LAYER", help="Show the tokens nearest to a layer's hidden state, or to embed's."
    ),
]
WeightOption = Annotated[
    str | None,
    typer.Option(metavar="HEAD", help="Show step by step how a head, such as 3.5, weighs keys."),
]
NormsOption = Annotated[
    bool, typer.Option("--norms", help="Show the residual stream's norm by layer.")
]
NeuronsOption = Annotated[
    str | None,
    typer.Option(
        metavar="MLP", help="Show the neurons of an MLP, such as 4.mlp, with the largest effect."
    ),
]
PositionsOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Compare with a text of as many tokens in another order: with positions as they are, "
        "switched off and shuffled.",
    ),
]
TokenOption = Annotated[
    int | None,
    typer.Option(help="The token's index, from 0; -1 is the last and the default."),
]
LayerOption = Annotated[
    int | None, typer.Option(help="Show this layer's attention only, numbered from 0.")
]
HeadOption = Annotated[
    int | None, typer.Option(help="Show this head's attention only, numbered from 0.")
]
TopOption = Annotated[int, typer.Option(min=1, max=100, help="Number of alternatives to show.")]
OutputOption = Annotated[
    Path | None, typer.Option(help="Write a self-contained file: .html or .svg.")
]


@sampling_options("temperature", "top_k", "top_p", "min_p")
def inspect(
    context: typer.Context,
    text: TextArgument = None,
    tokens: TokensOption = False,
    next_token: NextOption = False,
    attention: AttentionOption = False,
    layers: LayersOption = False,
    lens_from: LensOption = None,
    parts: PartsOption = False,
    heads: HeadsOption = False,
    sort: SortOption = "induction",
    texts: TextsOption = None,
    against: AgainstOption = None,
    why: WhyOption = False,
    answer: AnswerOption = None,
    ablate: AblateOption = None,
    mean: MeanOption = False,
    losses: LossesOption = False,
    patch: PatchOption = None,
    noise: NoiseOption = None,
    destroy: DestroyOption = False,
    estimate: EstimateOption = False,
    circuit: CircuitOption = False,
    neighbours: NeighboursOption = None,
    state: StateOption = None,
    weight: WeightOption = None,
    norms: NormsOption = False,
    neurons: NeuronsOption = None,
    positions: PositionsOption = None,
    token: TokenOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    top: TopOption = 10,
    output: OutputOption = None,
    force: ForceOption = False,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a model makes of a text: tokens, attention, layers, what comes next.

    Without any choice it shows --tokens, --next, --attention and --layers.
    """
    settings = settings_of(context)
    content = (text or "") + standard_input()
    if output is not None:
        _check_output(output, as_json, force)
    if lens_from is not None:
        with interruptible("interrupted; the same command goes on"):
            from chatapp.commands.inspecting.lenses import make_lens  # with rich

            finding = make_lens(settings, lens_from)
            _give(finding, {"model": settings.model}, as_json=as_json, output=output, force=force)
        return
    if heads:
        if tokens or next_token or attention or layers or parts:
            raise UserError("--heads is about the whole model; leave the other parts out")
        with interruptible("interrupted"):
            finding = find_heads(
                settings,
                content=content,
                texts=texts,
                against=against,
                sort=sort,
                cell=(layer, head),
            )
            _give(finding, {"model": settings.model}, as_json=as_json, output=output, force=force)
        return
    if not content:
        raise UserError("there is no text to inspect; pass it in quotes or on standard input")
    wanted = dict(zip(SECTIONS, (tokens, next_token, attention, layers), strict=True))
    experiments = PartOptions(
        why, answer, against, ablate, mean, losses, patch, noise, destroy, estimate, circuit
    )
    from chatapp.commands.inspecting.close_ups import CloseUps, find_close_ups  # with rich

    close_ups = CloseUps(neighbours, state, weight, norms, neurons, positions)
    is_chosen = parts or experiments.are_given or close_ups.are_given
    everything = [] if is_chosen else list(SECTIONS)
    sections = [name for name in SECTIONS if wanted[name]] or everything
    if sections == [Layers.name] and against is not None and not is_chosen:
        with interruptible("interrupted"):
            document = {"model": settings.model, "text": content}
            from chatapp.commands.inspecting.lenses import compare_layers  # with rich

            compared = compare_layers(settings, against, content)
            _give(compared, document, as_json=as_json, output=output, force=force)
        return
    language_model = load(settings.model, "float32", settings.device)
    with interruptible("interrupted"):
        opened = _opened(language_model)
        trace = opened.inspect(language_model.tokenizer.encode(content))
        sampling = choices_for(language_model, settings).sampling
        position = _position(token, len(trace.ids))
        cell = _place("layer", layer, trace.layers), _place("head", head, trace.heads)
        makers: dict[str, Callable[[], Finding]] = {
            Tokens.name: lambda: Tokens.of(trace, top),
            NextToken.name: lambda: NextToken.of(opened.stepper(trace.ids, sampling), top),
            Attention.name: lambda: Attention.of(trace, position, *cell),
            Layers.name: lambda: Layers.of(trace, position, top),
        }
        in_full = _in_full(trace, sections, top) if as_json and token is None else {}
        findings = [makers[name]() for name in sections if name not in in_full]
        before, after = trace.ids[: position + 1], trace.ids[position + 1 :]
        follower = next(iter(after), None)
        if experiments.are_given:
            findings += find_parts(language_model, before, experiments, follower)
        if close_ups.are_given:
            findings += find_close_ups(language_model, before, position, close_ups, top)
        if parts:
            findings.append(explain_text(language_model, before, answer, against, follower))
        document = {"model": language_model.name, "text": content, **in_full}
        _give(findings, document, as_json=as_json, output=output, force=force)


def _give(
    findings: Sequence[Finding],
    document: dict[str, Any],
    *,
    as_json: bool,
    output: Path | None,
    force: bool,
) -> None:
    """Print findings, write them to a file, or add them to a JSON document."""
    if as_json:
        write_json(document | {finding.name: finding.to_json() for finding in findings})
    elif output is not None:
        _export(findings, output, force=force)
    else:
        _show(findings)


def _opened(model: "LanguageModel") -> "Inspectable":
    """Raises UserError for a model that cannot be inspected."""
    from chatapp.lab.inspectable import inspectable

    opened = inspectable(model)
    if opened is None:
        raise UserError(f"{model.name}: this kind of model cannot be inspected")
    return opened


def _position(token: int | None, count: int) -> int:
    """The position of --token among `count` tokens. Raises UserError when there is none."""
    position = count - 1 if token is None else token + count * (token < 0)
    if not 0 <= position < count:
        raise UserError(f"--token is {token}; the text has {count} tokens, numbered from 0")
    return position


def _place(name: str, value: int | None, size: int) -> int | None:
    """A layer or head from an option. Raises UserError when there is none."""
    if value is not None and not 0 <= value < size:
        raise UserError(f"--{name} is {value}; the model has {size}, numbered from 0")
    return value


def _in_full(trace: "Trace", sections: list[str], top: int) -> dict[str, Any]:
    """Attention and layers of every token, for a document without a choice of them.

    Raises UserError for a text that is too long.
    """
    size = len(trace.ids)
    wanted = {Attention.name, Layers.name} & set(sections)
    if wanted and size > _MOST_IN_FULL:
        raise UserError(
            f"the text has {size} tokens, but all attention and layers are shown for "
            f"{_MOST_IN_FULL} at most; choose a token with --token, or use only --tokens or --next"
        )
    data: dict[str, Any] = {}
    if Attention.name in wanted:
        data[Attention.name] = trace.attentions().tolist()
    if Layers.name in wanted:
        by_token = [Layers.of(trace, position, top).to_json() for position in range(size)]
        data[Layers.name] = list(zip(*by_token, strict=True))
    return data


def _check_output(output: Path, as_json: bool, force: bool) -> None:
    """Raises UserError for a file that cannot be written."""
    if output.suffix.lower() not in (".html", ".svg"):
        raise UserError(f"{output}: unsupported file type; use .html or .svg")
    if as_json:
        raise UserError("use either --output or --json, not both")
    if output.exists() and not force:  # before the model is loaded
        raise UserError(f"{output}: this file already exists; --force replaces it")


def _show(findings: Sequence[Finding]) -> None:
    """Print on standard output, in colour if the terminal supports it."""
    from chatapp.commands.inspecting.render import printed

    # Foreign text was made safe piece by piece; the rest are Rich's own colours.
    write(printed(findings, in_color=sys.stdout.isatty()), verbatim=True)


def _export(findings: Sequence[Finding], output: Path, *, force: bool) -> None:
    from chatapp.commands.inspecting.render import html_page, svg_picture

    draw = html_page if output.suffix.lower() == ".html" else svg_picture
    write_output(output, draw(findings), force=force)
