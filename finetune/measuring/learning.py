"""What a model has learned at geometrically spaced steps of its run, and the weights it had there.

Each such step leaves a whole model in the folder `steps` of the run, which chatapp loads like any
other, and a row in the run's log.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chatapp.common.userfiles import UserError
from chatapp.engine.model import LanguageModel, Request, Sampling, whole_replies
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import step_folder
from chatapp.lab.views.head_views import score_heads
from chatapp.tasks.evaluation.language_modelling import is_passage, lambada

HEAD_MEASURES = ("previous", "duplicate", "induction")
WINDOWS = 16
"""Most windows of held-out text that a measurement reads."""

_RATIO = 2**0.5
_PASSAGE = 64  # tokens of a window that are read before its last word is predicted
_BEGINNING = 12  # tokens of a window that the sample continues


def watched_steps(last: int) -> set[int]:
    """0, 1, 2, 3, 4, 6, 8, 11, 16, … and the last step: each about √2 times the one before."""
    steps, step = {0, last}, 1.0
    while step < last:
        steps.add(round(step))
        step *= _RATIO
    return steps


@dataclass(frozen=True, slots=True)
class Watch:
    """Keeps and measures a run's model at `watched_steps`.

    run: its folder. save: writes the model as it is now, whole, into an empty folder. windows: held
    out text, as token ids. prompts: texts to continue; without any the beginning of a window.
    """

    run: Path
    save: Callable[[Path], None]
    windows: Sequence[Sequence[int]]
    prompts: Sequence[str] = ()
    max_tokens: int = 48

    def steps(self, last: int) -> set[int]:
        """The steps of a run of `last` steps at which the model is measured."""
        return watched_steps(last)

    def measure(self, step: int) -> dict[str, Any]:
        """Keep the model of this step, and return `measure_learning` of it."""
        folder = step_folder(self.run, step)
        aside = folder.with_name(f"{step}.unfinished")
        for old in (folder, aside):
            shutil.rmtree(old, ignore_errors=True)
        aside.mkdir(parents=True)
        self.save(aside)
        aside.rename(folder)
        model = load_model(str(folder.resolve()))
        return measure_learning(model, self.windows, self.prompts, self.max_tokens)


def measure_learning(
    model: LanguageModel,
    windows: Sequence[Sequence[int]],
    prompts: Sequence[str] = (),
    max_tokens: int = 48,
) -> dict[str, Any]:
    """What a model has learned, as plain data.

    window_loss: nats a token over the windows. in_context: the loss late in a window (its last
    tenth) minus that early in it (between 5 and 15 % of it), as Olsson et al. (2022) take the
    500th token of 512 minus the 50th; negative where what was read helps. last_word: the fraction
    of windows, each cut to 64 tokens, whose last word is predicted (LAMBADA's measure). heads:
    name of a measure of `HEAD_MEASURES` -> (layers, heads), see `chatapp.lab.heads`, on random
    tokens of the windows, and under the measure's own name the largest of them; absent for a model
    that this program's decoder does not compute. samples: [{prompt, reply}], greedy.
    """
    row: dict[str, Any] = {}
    windows = [window for window in windows[:WINDOWS] if len(window) > 1]
    if windows:
        row |= _losses(model, windows)
        texts = [model.tokenizer.decode(window[:_PASSAGE]) for window in windows]
        texts = [" ".join(text.split()[:-1]) for text in texts]  # the last word may be cut
        word = lambada(model, [text for text in texts if is_passage(text)]).figures
        if "last_word" in word:
            row["last_word"] = word["last_word"].accuracy
    try:
        # Of tokens that the text never has, a model learns nothing that it could look for.
        known = {token for window in windows for token in window}
        scores = score_heads(model, draws=2, among=known).values
        row["heads"] = {name: scores[name].round(4).tolist() for name in HEAD_MEASURES}
        row |= {name: float(scores[name].max()) for name in HEAD_MEASURES}
    except UserError:
        pass  # computed by transformers
    beginnings = prompts or [model.tokenizer.decode(window[:_BEGINNING]) for window in windows[:1]]
    texts = [text for text in beginnings if model.tokenizer.encode(text)]
    greedy = Sampling(temperature=0.0, max_tokens=max_tokens)
    requests = [Request(model.tokenizer.encode(text), greedy) for text in texts]
    replies = whole_replies(model.generate_many(requests))
    row["samples"] = [
        {"prompt": text, "reply": reply} for text, (reply, _) in zip(texts, replies, strict=True)
    ]
    return row


def _losses(model: LanguageModel, windows: Sequence[Sequence[int]]) -> dict[str, float]:
    length = min(model.context, *map(len, windows))
    scored = model.score([(window[:1], window[1:length]) for window in windows])
    losses = -np.array(scored)  # (windows, length - 1)
    early = losses[:, int(0.05 * length) : max(1, int(0.15 * length))]
    late = losses[:, int(0.9 * length) - 1 :]
    return {"window_loss": float(losses.mean()), "in_context": float(late.mean() - early.mean())}
