"""A model behind `chatapp api` is the same model: its tokens, scores and answers, as a client."""

import json

import pytest
from completions_server import CompletionsServer
from typer.testing import CliRunner

from chatapp.cli import app
from chatapp.engine.backends.remote.remote_model import RemoteModel
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import ContextOverflow, Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.tasks.evaluation.language_modelling import lambada, perplexity

TEXT = "A naïve cat, 猫, sleeps. To be or not to be, that is the question."


@pytest.fixture
def remote(address):
    return load_model(address)


@pytest.fixture(scope="module")
def local(tiny_folder):
    return load_model(str(tiny_folder))


def test_its_tokens(remote, local):
    ids = local.tokenizer.encode(TEXT)
    assert remote.tokenizer.encode(TEXT) == ids
    whole = local.tokenizer.decode(ids)  # without what a tiny vocabulary lacks
    assert remote.tokenizer.decode(ids) == whole
    stream = remote.tokenizer.stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == whole
    assert remote.tokenizer.end_id == local.tokenizer.end_id
    assert remote.context == local.context


def test_its_scores(remote, local):
    ids = local.tokenizer.encode(TEXT)
    whole = (ids * 9)[: local.context]
    pairs = [(ids[:n], ids[n : n + 3]) for n in range(1, 20)] + [(whole[:5], whole[5:])]
    for own, expected in zip(remote.score(pairs), local.score(pairs), strict=True):
        assert own == pytest.approx(expected, abs=1e-4)
    long = TEXT * 9  # more windows than the server takes at a time
    assert perplexity(remote, long).per_token == pytest.approx(perplexity(local, long).per_token)
    passages = ["it was the bat", "it fell", "the cat was a cat", "hello you", "a word", "the end"]
    expected = lambada(local, passages).figures
    for protocol, figure in lambada(remote, passages).figures.items():
        assert figure.accuracy == expected[protocol].accuracy
        assert figure.perplexity == pytest.approx(expected[protocol].perplexity, rel=1e-4)
    with pytest.raises(ContextOverflow, match=f"window has {local.context}"):
        remote.score([(whole, whole)])


GREEDY = Sampling(temperature=0, max_tokens=8, max_repeats=0)


def written(model, ids, **options):
    """The tokens and the end of a reply."""
    *tokens, end = model.generate(Request(ids, **{"sampling": GREEDY} | options))
    assert isinstance(end, Finished)
    return [token for token in tokens if isinstance(token, Token)], end


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top": 2},
        {"forced": "cat"},
        {"forced": "cat", "is_ended": True},
        {"stop": 5},
        {"sampling": Sampling(temperature=0, max_tokens=300, max_repeats=0)},
        {"sampling": Sampling(temperature=0, max_tokens=300)},
        {"sampling": Sampling(temperature=0.9, seed=3, max_tokens=9)},
    ],
    ids=["plain", "top", "forced", "forced end", "stop", "window", "repetition", "seed"],
)
def test_its_replies(remote, local, options):
    ids, options = local.tokenizer.encode("To be"), dict(options)
    if "forced" in options:
        end_id = [local.tokenizer.end_id] if options.pop("is_ended", False) else []
        options["forced"] = [*local.tokenizer.encode(options["forced"]), *end_id]
    if "stop" in options:  # the fifth is heeded here alone
        text = "".join(token.text for token in written(local, ids)[0])
        options["stop"] = ["\0", "\1", "\2", "\3", text[2 : options["stop"]]]
    (tokens, end), (expected, expected_end) = (written(m, ids, **options) for m in (remote, local))
    assert [token.piece for token in tokens] == [token.piece for token in expected]
    texts = [
        "".join(event.text for event in (*every, last))
        for every, last in ((tokens, end), (expected, expected_end))
    ]
    assert texts[0] == texts[1]
    for name in ("reason", "prompt_tokens", "reply_tokens"):
        assert getattr(end, name) == getattr(expected_end, name)
    assert 0 <= end.time_to_first_token <= end.seconds
    for token, other in zip(tokens, expected, strict=True):
        assert len(token.alternatives) == options.get("top", 0)
        if token.alternatives:
            assert token.logprob == pytest.approx(other.logprob, abs=1e-4)
            best = [(it.text, pytest.approx(it.logprob, abs=1e-4)) for it in other.alternatives]
            assert [(it.text, it.logprob) for it in token.alternatives] == best


def test_what_it_has_written_can_be_continued(remote, local):
    """What it drew is text for this program."""
    ids = local.tokenizer.encode("To be")
    tokens, _ = written(remote, ids)
    text = "To be" + "".join(token.text for token in tokens)
    drawn = [token.id for token in tokens]
    assert remote.tokenizer.decode([*ids, *drawn]) == text
    again, _ = written(local, local.tokenizer.encode(text))
    assert [t.text for t in written(remote, [*ids, *drawn])[0]] == [t.text for t in again]


def test_labels_by_a_server(address, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    test = tmp_path / "test.jsonl"
    rows = [{"input": "You have won!", "output": "spam"}, {"input": "Lunch?", "output": "ham"}]
    test.write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    prompt = tmp_path / "spam.toml"
    prompt.write_text('output_prefix = "Class:"\nlabels = ["spam", "ham"]\n')
    answers = []
    for model in (address, str(tiny_folder)):
        folder = tmp_path / f"report{len(answers)}"
        options = ["--model", model, "--report", str(folder)]
        result = CliRunner().invoke(app, ["eval", str(prompt), "--test", str(test), *options])
        assert result.exit_code == 0, result.output
        _, *lines = (folder / "answers.jsonl").read_text().splitlines()
        answers.append([json.loads(line)["log_likelihoods"]["direct"] for line in lines])
    assert len(answers[0]) == len(rows) * 3
    for own, expected in zip(*answers, strict=True):
        assert own == pytest.approx(expected, abs=1e-4)


# Servers that cut no texts, as llama-cpp-python's


def echoing(request):
    """Each word is a token, with its length as its log-probability below 0."""
    words, offsets, at = [], [], 0
    for word in request["prompt"].replace(" ", "\0 ").split("\0"):
        words.append(word)
        offsets.append(at)
        at += len(word)
    values = [None, *(-float(len(word)) for word in words[1:])]
    echoed = {
        "tokens": [*words, " new"],
        "token_logprobs": [*values, -1.0],
        "text_offset": [*offsets, at],
    }
    return 200, json.dumps({"choices": [{"text": "", "logprobs": echoed}]}), {}


def test_scores_of_a_text():
    with CompletionsServer().running() as server:
        server.stream = echoing
        model = load_model(server.url)
        context, continuation = map(model.tokenizer.encode, ("one two", " three four"))
        (scores,) = model.score([(context, continuation)])
        assert sum(scores) == pytest.approx(-len(" three four"))
        assert len(scores) == len(continuation)
        assert isinstance(model, RemoteModel)
        assert server.requests[-1]["max_tokens"] == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((500, '{"error": "logits_all is False"}', {}), "logits_all is False; scoring needs"),
        ((200, '{"choices": [{"text": "a", "logprobs": null}]}', {}), "no log-probabilities"),
        ((200, "[]", {}), "not a JSON object; scoring needs"),
        ((404, "", {}), "no such address"),
    ],
)
def test_what_a_server_lacks_is_said(answer, words):
    with CompletionsServer().running() as server:
        server.stream = lambda request: answer
        model = load_model(server.url)
        ids = model.tokenizer.encode("one two")
        with pytest.raises(ModelError, match=words):
            model.score([(ids[:1], ids[1:])])
