"""Close-ups in the inspector: what in the prompt mattered, a circuit, one weight, and more.

Invariant: a close-up belongs to the token and the head that were chosen when it was opened, and to
the model with the changes of its chat. It ends as soon as a reply is to be generated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rich.console import Group
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.lab.findings import Finding, Tokens
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.inspector.token_text import TokenText
from chatapp.tui.inspector.view import Compute, Left, Look, Measuring, View

if TYPE_CHECKING:
    from chatapp.common.progress import Progress
    from chatapp.engine.model import LanguageModel, Tokenizer
    from chatapp.lab.prompt_parts import Span

CLOSE_UPS = {
    "parts": (
        "what in the prompt mattered",
        "F = log p of the next token - log p of another. gradient = e · dF/de of the embeddings e "
        "(Simonyan et al. 2013, arXiv 1312.6034); occlusion = F - F with the keys hidden (Zeiler "
        "and Fergus 2014, arXiv 1311.2901); summed per part of the prompt.",
    ),
    "circuit": (
        "the smallest circuit",
        "Greedy ablation to the fewest heads and MLPs that keep 90 % of the difference of the "
        "logits; faithfulness = LD(circuit) / LD(model), completeness = LD(model without it) / "
        "LD(model); Wang et al. 2023, arXiv 2211.00593; Conmy et al. 2023, arXiv 2304.14997.",
    ),
    "weight": (
        "one attention weight step by step",
        "w = softmax(q · k · scale), the head gives sum of w v; Vaswani et al. 2017, arXiv "
        "1706.03762.",
    ),
    "neighbours": (
        "the nearest tokens",
        "cos(W[token] - mean, W[j] - mean), and cos(h, W[j] - mean) of the hidden state h; Mu and "
        "Viswanath 2018, arXiv 1702.01417.",
    ),
    "norms": (
        "the residual stream's norms",
        "The Euclidean norm of the residual stream after each layer, and of what attention and "
        "MLP add to it.",
    ),
    "neurons": (
        "the neurons that count most",
        "effect = activation · W_out[:, n] through the final norm, with its scale, and W_U[token] "
        "- W_U[other]; Geva et al. 2022, arXiv 2203.14680.",
    ),
    "experts": (
        "the experts of each token",
        "The MLP of a mixture gives the sum of g E(h) over the experts with the largest scores "
        "of the router; Shazeer et al. 2017, arXiv 1701.06538.",
    ),
}
"""By its name: what it is, its formula and source."""

_NEEDS_HEAD = "Choose a head first, in Why, Attention or Heads: Tab, then the arrows."


@dataclass(frozen=True, slots=True)
class Place:
    """What a close-up is of: a token's position, and a layer and head where one is chosen."""

    position: int
    cell: tuple[int, int] | None


def find_close_up(
    model: "LanguageModel", look: Look, name: str, place: Place, progress: "Progress"
) -> list[Finding]:
    """The findings of a close-up, computed on a thread. Raises UserError."""
    from chatapp.engine.decoder.interventions import Part
    from chatapp.lab.architectures.experts import Experts
    from chatapp.lab.close_ups import Neighbours, Neurons, Norms, StateNeighbours, WeightSteps
    from chatapp.lab.experiments import SmallestCircuit, ask
    from chatapp.lab.heads import own_decoder
    from chatapp.lab.prompt_parts import attribute_prompt

    position, changes = place.position, look.changes
    before, after = look.tokens.ids[: position + 1], look.tokens.ids[position + 1 :]
    following = next(iter(after), None)
    if name == "experts":
        return [Experts.of(model, before)]
    if name == "parts":
        spans = _parts(look, len(before), model.tokenizer)
        answer = [] if following is None else [following]
        return [attribute_prompt(model, before, spans, answer, changes=changes, progress=progress)]
    last = own_decoder(model).decoder.architecture.layers - 1
    layer, head = place.cell or (last, None)
    if name == "circuit":
        question = ask(model, before, following, None, changes)
        if float(question.contrast.of(question.reading.logits)) < 0:  # another was likelier
            question = ask(model, before, None, following, changes)
        return [SmallestCircuit.of(question, progress=progress)]
    if name == "weight":
        return [WeightSteps.of(model, before, Part(layer, head), position, changes)]
    if name == "norms":
        return [Norms.of(model, before, position, changes)]
    if name == "neurons":
        part = Part(layer, is_mlp=True)
        return [Neurons.of(model, before, part, following, changes=changes)]
    state = StateNeighbours.of_state(model, before, str(layer), position, changes=changes)
    return [Neighbours.of_token(model, before[-1]), state]


def _parts(look: Look, size: int, tokenizer: "Tokenizer") -> "list[Span]":
    """The parts of the first `size` tokens: those of the prompt, and the reply so far."""
    from chatapp.lab.prompt_parts import Span, parts_of_segments

    spans = [*parts_of_segments(look.segments, tokenizer), Span("reply", look.start, size)]
    return [replace(span, stop=min(span.stop, size)) for span in spans if span.start < size]


@dataclass
class LookCloser(Message):
    """The user wants a close-up of what is chosen."""

    name: str
    place: Place


class CloserView(View):
    """A tab from which close-ups are opened, of the chosen token and head."""

    BINDING_GROUP_TITLE = "Inspector: close-ups, from Prompt, Why, Attention, Heads and Layers"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "closer('parts')", "What in the prompt mattered", show=False),
        Binding("c", "closer('circuit')", "The smallest circuit for the next token", show=False),
        Binding("w", "closer('weight')", "The chosen head's weights, step by step", show=False),
        Binding("n", "closer('neighbours')", "The tokens nearest to the chosen one", show=False),
        Binding("r", "closer('norms')", "The residual stream's norm by layer", show=False),
        Binding("u", "closer('neurons')", "The ten neurons that count most", show=False),
        Binding("e", "closer('experts')", "The experts that each token went to", show=False),
    ]
    closer_hint = (
        "p what mattered · c circuit · w weight · n neighbours · r norms · u neurons · e experts"
    )

    _look = Look(Tokens((), (), ()), 0)
    shared: int | None = None
    """The token that was chosen in another tab, for one without a choice of its own."""

    @property
    def cell(self) -> tuple[int, int] | None:
        """The chosen layer and head."""
        return None

    @property
    def position(self) -> int:
        """The chosen token's; at first that of the last one before the reply."""
        if texts := self.query(TokenText):
            return texts.first().cursor
        return max(0, self._look.start - 1) if self.shared is None else self.shared

    def action_closer(self, name: str) -> None:
        """Open a close-up."""
        if self._look.trace is None:
            return
        if name == "weight" and self.cell is None:
            self.notify(_NEEDS_HEAD, markup=False)
            return
        self.post_message(LookCloser(name, Place(self.position, self.cell)))


class CloseUpView(View):
    """A close-up, over the tab that it was opened from."""

    BINDING_GROUP_TITLE = "Inspector: close-up"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back to the tab, or stop measuring", show=False)
    ]
    hint = "↑ ↓ scroll · Esc: back"

    class Back(Message):
        """The user goes back to the tab."""

    def __init__(self, conversation: Conversation, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._conversation = conversation
        self._findings: Sequence[Finding] = ()
        self._wanted: object | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True, id="close-up-scroll"):
            yield Static(id="close-up-text", markup=False)

    def show(self, look: Look) -> None:
        """Another text has none of this."""

    def findings(self) -> Sequence[Finding]:
        return self._findings

    def open(self, look: Look, closer: LookCloser) -> None:
        """Compute a close-up and show it."""
        title, self.formula = CLOSE_UPS[closer.name]
        self._findings = ()
        self._say(f"Computing {title} …")
        session = self._conversation.session
        if session is None:
            return
        model = session.model
        wanted = self._wanted = object()

        def tell(done: int, total: int) -> None:
            if self._wanted is not wanted or self._conversation.turn is not None:
                raise Left
            self.post_message(Measuring(done, total))

        def work() -> Sequence[Finding]:
            try:
                return find_close_up(model, look, closer.name, closer.place, tell)
            except Left:
                return ()

        self.post_message(Compute(work, partial(self._present, wanted), self._say, "close-up"))

    @on(Measuring)
    def _show_measuring(self, event: Measuring) -> None:
        event.stop()
        if self._wanted is not None and not self._findings:
            self._say(f"Measuring: {event.done} of {event.total} … Esc stops")

    def _say(self, words: str) -> None:
        """Show a sentence instead of findings."""
        text = Content.styled(printable(words), "dim")
        self.query_one("#close-up-text", Static).update(text)

    def _present(self, wanted: object, findings: Sequence[Finding]) -> None:
        if self._wanted is not wanted:
            return
        self._wanted, self._findings = None, findings
        if findings:
            self._draw()
        else:
            self._say("Stopped for a reply.")

    def on_hide(self) -> None:
        self._wanted = None

    def on_resize(self) -> None:
        if self._findings:
            self._draw()

    def on_unmount(self) -> None:
        self._wanted, self._findings = None, ()

    def _draw(self) -> None:
        from chatapp.lab.figures.console import drawn

        width = max(20, self.query_one("#close-up-scroll").size.width - 1)
        parts = Group(*drawn(self._findings, width))
        self.query_one("#close-up-text", Static).update(parts)

    def action_back(self) -> None:
        self.post_message(self.Back())
