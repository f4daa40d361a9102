"""Replies that fit a schema, a pattern or a grammar, by several models and tokenizers."""

import json
import os
import random
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from random_constraints import random_constraint, random_object
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from chatapp.dialogue.tools.schemas import misfit as tool_misfit
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.constraint import compiling, validation
from chatapp.engine.constraint import constraint as constraints
from chatapp.engine.constraint.compiling import ConstraintError, byte_tokenizer, matcher_of
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.constraint.matching import Matcher
from chatapp.engine.constraint.token_bytes import Vocabulary
from chatapp.engine.constraint.validation import misfit
from chatapp.engine.events import Finished, Token
from chatapp.engine.files.gguf.reader import GGUFFile
from chatapp.engine.files.gguf.vocabulary import gguf_tokenizer
from chatapp.engine.model import Request, Sampling, whole_replies
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import BUNDLED
from chatapp.engine.tokenizers import BPETokenizer, NotByteLevel, TransformersTokenizer

ROOT = Path(__file__).parents[2]
PET = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
    },
    "required": ["kind", "age"],
    "additionalProperties": False,
}
WARM = Sampling(temperature=1.0, seed=3, max_tokens=60)


@pytest.fixture(scope="module")
def model():
    loaded = load_model(BUNDLED)
    assert isinstance(loaded, LocalModel)
    return loaded


def reply(model, constraint, sampling=WARM, **options):
    ids = model.tokenizer.encode("The animals:\n")
    return parts(list(model.generate(Request(ids, sampling, constraint=constraint, **options))))


def parts(events):
    *tokens, finished = events
    assert isinstance(finished, Finished)
    text = "".join(event.text for event in events)
    return text, [token for token in tokens if isinstance(token, Token)], finished


def test_a_reply_fits_its_schema_and_says_what_was_forced(model):
    text, tokens, finished = reply(model, Constraint.of_schema(PET), top=1)
    assert json.loads(text).keys() == {"kind", "age"}
    assert (finished.valid, finished.reason) == (True, "stop")
    forced = [token for token in tokens if token.forced]
    assert finished.forced_tokens == len(forced) > len(tokens) / 4
    assert forced[0].piece == "{"
    # The first alternative is what the model would have said.
    assert forced[0].alternatives[0].text != "{"
    assert forced[0].forbidden == pytest.approx(1, abs=0.01)
    assert 0 < finished.forbidden_mass < 1


def test_forbidden_mass_is_a_mean_with_the_step_of_the_end(model):
    ids = model.tokenizer.encode("Question: is it? Answer:")
    for pattern in ("yes ?", "yes", "[a-z ]{1,3}"):
        request = Request(ids, Sampling(0.0), constraint=Constraint.of_pattern(pattern))
        _, tokens, finished = parts(list(model.generate(request)))
        drawn, ends = sum(token.forbidden for token in tokens), finished.end_id is not None
        # What the step of the end lost is no event: it is the rest of the sum, and a probability.
        rest = finished.forbidden_mass * (len(tokens) + ends) - drawn
        assert -1e-6 <= rest <= ends + 1e-6


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint.of_pattern("[A-Z][a-z]{2,5}, [0-9]+!"), "[A-Z][a-z]{2,5}, [0-9]+!"),
        (
            Constraint.of_grammar('start: "yes" | "no" | again\nagain: "again" again?'),
            "yes|no|(again)+",
        ),
        (Constraint.of_pattern("a{50}"), "a{50}"),  # repetition ends other replies
        (Constraint.of_pattern("(one\n\n){3}"), "(one\n\n){3}"),
        (Constraint.of_pattern("é中👍"), "é中👍"),
    ],
)
def test_patterns_and_grammars(model, constraint, pattern):
    text, _, finished = reply(model, constraint, stop=("\n\n",))
    assert finished.valid is True or finished.reason == "length"
    assert re.fullmatch(pattern, text) or finished.reason == "length"


def test_forced_tokens_need_no_pass_of_their_own_and_change_nothing(model, monkeypatch):
    schema = Constraint.of_schema({"const": "a long text that has to come, and another"})
    forward, passes = model.decoder.forward, []
    monkeypatch.setattr(
        model.decoder, "forward", lambda *ids, **more: passes.append(1) or forward(*ids, **more)
    )
    text, tokens, _ = reply(model, schema, top=3)
    assert len(passes) <= 3 < len(tokens)
    whole = model.next_logits
    monkeypatch.setattr(model, "next_logits", lambda ids, check, ahead=(): whole(ids, check))
    other, one_by_one, _ = reply(model, schema, top=3)
    assert other == text
    for token, alone in zip(tokens, one_by_one, strict=True):
        assert (token.id, token.forced) == (alone.id, alone.forced)
        assert token.logprob == pytest.approx(alone.logprob, abs=1e-3)
        assert token.forbidden == pytest.approx(alone.forbidden, abs=1e-3)


def listing(**more):
    items = {"type": "array", "items": {"type": "string"}, **more}
    return Constraint.of_schema({"type": "object", "properties": {"of": items}, "required": ["of"]})


def test_json_has_a_layout_of_the_models_choice_in_bounds():
    def fits(text):
        state = matcher_of(byte_tokenizer(), listing().grammar())
        return state.consume_tokens(list(text.encode())) and state.is_accepting()

    value = {"of": ["a", "b"], "more": {"deep": [{"c": [1]}]}}
    for indent in (None, 1, 2, 4, "\t"):
        assert fits(json.dumps(value, indent=indent))
    assert fits(json.dumps(value, separators=(",", ":")))
    for white in ("  ", "\n\n", "\n" + " " * 25, "\r"):
        assert not fits(f'{{{white}"of": []}}')


def scripted(model, monkeypatch, text, constraint, limit=400):
    """The reply of a model that wants to write `text`."""
    wanted = model.tokenizer.encode(text, begins=False)

    def next_logits(ids, check, ahead=()):
        logits = torch.zeros(model.vocabulary)
        logits[wanted[len(ids) - 1] if len(ids) <= len(wanted) else model.tokenizer.end_id] = 30
        return logits, 0

    monkeypatch.setattr(model, "next_logits", next_logits)
    request = Request([5], Sampling(temperature=0, max_tokens=limit), constraint=constraint)
    return parts(list(model.generate(request)))


DAYS = '"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", '


@pytest.mark.parametrize("items", ['"so", ', DAYS])
def test_a_list_of_equal_items_without_end_is_stopped(model, monkeypatch, items):
    text, _, finished = scripted(model, monkeypatch, '{"of": [' + items * 40, listing())
    assert (finished.reason, finished.valid) == ("repetition", True)
    assert json.loads(text)["of"] == json.loads(f"[{items.removesuffix(', ')}]")
    assert finished.forbidden_mass < 0.1


@pytest.mark.parametrize("size", [3, 40])
def test_equal_items_that_the_schema_wants_are_no_repetition(model, monkeypatch, size):
    wanted = json.dumps({"of": ["so"] * size})
    text, _, finished = scripted(model, monkeypatch, wanted, listing(minItems=size))
    assert (text, finished.reason, finished.valid) == (wanted, "stop", True)


def test_a_batch_gives_the_same_replies(model):
    ids = model.tokenizer.encode("The animals:\n")
    constraints = [Constraint.of_schema(PET), None, Constraint.of_pattern("[a-z ]{9}!")]
    requests = [Request(ids, WARM, constraint=constraint) for constraint in constraints]
    events = {0: [], 1: [], 2: []}
    for number, event in model.generate_many(requests):
        events[number].append(event)
    for number, request in enumerate(requests):
        text, _, finished = parts(events[number])
        alone, _, end = parts(list(model.generate(request)))
        assert (text, finished.valid) == (alone, end.valid)
    assert parts(events[1])[2].valid is None


def test_a_reply_that_is_cut_off_is_not_valid(model):
    _, _, finished = reply(
        model, Constraint.of_pattern("[0-9]{99}"), Sampling(seed=1, max_tokens=5)
    )
    assert (finished.valid, finished.reason) == (False, "length")
    assert finished.message == (
        "the reply does not fit its pattern: it was cut off after 5 tokens, before its end"
    )


def test_json_near_its_limit_is_closed(model, monkeypatch):
    text, tokens, finished = scripted(
        model, monkeypatch, '{"of": ["one", "two", "three", "four"', listing(), limit=16
    )
    assert json.loads(text) == {"of": ["one", "t"]}
    assert (finished.reason, finished.valid) == ("length", True)
    assert tokens[-1].forced
    assert tokens[-1].forbidden > 0.9  # the wish was another


def test_random_json_is_whole_or_refused_before_it_begins(model):
    """At any limit; and what is refused is too long, however often the model tries."""
    numbers, outcomes = random.Random(2), Counter()
    ids = model.tokenizer.encode("An example:\n")
    for seed in range(24):
        schema = random_object(numbers, 3)
        constraint, limit = Constraint.of_schema(schema), numbers.choice([2, 5, 12, 20, 40, 80])
        sampling = Sampling(temperature=1.0, seed=seed, max_tokens=limit)
        try:
            text, _, finished = reply(model, constraint, sampling)
        except ConstraintError as error:
            found = re.fullmatch(
                rf"no reply of at most {limit} tokens fits the schema; the shortest that was found "
                r"has (\d+)",
                str(error),
            )
            sampling = replace(sampling, temperature=2.0, max_tokens=int(found[1]))
            tries = [
                Request(ids, replace(sampling, seed=n), constraint=constraint) for n in range(3)
            ]
            ends = [end for _, end in whole_replies(model.generate_many(tries))]
            assert [end.valid for end in ends] == [True] * 3
            assert min(end.reply_tokens for end in ends) > limit
            outcomes["refused"] += 1
        else:
            jsonschema.validate(json.loads(text), schema)
            assert finished.valid
            assert finished.reply_tokens <= limit
            outcomes[finished.reason] += 1
    assert min(outcomes["refused"], outcomes["stop"], outcomes["length"]) > 1, outcomes


def test_a_beginning_counts(model):
    pattern = "ab[0-9]{2}"
    text, _, finished = reply(model, Constraint("pattern", pattern, begun="ab"))
    assert re.fullmatch("[0-9]{2}", text)
    assert finished.valid
    with pytest.raises(ConstraintError, match="beginning does not fit its pattern"):
        reply(model, Constraint("pattern", pattern, begun="b"))
    ids = model.tokenizer.encode("ab", begins=False)
    text, _, finished = reply(model, Constraint.of_pattern(pattern), forced=ids)
    assert (text[:2], finished.valid) == ("ab", True)


def test_a_constraint_that_begins_after_a_text(model):
    after = Constraint("pattern", "yes", after="Answer:", is_optional=True)
    forced = model.tokenizer.encode("Well. Answer:", begins=False)
    text, _, finished = reply(model, after, forced=forced)
    assert text.removeprefix("Well. Answer:").strip().startswith("yes")
    assert finished.valid is None
    needed = Constraint("pattern", "yes", after="</think>")
    text, _, finished = reply(model, needed, Sampling(seed=1, max_tokens=4))
    assert finished.valid is False


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, r"properties\.a: .*not"),
        ({"type": "object", "required": ["b"],
          "properties": {"b": {"type": "integer", "minimum": 5, "maximum": 3}}},
         r"properties\.b: .*minimum \(5\)"),
        ({"anyOf": [{"type": "string"}, {"type": "string", "pattern": "(?=a)b"}]}, r"anyOf\[2\]"),
        ({"type": "foo"}, "foo"),
        ({"$ref": "#"}, "no text fits it"),
        ({"$ref": "http://127.0.0.1:1/x"}, "not present"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "oneOf constraints are not supported$"),
        (False, "allows nothing"),
        ('{"type"', "is not JSON"),
        ("[1]", "not a JSON object"),
        ({"type": "string", "maxLength": "3"}, "maxLength"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_its_part(schema, words):
    with pytest.raises(ConstraintError, match=words) as refused:
        Constraint.of_schema(schema)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        *(("pattern", each, "") for each in ("[", "(?=a)", r"(a)\1", "x{2,1}", r"a\b", "(" * 9999)),
        *(
            ("grammar", each, "")
            for each in ("start: x", "a: b", "start: start", "start: %json {}}")
        ),
        ("grammar", "", ""),
        ("grammar", 'start: "a" <|endoftext|> "b"', ".*unknown special token"),
    ],
)
def test_patterns_and_grammars_that_cannot_be_followed(kind, source, words):
    with pytest.raises(ConstraintError, match=f"the {kind} cannot be used: {words}"):
        Constraint(kind, source)


def test_a_grammar_whose_steps_take_long_is_refused(monkeypatch):
    grammar = compiling.grammar_of("grammar", "start: " + '"a"? ' * 100)
    assert compiling.fault_of(grammar) == ""
    monkeypatch.setattr(compiling, "_STEP_SECONDS", 0.0)
    assert compiling.fault_of(grammar) == "it takes too much work for each token"


HOSTILE = [
    ("pattern", "(((a{1000}){1000}){1000}){1000}"),
    ("pattern", "(a|b)*a(a|b){5000}"),
    ("schema", json.dumps({"type": "integer", "multipleOf": 999999937})),
    ("schema", json.dumps({"enum": [f"v{i}" for i in range(8000)]})),
    ("schema", '{"items":' * 5000 + "{}" + "}" * 5000),
    ("schema", json.dumps({"type": "string", "pattern": "^(?:(a+)+x|a{60})$"})),
    ("schema", json.dumps({"type": "array", "minItems": 10**8, "items": {"type": "integer"}})),
    ("schema", json.dumps({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]})),
    ("schema", json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(300)}})),
    ("grammar", 'start: start start start | "a" | '),
    ("grammar", "start: " + "(" * 20000 + '"a"' + ")" * 20000),
]


@pytest.mark.parametrize(("kind", "source"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_ones_take_bounded_time(model, kind, source):
    started = time.perf_counter()
    with suppress(ConstraintError):
        constraint = Constraint.of_schema(source) if kind == "schema" else Constraint(kind, source)
        reply(model, constraint, Sampling(seed=1, max_tokens=4))
    assert time.perf_counter() - started < 30


def test_the_check_of_a_reply_is_its_own():
    assert misfit('{"kind": "cow", "age": 3}', json.dumps(PET)) == (
        "at kind: 'cow' is not one of ['cat', 'dog']"
    )
    assert "is no JSON" in misfit("{", json.dumps(PET))
    assert misfit("0.3", json.dumps({"multipleOf": 0.1})) == ""
    catastrophe = {"type": "string", "pattern": "^(?:(a+)+x|a{60})$"}
    assert misfit(json.dumps("a" * 60), json.dumps(catastrophe)) == ""
    assert "does not match" in misfit(json.dumps("a" * 59), json.dumps(catastrophe))


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"type": "array", "items": {"$ref": "#"}},
        {"enum": ["b", 1], "anyOf": [{"$ref": "#/enum/1"}, {"$ref": "#/nope"}]},
        {"allOf": [{"$ref": "#/x"}], "x": {"type": {"a": 1}}},
    ],
)
def test_a_reply_is_never_checked_without_end(schema):
    """A schema in a circle, and one that refers to what is none: the check is given up."""
    for text in ('"a"', "[" * 900 + "]" * 900):
        assert misfit(text, json.dumps(schema))
    call = tool_misfit(json.loads("[" * 400 + "]" * 400), {"allOf": [schema]})
    assert call == "the schema of its arguments cannot be applied" or "expected" in call


SAME = {"$ref": "#/$defs/d{}"}
DOUBLED = {
    "allOf": {"allOf": [SAME, SAME]},
    "anyOf": {"anyOf": [SAME, SAME]},
    "oneOf": {"oneOf": [SAME, SAME]},
    "if": {"if": SAME, "then": SAME, "else": SAME},
    "items": {"type": "array", "items": SAME, "prefixItems": [SAME]},
    "properties": {"properties": {"a": SAME, "b": SAME}},
    "merged properties": {"allOf": [{"properties": {"x": SAME}}, {"properties": {"x": SAME}}]},
    "beside": {**SAME, "anyOf": [SAME]},
    "by address": {"allOf": [{"$ref": "http://x.y/z#/$defs/d{}"}] * 2},
    "by anchor": {"allOf": [{"$ref": "#d{}"}] * 2},
    "all of any": {"allOf": [SAME, {"anyOf": [SAME, SAME]}]},
    "own draft": {"$schema": "https://json-schema.org/draft/2020-12/schema", "anyOf": [SAME, SAME]},
}
"""Parts of a schema that refer to another twice; {} is its number."""


@pytest.mark.parametrize("base", [{"type": "string", "maxLength": 5}, {"enum": ["a"]}])
@pytest.mark.parametrize("form", DOUBLED)
def test_references_that_double_take_bounded_time(form, base, monkeypatch):
    """Forty levels, so that a check or a compilation that follows each would never end."""
    monkeypatch.setattr(validation, "MOST_STEPS", 5_000)  # a whole check takes seconds
    parts = {"d0": base | {"$anchor": "d0"}}
    for number in range(1, 41):
        text = json.dumps(DOUBLED[form]).replace("{}", str(number - 1))
        parts[f"d{number}"] = {"$anchor": f"d{number}"} | json.loads(text)
    schema = {"$id": "http://x.y/z", "$defs": parts, "$ref": "#/$defs/d40"}
    began = time.process_time()
    with suppress(ConstraintError):
        Constraint.of_schema(schema)
    for text in ('"abc"', '{"x": {"x": 1}}', "[[[1]]]"):
        misfit(text, json.dumps(schema))
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 999_983, "maximum": 10**300},
        {"allOf": [{"type": "string", "pattern": f".*a.{{{size}}}"} for size in range(1, 30)]},
    ],
    ids=["number", "patterns"],
)
def test_what_is_too_slow_to_compile_is_refused(schema, monkeypatch):
    monkeypatch.setattr(constraints, "_SECONDS", 3.0)
    began = time.monotonic()
    with pytest.raises(ConstraintError, match="it cannot be compiled within"):
        Constraint.of_schema(schema)
    assert time.monotonic() - began < 20


def test_few_merged_parts_are_followed():
    parts = {"name": {"type": "string"}, "long": {"allOf": [{"$ref": "#/$defs/name"}]}}
    Constraint.of_schema({"$defs": parts, "$ref": "#/$defs/long"})
    loop = {"type": "object", "properties": {"next": {"allOf": [{"$ref": "#"}]}}}
    Constraint.of_schema(loop)


def test_nobody_else_runs_a_schema_check():
    """A check by jsonschema itself would count no steps."""
    runs = re.compile(r"\.(?:iter_errors|is_valid|check_schema)\(|jsonschema\.validate\(")
    users = {
        path.relative_to(ROOT).as_posix()
        for folder in ("chatapp", "finetune")
        for path in (ROOT / folder).rglob("*.py")
        if runs.search(path.read_text(encoding="utf-8"))
    }
    assert users == {"chatapp/engine/constraint/validation.py"}


# Tokenizers


def sentencepiece():
    characters = [chr(code) for code in range(33, 127)]
    pieces = ["<unk>", "</s>", "▁", "▁a", '{"', "name", *characters]
    tokenizer = Tokenizer(models.Unigram([(piece, -len(piece) / 9) for piece in pieces], 0))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Replace("▁", " ")
    return TransformersTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    )


def followed(tokenizer, constraint):
    """The text of a model that always prefers the last allowed token."""
    vocabulary = Vocabulary("it", tokenizer, tokenizer.size)
    matcher = Matcher(constraint, vocabulary, {tokenizer.end_id}, None)
    stream, text = tokenizer.stream(), ""
    for _ in range(100):
        if matcher.is_over:
            break
        allowed = matcher.allowed()
        id = int(np.flatnonzero(allowed.mask)[-1]) if allowed.only is None else allowed.only
        if id == tokenizer.end_id:
            break
        new = stream.push(id)
        matcher.take(id, new)
        text += new
    return text + stream.flush()


SCHEMA = Constraint.of_schema(
    {
        "type": "object",
        "properties": {"name": {"const": "a b"}},
        "required": ["name"],
        "additionalProperties": False,
    }
)


def test_sentencepiece_tokens():
    assert json.loads(followed(sentencepiece(), SCHEMA)) == {"name": "a b"}


def published():
    data = os.environ.get("SHARED_DATA", "")
    return sorted(Path(data, "vocabularies").glob("ggml-vocab-llama-spm.gguf")) if data else []


@pytest.mark.parametrize("path", published() or [None], ids=lambda path: path.stem if path else "-")
def test_tokens_of_real_models(path):
    if path is None:
        pytest.skip("the shared data is not there; name its folder in SHARED_DATA")
    metadata = GGUFFile(path).metadata
    end = metadata["tokenizer.ggml.tokens"][metadata["tokenizer.ggml.eos_token_id"]]
    whole = gguf_tokenizer(metadata, path.name)
    try:
        tokenizer = BPETokenizer(whole, metadata["tokenizer.ggml.eos_token_id"])
    except NotByteLevel:
        wrapped = PreTrainedTokenizerFast(tokenizer_object=whole, eos_token=end)
        tokenizer = TransformersTokenizer(wrapped)
    assert json.loads(followed(tokenizer, SCHEMA)) == {"name": "a b"}


def test_a_tokenizer_without_plain_pieces_is_named():
    words = {"[UNK]": 0, "[END]": 1, "a": 2, "##b": 3}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    wrapped = TransformersTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="[END]", unk_token="[UNK]")
    )
    with pytest.raises(ConstraintError, match=r"^tiny: its tokenizer .* cannot be made to fit"):
        Vocabulary("tiny", wrapped, wrapped.size)


def test_banned_repetitions_do_not_leave_the_constraint(model):
    sampling = Sampling(temperature=0.5, seed=1, max_tokens=40, no_repeat_ngram=2)
    text, _, finished = reply(model, Constraint.of_pattern("(ab)?(a|b){20}"), sampling)
    assert finished.valid
    assert torch.isfinite(torch.tensor([finished.forbidden_mass])).all()
    assert set(text) <= {"a", "b"}


def test_random_constraints_are_kept(model):
    numbers = random.Random(7)
    constraints = [random_constraint(numbers) for _ in range(20)]
    ids = model.tokenizer.encode("An example:\n")
    sampling = Sampling(temperature=1.0, seed=1, max_tokens=40)
    requests = [Request(ids, sampling, constraint=constraint) for constraint in constraints]
    ended = 0
    for constraint, (text, finished) in zip(
        constraints, whole_replies(model.generate_many(requests)), strict=True
    ):
        assert finished.valid or constraint.kind == "pattern" or finished.reason == "error"
        if finished.valid:
            ended += 1
            if constraint.kind == "pattern":
                assert re.fullmatch(constraint.source, text)
            else:
                jsonschema.validate(json.loads(text), json.loads(constraint.source))
    assert ended > 4
