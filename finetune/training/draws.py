"""Replies drawn during training: with their rewards, the batches of GRPO; in place of those of the
rows, for distillation on the student's own.

Invariant: the replies of a step depend only on the current weights, the seed, the step and the
prompt, not on how the step is cut, so a continued run draws the same. The trained weights are only
read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor

from chatapp.engine.backends.local import LocalModel, load_decoder
from chatapp.engine.backends.transformers_loading import load_causal
from chatapp.engine.batch import generate_many
from chatapp.engine.errors import ModelError, NoDecoder
from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import Request, Sampling
from finetune.data.batches import Rows, Tensors, TrainingRows, pack
from finetune.data.encoding import Encoded, Span, last_response
from finetune.data.prompts import EncodedPrompt
from finetune.objectives.distillation import Distillation
from finetune.objectives.grpo import REPLY_FIGURES, Grpo, PromptRows, advantages
from finetune.objectives.objective import has_adapter, through_head
from finetune.objectives.rewards import DrawnReply
from finetune.objectives.rows import PACKED_LENGTH, with_start
from finetune.training.loop import Draws
from finetune.training.setup import RunSetup

AT_ONCE = 64
"""Sequences that are drawn together."""


def _drawn(setup: RunSetup, requests: Sequence[Request]) -> Iterator[tuple[int, Event]]:
    """The events of `generate_many` by the current weights of a run."""
    files, tokenizer = setup.files, setup.tokenizer
    try:
        decoder = load_decoder(
            files.whole,
            vocabulary=tokenizer.size,
            device=setup.device,
            tensors=current_tensors(setup.model),
        )
    except NoDecoder:  # of a kind that transformers computes, one reply at a time
        return setup.speaker().generate_many(requests)
    name, start = setup.config.model, setup.start
    local = LocalModel(decoder, tokenizer, name=name, files=files, start=start)
    return generate_many(local, requests, AT_ONCE)


def current_tensors(model: Any) -> Mapping[str, Tensor]:
    """The weights of a model by their names in a checkpoint, adapters merged into them."""
    if not has_adapter(model):
        return dict(model.state_dict())
    with _merged(model):
        state = model.get_base_model().state_dict()
    # An adapter wraps the layers that it changes, and stores fully trained modules next to the old
    # ones.
    return {
        name.replace(".base_layer.", ".").replace(".modules_to_save.default.", "."): tensor
        for name, tensor in state.items()
        if ".lora_" not in name and ".original_module." not in name
    }


@contextmanager
def _merged(model: Any) -> Iterator[None]:
    """The adapters' layers with merged weights; afterwards they have exactly their old tensors,
    because subtracting an update would round.
    """
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    originals = [layer.get_base_layer().weight.data for layer in layers]
    try:
        for layer in layers:
            layer.merge(safe_merge=True)  # makes a new tensor
        yield
    finally:
        for layer, weight in zip(layers, originals, strict=True):
            layer.get_base_layer().weight.data = weight
            layer.merged_adapters.clear()


KEPT_FILE = "replies-{process}.pt"


@dataclass(frozen=True, slots=True)
class _Group:
    """The replies to one prompt. rewards: as many."""

    prompt: EncodedPrompt
    replies: list[DrawnReply]
    rewards: list[float]


class Rollouts:
    """Draws the replies of a run of GRPO and makes batches of them."""

    def __init__(self, setup: RunSetup) -> None:
        self.setup, self.objective = setup, cast(Grpo, setup.objective)
        self.config = self.objective.config
        self.stop = setup.stops
        self._kept: list[Tensors] = []
        self._frozen: Any = None

    def __call__(
        self, batches: Sequence[Tensors], rows: TrainingRows, step: int | None
    ) -> list[Tensors]:
        """Convert batches of prompts to batches of replies.

        step: of the run, from 0; None to evaluate, by one greedy reply to each prompt. Raises
        RewardError, and ModelError when a reply cannot be drawn.
        """
        if step is not None and step % self.config.iterations and self._kept:
            return self._kept
        prompts = cast(PromptRows, rows).prompts
        wanted = (batch["row"][batch["response_mask"].any(1)] for batch in batches)
        numbers = [rows.tolist() for rows in wanted]
        draws = [self._sampling(step, number) for batch in numbers for number in batch]
        groups = iter(
            self._groups([prompts[number] for batch in numbers for number in batch], draws)
        )
        made = [
            self._batch([next(groups) for _ in members], batch)
            for members, batch in zip(numbers, batches, strict=True)
        ]
        if self.config.iterations > 1 and step is not None:
            made = [{**batch, "old": self._log_probs(self.setup.model, batch)} for batch in made]
            self._kept = made
        return made

    def _sampling(self, step: int | None, number: int) -> list[Sampling]:
        """The sampling parameters of each reply to a prompt."""
        config, seed = self.config, self.setup.config.seed
        # The end of a text that repeats itself would not be the model's choice.
        whole = Sampling(temperature=0.0, top_p=1.0, max_tokens=config.max_tokens, max_repeats=0)
        if step is None:
            return [whole]
        seeds = np.random.SeedSequence([seed, step, number]).generate_state(config.replies)
        return [
            Sampling(
                temperature=config.temperature,
                top_p=config.top_p,
                top_k=config.top_k,
                max_tokens=config.max_tokens,
                max_repeats=0,
                seed=int(seed),
            )
            for seed in seeds
        ]

    def _groups(
        self, prompts: Sequence[EncodedPrompt], draws: Sequence[Sequence[Sampling]]
    ) -> Iterator[_Group]:
        """The replies to prompts, each drawn as often as it specifies, with their rewards."""
        self.setup.model.eval()
        requests = (
            Request(prompt.ids, sampling, self.stop)
            for prompt, samplings in zip(prompts, draws, strict=True)
            for sampling in samplings
        )
        replies = drawn_replies(self.setup, list(requests))
        for prompt, samplings in zip(prompts, draws, strict=True):
            group = [next(replies) for _ in samplings]
            rewards = [self.objective.rewards.of(prompt, reply) for reply in group]
            yield _Group(prompt, group, rewards)

    def _batch(self, groups: Sequence[_Group], prompts: Tensors) -> Tensors:
        """The replies of a micro-batch as rows, several in one if rows are packed.

        prompts: of the replies, used for a micro-batch without any.
        """
        if not groups:
            zeros = torch.zeros(prompts["input_ids"].shape)
            unlabelled = {key: value for key, value in prompts.items() if key != "row"}
            return unlabelled | dict.fromkeys((*REPLY_FIGURES, "reference"), zeros)
        examples = [_example(group.prompt, reply) for group in groups for reply in group.replies]
        examples = with_start(examples, self.setup.start)
        figures = torch.stack([self._figures(group) for group in groups], 1).flatten(1)
        columns = dict(zip(REPLY_FIGURES, figures, strict=True))
        rows = Rows(examples, "response", packed_bins(examples, self.setup), columns)
        batch = self.setup.data.collate([rows[index] for index in range(len(rows))])
        if self.config.beta:
            batch["reference"] = self._reference(batch)
        return batch

    def _figures(self, group: _Group) -> Tensor:
        """The `REPLY_FIGURES` of each reply, (names, replies)."""
        rewards = torch.tensor(group.rewards, dtype=torch.float32)[None]
        if len(group.rewards) == 1:  # in evaluation
            return torch.stack([torch.zeros(1), rewards[0], torch.zeros(1)])
        is_alike = (rewards == rewards[0, 0]).all().expand(len(group.rewards))
        advantage = advantages(rewards, self.config.scale_rewards)[0]
        # Equal rewards may differ from their mean by rounding errors.
        return torch.stack([advantage * ~is_alike, rewards[0], is_alike.float()])

    def _reference(self, batch: Tensors) -> Tensor:
        """Log-probabilities of the tokens under the initial model of the run."""
        model = self.setup.model
        if has_adapter(model):
            with model.disable_adapter():
                return self._log_probs(model, batch)
        if self._frozen is None:
            self._frozen = load_causal(self.setup.files).to(self.setup.device)
        return self._log_probs(self._frozen, batch)

    @torch.no_grad()
    def _log_probs(self, model: Any, batch: Tensors) -> Tensor:
        """(sequences, tokens), on the CPU."""
        model.eval()
        device = next(model.parameters()).device
        here = {key: value.to(device) for key, value in batch.items()}
        is_half = self.setup.precision == "bfloat16"
        compute = partial(self.objective.log_probs, model=model, batch=here)
        cast_to = torch.autocast(device.type, torch.bfloat16, enabled=is_half)
        with cast_to:
            return through_head(model, model, here, compute).float().cpu()

    def save(self, checkpoint: Path, process: int) -> None:
        """Store the replies that the steps after a checkpoint still need."""
        if self._kept:
            torch.save(self._kept, checkpoint / KEPT_FILE.format(process=process))

    def load(self, checkpoint: Path, process: int) -> None:
        """Load the replies that `save` has stored."""
        path = checkpoint / KEPT_FILE.format(process=process)
        self._kept = torch.load(path, weights_only=True) if path.exists() else []


def packed_bins(examples: Sequence[Encoded], setup: RunSetup) -> list[list[int]] | None:
    """The rows that examples with new replies are packed in; None without packing."""
    if not setup.config.data.packing:
        return None
    return pack([len(example.ids) for example in examples], PACKED_LENGTH, setup.config.seed)


def drawn_replies(setup: RunSetup, requests: Sequence[Request]) -> Iterator[DrawnReply]:
    """The replies of the current weights in the order of their requests, once all are finished.

    Raises ModelError when one cannot be drawn.
    """
    if not requests:
        return
    ids: dict[int, list[int]] = {}
    texts: dict[int, str] = {}
    for number, event in _drawn(setup, requests):
        ids.setdefault(number, [])
        texts[number] = texts.get(number, "") + event.text
        match event:
            case Token(id=id):
                ids[number].append(id)
            case Finished(reason="error", message=message):
                raise ModelError(f"a reply could not be drawn: {message}")
            case Finished(end_id=int(id)):
                ids[number].append(id)
    for number in sorted(ids):
        yield DrawnReply(ids[number], texts[number].strip())


def _example(prompt: EncodedPrompt, reply: DrawnReply) -> Encoded:
    ids = np.array([*prompt.ids, *reply.ids], np.int32)
    spans = np.full(len(ids), Span.PROMPT, np.uint8)
    spans[len(prompt.ids) :] = Span.RESPONSE
    return Encoded(ids, spans, prompt.key)


class OwnReplies(Draws):
    """Replaces a share of the last replies of a step, which draws them anew: it stores nothing."""

    def __init__(self, setup: RunSetup) -> None:
        self.setup, self.objective = setup, cast(Distillation, setup.objective)

    def __call__(
        self, batches: Sequence[Tensors], rows: TrainingRows, step: int | None
    ) -> list[Tensors]:
        """Batches with the student's replies in them; to evaluate, with step None, the same ones.

        A text without a prompt, and a prompt that fills the window, keep the reply of the row.
        Raises ModelError when a reply cannot be drawn.
        """
        if step is None:
            return list(batches)
        sets = [list(_examples(batch)) for batch in batches]
        requests = [self._request(example, step) for examples in sets for example in examples]
        self.setup.model.eval()
        replies = drawn_replies(self.setup, [request for request in requests if request])
        planned = iter(requests)
        return [
            self._batch(
                [
                    _with_reply(example, next(replies).ids) if next(planned) else example
                    for example in examples
                ],
                batch,
            )
            for examples, batch in zip(sets, batches, strict=True)
        ]

    def _request(self, example: Encoded, step: int) -> Request | None:
        """What to draw for an example; None where the row's own reply stays."""
        config, skip = self.objective.config, len(self.setup.start)
        prompt = example.ids[skip : last_response(example.spans).start].tolist()
        room = min(config.max_tokens, self.objective.window - len(prompt))
        draw = np.random.default_rng([self.setup.config.seed, step, crc32(example.ids.tobytes())])
        # A first token is never a label, so a text without a prompt seems to have one of one token.
        if len(prompt) < 2 or room < 1 or draw.random() >= config.own_replies:
            return None
        sampling = Sampling(
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_tokens=room,
            max_repeats=0,
            seed=int(draw.integers(2**32)),
        )
        return Request(prompt, sampling, self.setup.stops)

    def _batch(self, examples: Sequence[Encoded], batch: Tensors) -> Tensors:
        """Examples as a micro-batch, packed if configured; without any, the batch as it was."""
        if not examples:
            return batch
        rows = Rows(examples, "prompt", packed_bins(examples, self.setup))
        return self.setup.data.collate([rows[index] for index in range(len(rows))])


def _examples(batch: Tensors) -> Iterator[Encoded]:
    """The examples of a batch that have labels, in their order."""
    for ids, members, labels in zip(
        batch["input_ids"], batch["example_ids"], batch["response_mask"], strict=True
    ):
        for number in range(1, int(members.max()) + 1):
            here = members == number
            if labels[here].any():
                spans = np.where(labels[here].numpy(), Span.RESPONSE, Span.PROMPT)
                yield Encoded(ids[here].numpy().astype(np.int32), spans.astype(np.uint8), "")


def _with_reply(example: Encoded, reply: Sequence[int]) -> Encoded:
    begin = last_response(example.spans).start
    ids = np.concatenate([example.ids[:begin], np.array(reply, np.int32)])
    spans = np.full(len(ids), Span.RESPONSE, np.uint8)
    spans[:begin] = example.spans[:begin]
    return Encoded(ids, spans, example.key)
