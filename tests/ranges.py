"""The range of each figure in the documents that commands print, and in logs, by its key."""

import math
from collections.abc import Iterator
from typing import Any

_BY_DATA = ("label_probabilities", "log_likelihoods", "similarity")
"""What maps texts or numbers of the data to figures of one kind."""

SHARES = """
accuracy token_accuracy macro_f1 exact_match rouge_l macro_f1/mean accuracy/mean results/mean
results/interval lowest highest majority vote head gold_label_share gold_in_demonstrations
preferred preferred_interval p no_signal probability label_probabilities drawn top_p min_p
forbidden forbidden_mass attention weight weights self previous previous_text duplicate
induction induction_text
"""
SIGNED = """
over_vote pearson spearman comparisons/mean comparisons/interval cosine similarity rank_correlation
copying
"""
NOT_NEGATIVE = """
mse spread seconds seconds_per_item tokens_per_second time_to_first_token tokens dropped length
value grad_norm learning_rate aux_weight temperature repetition_penalty entropy
entropy_after_cut distance kl l1 l2 l3 dpo kto orpo cpo simpo pair_loss masked norms/attention
mlp stream others size error strength
"""
LOG_SHARES = "log_likelihoods log_probability chosen_logp rejected_logp"
ANY = """
loss loss_per_byte grpo reward chosen_reward rejected_reward margin mean interval differences
change difference difference_change clean corrupt values effect share sum total faithfulness
completeness occlusion gradient activation apart product score mixed scale frequency_penalty
presence_penalty
"""
RANGES = {"jsd": (0.0, math.log(2)), "perplexity": (1.0, math.inf)}
RANGES |= dict.fromkeys(SHARES.split(), (0.0, 1.0)) | dict.fromkeys(SIGNED.split(), (-1.0, 1.0))
RANGES |= dict.fromkeys(NOT_NEGATIVE.split(), (0.0, math.inf))
RANGES |= dict.fromkeys(LOG_SHARES.split(), (-math.inf, 0.0))
RANGES |= dict.fromkeys(ANY.split(), (-math.inf, math.inf))
"""A key with the one above it goes before the key alone."""


def figures(document: Any, path: Any) -> Iterator[tuple[Any, float]]:
    """Each number with a fraction, and the keys that lead to it."""
    if isinstance(document, float):
        yield path, document
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from figures(value, path if path[-1] in _BY_DATA else (*path, str(name)))
    elif isinstance(document, list | tuple):
        for value in document:
            yield from figures(value, path)


def check_ranges(document: Any) -> None:
    """Each figure is one of `RANGES` and within it, to rounding."""
    for (*_, above, key), number in figures(document, ("", "")):
        key = key.removeprefix("eval_")
        place = f"{above}/{key}"
        assert place in RANGES or key in RANGES, f"add the range of {key!r} to tests/ranges.py"
        low, high = RANGES[place if place in RANGES else key]
        assert low - 1e-6 <= number <= high + 1e-6, (place, number)
