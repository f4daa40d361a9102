"""`chatapp inspect` with a masked model: what it fills in for a mask."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from chatapp.commands.console import status
from chatapp.commands.inspecting.places import Place, checked_place, text_position
from chatapp.common.userfiles import UserError
from chatapp.lab.findings import Attention, Finding, Layers, NextToken, Tokens

if TYPE_CHECKING:
    from chatapp.common.settings import Settings
    from chatapp.engine.backends.masked import MaskedModel
    from chatapp.engine.files.model_files import ModelFiles


def find_masked(
    settings: "Settings",
    content: str,
    sections: Sequence[str],
    place: Place,
    has_questions: bool,
) -> list[Finding] | None:
    """The findings of a text of which one token is masked; None for any other model.

    sections: the chosen ones; all if empty. place: of the masked token; without one, the first mask
    in the text. has_questions: whether more is asked, which only causal models answer. Raises
    UserError for a text without a mask and a place that is not there, and ModelError.
    """
    files = _masked_files(settings.model)
    if files is None:
        return None
    if has_questions:
        raise UserError(
            f"{settings.model}: of a masked model, only --tokens, --next, --attention and --layers "
            "are shown"
        )
    from chatapp.engine.backends.masked import MaskedModel
    from chatapp.lab.architectures.masks import MaskedTrace, MaskFilling, masked_tokens

    status(f"Loading {settings.model} …")
    try:
        model = MaskedModel.load(files, name=settings.model, device=settings.device)
    finally:
        status("")
    ids = model.encode(content)
    position = _masked_position(model, ids, place.token)
    trace = MaskedTrace(model, ids, position)
    layer = checked_place("layer", place.layer, trace.layers)
    head = checked_place("head", place.head, trace.heads)
    makers: dict[str, Callable[[], Finding]] = {
        Tokens.name: lambda: masked_tokens(model, ids, place.top),
        NextToken.name: lambda: MaskFilling.of(trace, position, place.top),
        Attention.name: lambda: Attention.of(trace, position, layer, head),
        Layers.name: lambda: Layers.of(trace, position, place.top),
    }
    return [makers[name]() for name in sections or makers]


def _masked_files(name: str) -> "ModelFiles | None":
    """The files of a masked model on this machine; None for any other model."""
    from chatapp.engine.errors import ModelError
    from chatapp.engine.models.resolving import find_model, local_folder

    try:
        files = find_model(name) if local_folder(name) is not None else None
    except ModelError:
        return None  # loading it reports the fault
    return files if files is not None and files.is_masked else None


def _masked_position(model: "MaskedModel", ids: Sequence[int], token: int | None) -> int:
    if token is not None:
        return text_position(token, len(ids))
    if model.mask_id in ids:
        return ids.index(model.mask_id)
    raise UserError(
        f"the text has no mask; write {model.mask} where {model.name} shall fill in a token, or "
        "mask one of the text's own with --token"
    )
