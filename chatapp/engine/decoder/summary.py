"""A decoder in words: its parts, and a formula of its parameters."""

from collections import Counter

from chatapp.engine.decoder.families.architecture import Architecture


def parts(architecture: Architecture) -> dict[str, str]:
    """The parts of the decoder, described, by name."""
    return {
        "norm": _norm(architecture),
        "positions": _positions(architecture),
        "attention": _attention(architecture),
        "MLP": _mlp(architecture),
        "biases": _biases(architecture),
        "output": _output(architecture),
    }


def parameter_formula(architecture: Architecture) -> tuple[str, int]:
    """A formula of the number of parameters, and its value.

    Its letters: blocks L, width H, vocabulary V, window n, inner width I, the components of all
    heads' queries Q and keys K where they differ from H, and D of one head.
    """
    a = architecture
    queries, keys = a.heads * a.head_size, a.key_value_heads * a.head_size
    norms = 4 if a.has_norms_after else 2
    vectors = 2 if a.norm == "LayerNorm" else 1
    in_blocks = Counter({"HI": 3 if a.is_gated else 2, "H": norms * vectors})
    query = "H" if queries == a.width else "Q"
    key = query if keys == queries else "K"
    for letter in (query, key):
        in_blocks["H²" if letter == "H" else f"H{letter}"] += 2
    if a.has_query_key_norm:
        in_blocks["D"] += 2
    if a.has_attention_bias:
        in_blocks.update([query, key, key])
    if a.has_projection_bias:
        in_blocks["H"] += 1
    if a.has_mlp_bias:
        in_blocks.update(["H", "I", *(["I"] if a.is_gated else [])])
    outside = Counter({"VH": 1 if a.is_tied else 2})
    if a.has_learned_positions:
        outside["nH"] += 1
    letters = {"H": a.width, "I": a.inner, "V": a.vocabulary, "n": a.context}
    letters |= {"Q": queries, "K": keys, "D": a.head_size}

    def value(terms: Counter[str]) -> int:
        total = 0
        for term, count in terms.items():
            product = count
            for letter in term.replace("H²", "HH"):
                product *= letters[letter]
            total += product
        return total

    end = Counter({"H": vectors})
    text = f"N = {_sum(outside)} + L({_sum(in_blocks)}) + {_sum(end)}"
    return text, value(outside) + a.layers * value(in_blocks) + value(end)


def _sum(terms: Counter[str]) -> str:
    # Products before single letters, and squares before these.
    ordered = sorted(terms.items(), key=lambda item: (len(item[0]) == 1, "²" not in item[0], item))
    return " + ".join(f"{count if count > 1 else ''}{term}" for term, count in ordered)


def _norm(a: Architecture) -> str:
    places = ["before attention and MLP"]
    if a.has_norms_after:
        places.append("after each of them")
    if a.has_query_key_norm:
        places.append("on queries and keys")
    return f"{a.norm} {', '.join(places)}"


def _positions(a: Architecture) -> str:
    if a.has_learned_positions:
        return "learned, added to the embeddings"
    kinds = []
    for rotary in dict.fromkeys(attention.rotary for attention in a.attentions):
        assert rotary is not None
        words = [f"base {rotary.base:,.0f}"]
        if rotary.size < a.head_size:
            words.append(f"{rotary.size} of {a.head_size} components")
        if rotary.scaling is not None:
            words.append(f"stretched as {type(rotary.scaling).__name__} does")
        kinds.append(", ".join(words))
    return f"rotary, {'; '.join(kinds)}"


def _attention(a: Architecture) -> str:
    keys = a.key_value_heads * a.head_size
    words = [f"{a.heads} heads of D = {a.head_size}, Q = {a.heads * a.head_size}"]
    if a.key_value_heads < a.heads:
        shared = "all" if a.key_value_heads == 1 else f"each {a.heads // a.key_value_heads}"
        words.append(f"{shared} share keys and values, K = {keys}")
    windows = Counter(part.window for part in a.attentions if part.window is not None)
    for window, layers in windows.items():
        words.append(f"{layers} of {a.layers} blocks see the last {window:,} tokens")
    return ", ".join(words)


def _mlp(a: Architecture) -> str:
    gate = "gated " if a.is_gated else ""
    side = ", beside attention" if a.is_parallel else ""
    return f"{gate}{a.activation}, I = {a.inner}{side}"


def _biases(a: Architecture) -> str:
    places = {
        "queries, keys and values": a.has_attention_bias,
        "attention's output": a.has_projection_bias,
        "MLP": a.has_mlp_bias,
    }
    present = [place for place, has in places.items() if has]
    return "; ".join(present) if present else "none"


def _output(a: Architecture) -> str:
    matrix = "the token embedding" if a.is_tied else "a matrix of its own"
    return matrix if a.logit_cap is None else f"{matrix}, soft-capped at {a.logit_cap:g}"
