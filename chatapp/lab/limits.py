"""What a constraint did to a reply, token by token.

Invariant: the grammar is followed again over the reply's tokens, with the probabilities of the
model's own pass, so a stored reply shows what a new one would.
"""

from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.constraint.matching import Matcher
from chatapp.engine.generation import LocalGenerator
from chatapp.lab.findings import Limit
from chatapp.lab.traces import Trace


def limits_of(
    model: LocalGenerator, trace: Trace, start: int, constraint: Constraint
) -> tuple[Limit | None, ...]:
    """What a constraint did at each token from `start` on, in the place of the token.

    None before them, and where it does not apply. Nothing for a reply that does not follow it,
    because it was generated without it, and for a model that cannot follow any.
    """
    mark = model.tokenizer.special.get(constraint.after)
    try:
        matcher = Matcher(constraint, model.vocab_bytes, model.end_ids, mark)
    except ConstraintError:
        return ()
    limits: list[Limit | None] = [None] * start
    text = model.tokenizer.stream()
    for position in range(start, len(trace.ids)):
        id, limit = trace.ids[position], None
        if matcher.is_on and not matcher.is_over:
            allowed = matcher.allowed()
            if not allowed.mask[id]:
                return ()
            shares = trace.logits(position - 1, position)[0].softmax(0).numpy()
            limit = Limit(allowed.only is not None, float(shares[~allowed.mask].sum()))
        limits.append(limit)
        matcher.take(id, text.push(id))
    return tuple(limits)
