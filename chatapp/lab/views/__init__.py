"""The table of views: each is one class in a file of this folder; see `chatapp.lab.view`."""

from chatapp.lab.view import View
from chatapp.lab.views.architecture_views import Experts, Positions
from chatapp.lab.views.attention_views import Attention, CrossAttention
from chatapp.lab.views.close_up_views import Neighbours, Neurons, StateNeighbours, WeightSteps
from chatapp.lab.views.head_views import HeadScores, HeadTexts
from chatapp.lab.views.layer_views import Layers, Norms
from chatapp.lab.views.part_views import Ablation, Losses, SmallCircuit, Why
from chatapp.lab.views.patch_view import Patches
from chatapp.lab.views.prompt_part_view import PromptParts
from chatapp.lab.views.text_views import NextToken, PromptText, Tokens

FIRST: tuple[type[View], ...] = (Tokens, NextToken, Attention, Layers)
"""What is shown of a text when no view is named."""

_TABLE: tuple[type[View], ...] = (
    PromptText,
    *FIRST,
    HeadScores,
    HeadTexts,
    Why,
    Ablation,
    Losses,
    Patches,
    SmallCircuit,
    PromptParts,
    Neighbours,
    StateNeighbours,
    WeightSteps,
    Norms,
    Neurons,
    Positions,
    Experts,
    CrossAttention,
)

VIEWS: dict[str, type[View]] = {view.name: view for view in _TABLE}
"""By name, in the order in which they are listed."""
