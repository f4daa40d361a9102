"""The generation loop and scoring on a real decoder: text, reasons, cache, seeds, cancelling."""

import math
import threading

import pytest
import torch
from random_models import logits_of

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.cache import key_values
from chatapp.engine.events import Finished, Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import ContextOverflow, Request, Sampling

GREEDY = Sampling(temperature=0, max_tokens=20)
PROMPT = [40, 71, 300, 12, 99]


def run(model, ids, sampling, **options):
    return list(model.generate(Request(ids, sampling, **options)))


def ids_of(events):
    return [event.id for event in events if isinstance(event, Token)]


def text_of(events):
    return "".join(event.text for event in events)


def last(events):
    assert all(isinstance(event, Token) for event in events[:-1])
    assert isinstance(events[-1], Finished)
    return events[-1]


def test_greedy_text_is_that_of_transformers(local, gpt2):
    for start in range(0, 300, 60):
        prompt = list(range(start + 1, start + 9))
        theirs = (
            gpt2[1]
            .generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=0)[
                0, len(prompt) :
            ]
            .tolist()
        )
        ours = ids_of(run(local, prompt, GREEDY))
        assert ours == theirs[: len(ours)]
        assert theirs[len(ours) :] in ([], [0])


def test_a_forced_start_is_gone_on_with(local):
    """As a longer prompt would be, but it is a part of the reply."""
    forced = [17, 250, 33]
    expected = run(local, PROMPT + forced, GREEDY)
    events = run(local, PROMPT, GREEDY, forced=forced)
    assert ids_of(events) == forced + ids_of(expected)
    assert text_of(events) == local.tokenizer.decode(forced) + text_of(expected)
    assert all(math.isnan(event.logprob) for event in events[:3] if isinstance(event, Token))
    assert last(events).prompt_tokens == len(PROMPT)
    assert last(events).reply_tokens == 3 + last(expected).reply_tokens


def test_nothing_is_drawn_after_a_forced_end(local):
    forced = [17, 250, local.tokenizer.end_id]
    for events in (
        run(local, PROMPT, GREEDY, forced=forced),
        [event for _, event in local.generate_many([Request(PROMPT, GREEDY, forced=forced)] * 2)],
    ):
        assert ids_of(events)[:2] == forced[:2]
        end = events[2]
        assert (end.reason, end.reply_tokens, end.end_id) == ("stop", 2, local.tokenizer.end_id)


def test_a_forced_start_may_fill_the_window(local):
    events = run(local, [1] * (local.context - 2), GREEDY, forced=[17, 250])
    assert ids_of(events) == [17, 250]
    assert last(events).reason == "context"
    with pytest.raises(ValueError, match="token id 400"):
        run(local, PROMPT, GREEDY, forced=[400])


def test_log_probabilities_and_alternatives(local, gpt2):
    sampling = Sampling(temperature=2.0, top_k=50, repetition_penalty=1.5, seed=4, max_tokens=8)
    events = run(local, PROMPT, sampling, top=3)
    ids = ids_of(events)
    expected = logits_of(gpt2[1], PROMPT + ids).log_softmax(-1)[len(PROMPT) - 1 :]
    for event, row in zip(events[:-1], expected, strict=False):
        assert event.logprob == pytest.approx(float(row[event.id]), abs=1e-4)
        values, best = row.topk(3)
        assert [alternative.id for alternative in event.alternatives] == best.tolist()
        assert [a.logprob for a in event.alternatives] == pytest.approx(values.tolist(), abs=1e-4)
        assert event.piece == local.tokenizer.piece(event.id)
    assert isinstance(run(local, PROMPT, GREEDY)[0], Token)
    assert run(local, PROMPT, GREEDY)[0].alternatives == ()


def test_the_last_event_counts(local):
    events = run(local, PROMPT, GREEDY)
    finished = last(events)
    assert (finished.prompt_tokens, finished.reused_tokens) == (5, 0)
    assert finished.reply_tokens == len(events) - 1
    assert 0 < finished.time_to_first_token <= finished.seconds


def test_a_new_turn_computes_only_its_own_tokens(local, monkeypatch):
    monkeypatch.setattr(
        key_values, "MOST_GUESSES", 0
    )  # a token guessed right is known before it is drawn
    reply = ids_of(run(local, PROMPT, GREEDY))
    turn = PROMPT + reply + [7, 8, 9]
    finished = last(run(local, turn, GREEDY))
    # The last token of a reply is drawn but not yet read.
    assert finished.reused_tokens == len(PROMPT) + len(reply) - 1
    assert last(run(local, turn, GREEDY)).reused_tokens == len(turn) - 1


def test_results_do_not_depend_on_the_cache(local, gpt2):
    changed = [*PROMPT[:2], 5, *PROMPT[3:]]
    run(local, PROMPT, GREEDY)
    fresh = LocalModel.load(ModelFiles.read(gpt2[0]))
    assert ids_of(run(local, changed, GREEDY)) == ids_of(run(fresh, changed, GREEDY))


def test_the_same_seed_gives_the_same_text(local, gpt2):
    sampling = Sampling(temperature=1.0, seed=11, max_tokens=30)
    first = run(local, PROMPT, sampling)
    assert ids_of(run(local, PROMPT, sampling)) == ids_of(first)
    run(local, [9, 9, 9], Sampling(temperature=1.0))
    assert ids_of(run(local, PROMPT, sampling)) == ids_of(first)
    assert ids_of(run(LocalModel.load(ModelFiles.read(gpt2[0])), PROMPT, sampling)) == ids_of(first)
    other = Sampling(temperature=1.0, seed=12, max_tokens=30)
    assert ids_of(run(local, PROMPT, other)) != ids_of(first)


DRAWS = (
    {"temperature": 0},
    {"temperature": 1.0, "top_p": 1.0},
    {"temperature": 0.9, "top_p": 0.8, "repetition_penalty": 1.3},
    {"temperature": 1.5, "top_k": 9, "min_p": 0.02},
    {"temperature": 1.0, "frequency_penalty": 0.5},
)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_tokens_drawn_in_one_call_are_those_drawn_one_by_one(draw, precision, gpt2, monkeypatch):
    """Until the end of the text, a stop string, the length or the window ends them."""
    model = LocalModel.load(ModelFiles.read(gpt2[0]), precision=precision)
    written, reasons, write = [], set(), model.write

    def noted(reply):
        is_written = write(reply)
        written.append(len(reply.waiting))
        return is_written

    for seed in range(30):
        sampling = Sampling(seed=seed, max_tokens=2 + 13 * seed % 90, **draw)
        request = Request(PROMPT[: 1 + seed % 5], sampling, () if seed % 3 else ("e", "th"))
        monkeypatch.setattr(model, "write", noted)
        together = list(model.generate(request))
        monkeypatch.setattr(model, "write", lambda reply: False)
        alone = list(model.generate(request))
        assert together[:-1] == alone[:-1]
        reasons.add(last(together).reason)
        for name in ("reason", "text", "reply_tokens", "end_id", "end_logprob"):
            assert getattr(last(together), name) == getattr(last(alone), name)
    assert len(reasons) > 1
    assert max(written) == 0 if "frequency_penalty" in draw else max(written) > 3


def test_without_a_seed_texts_differ(local):
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=30)
    assert ids_of(run(local, PROMPT, sampling)) != ids_of(run(local, PROMPT, sampling))


class Scripted(LocalModel):
    """The decoder as it is, but the drawn tokens follow a script."""

    def script(self, ids):
        self._script = list(ids)
        self._start = None

    def write(self, reply):
        return False

    def next_logits(self, ids, check, ahead=()):
        logits, reused = super().next_logits(ids, check)
        if self._start is None:
            self._start = len(ids)
        logits = torch.zeros_like(logits)
        logits[self._script[len(ids) - self._start]] = 1.0
        return logits, reused


@pytest.fixture
def scripted(gpt2):
    model = Scripted.load(ModelFiles.read(gpt2[0]))
    assert isinstance(model, Scripted)
    return model


def test_the_end_of_text_token_ends_the_reply_and_is_no_part_of_it(scripted):
    ids = scripted.tokenizer.encode("Hello.")
    scripted.script([*ids, 0, 5])
    events = run(scripted, PROMPT, GREEDY)
    finished = last(events)
    assert text_of(events) == "Hello."
    assert (finished.reason, finished.reply_tokens) == ("stop", len(ids))


def test_a_stop_string_ends_the_reply_and_never_shows(scripted):
    ids = scripted.tokenizer.encode("Yes, Us.\nUser: no")
    scripted.script(ids)
    events = run(scripted, PROMPT, Sampling(temperature=0), stop=["\nUser:", "never"])
    assert text_of(events) == "Yes, Us."
    assert last(events).reason == "stop"
    assert last(events).reply_tokens < len(ids)


def test_what_was_held_back_comes_with_the_last_event(scripted):
    ids = scripted.tokenizer.encode("Yes.\nUse")
    scripted.script(ids)
    events = run(scripted, PROMPT, Sampling(temperature=0, max_tokens=len(ids)), stop=["\nUser:"])
    assert text_of(events[:-1]) == "Yes."
    assert last(events).text == "\nUse"
    assert last(events).reason == "length"


def test_a_reply_that_repeats_itself_is_ended_and_cut_back(scripted):
    cycle = scripted.tokenizer.encode(" no. ")
    scripted.script(cycle * 20)
    events = run(scripted, PROMPT, Sampling(temperature=0, max_tokens=50))
    assert text_of(events) == " no. "
    assert (last(events).reason, last(events).text) == ("repetition", "")
    assert last(events).reply_tokens < 40
    scripted.script(cycle * 20)
    events = run(scripted, PROMPT, Sampling(temperature=0, max_tokens=40, max_repeats=0))
    assert text_of(events) == scripted.tokenizer.decode((cycle * 20)[:40])
    assert last(events).reason == "length"


def test_characters_of_several_tokens_show_whole(scripted):
    ids = scripted.tokenizer.encode("a😀b")
    scripted.script(ids)
    texts = [event.text for event in run(scripted, PROMPT, Sampling(temperature=0, max_tokens=6))]
    assert texts == ["a", "", "", "", "😀", "b", ""]


def test_the_end_of_the_window(local):
    ids = [*PROMPT] * 12  # 60 of 64
    finished = last(run(local, ids, Sampling(temperature=1.0, seed=0, max_tokens=50)))
    assert (finished.reason, finished.reply_tokens) == ("context", 4)
    assert last(run(local, ids, Sampling(temperature=1.0, seed=0, max_tokens=4))).reason == "length"


@pytest.mark.parametrize("size", [64, 65, 500])
def test_a_prompt_that_fills_the_window_is_refused(local, size):
    with pytest.raises(ContextOverflow, match=f"{size} tokens.*64"):
        next(iter(local.generate(Request([1] * size, GREEDY))))
    assert last(run(local, [1] * 63, GREEDY)).reply_tokens <= 1


@pytest.mark.parametrize("ids", [[], [340], [-1], [1, 10**9]])
def test_ids_that_are_no_tokens_are_refused(local, ids):
    with pytest.raises(ValueError, match="token"):
        next(iter(local.generate(Request(ids, GREEDY))))


@pytest.mark.parametrize("top_p", [0.9, 1.0])  # drawn one by one, and several in one call
def test_cancelling_takes_effect_within_one_token(local, top_p):
    cancel, events = threading.Event(), []
    sampling = Sampling(temperature=1.0, top_p=top_p, seed=1, max_tokens=50)
    for event in local.generate(Request(PROMPT, sampling, cancel=cancel)):
        events.append(event)
        if len(events) == 4:
            cancel.set()
    assert len(events) == 5
    assert (last(events).reason, last(events).reply_tokens) == ("cancelled", 4)


class LateEvent(threading.Event):
    """Set from the n-th look on."""

    def __init__(self, looks):
        super().__init__()
        self._looks = looks

    def is_set(self):
        self._looks -= 1
        return self._looks < 0


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_cancelling_in_the_middle_of_the_prompt(local, gpt2, looks):
    events = run(local, PROMPT * 10, GREEDY, cancel=LateEvent(looks))
    assert len(events) == 1
    assert (last(events).reason, last(events).reply_tokens) == ("cancelled", 0)
    fresh = LocalModel.load(ModelFiles.read(gpt2[0]))
    assert ids_of(run(local, PROMPT * 10, GREEDY)) == ids_of(run(fresh, PROMPT * 10, GREEDY))


def test_generations_do_not_disturb_each_other(local):
    sampling = Sampling(temperature=1.0, seed=3, max_tokens=10)
    alone = [run(local, PROMPT, sampling), run(local, [8, 8], sampling)]
    streams = [local.generate(Request(PROMPT, sampling)), local.generate(Request([8, 8], sampling))]
    together = [[], []]
    for _ in range(12):
        for stream, events in zip(streams, together, strict=True):
            events += [event for event in [next(stream, None)] if event is not None]
    assert [ids_of(events) for events in together] == [ids_of(events) for events in alone]


def test_threads_do_not_disturb_each_other(local):
    sampling = Sampling(temperature=1.0, seed=3, max_tokens=15)
    expected = [ids_of(run(local, [n, 8], sampling)) for n in range(1, 5)]
    found = {}

    def work(n):
        found[n] = ids_of(run(local, [n, 8], sampling))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] for n in range(1, 5)] == expected


def test_a_forgotten_generation_blocks_nothing(local):
    stream = local.generate(Request(PROMPT, Sampling(temperature=1.0)))
    next(stream)
    assert last(run(local, PROMPT, GREEDY)).reply_tokens > 0
    assert local.score([([1], [2])])


def test_a_failing_engine_is_an_event(local, gpt2, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(local.decoder, "head", fail)
        events = run(local, PROMPT, GREEDY)
    assert last(events).reason == "error"
    assert "out of memory" in last(events).message
    fresh = LocalModel.load(ModelFiles.read(gpt2[0]))
    assert ids_of(run(local, PROMPT, GREEDY)) == ids_of(run(fresh, PROMPT, GREEDY))


def fail(_):
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("value", [torch.nan, 1e38])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(max_tokens=2)])
def test_weights_that_are_not_numbers_are_an_error(value, sampling, local, monkeypatch):
    head = local.decoder.head
    monkeypatch.setattr(local.decoder, "head", lambda hidden: head(hidden) * value * 1e38)
    events = run(local, PROMPT, sampling)
    assert last(events).reason == "error"
    assert "not finite" in last(events).message


def test_no_token_outside_the_tokenizer_is_drawn(make_gpt2):
    folder, _ = make_gpt2(vocab_size=700)
    model = LocalModel.load(ModelFiles.read(folder))
    sampling = Sampling(temperature=100.0, top_p=1.0, seed=0, max_tokens=58)
    for start in range(1, 5):
        assert max(ids_of(run(model, [start], sampling))) < model.tokenizer.size == 340
    with pytest.raises(ValueError, match="vocabulary"):
        model.generate(Request([400], GREEDY))


def test_scores_are_those_of_transformers(local, gpt2):
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for context, continuation in ((1, 1), (30, 2), (3, 40), (63, 1), (1, 63), (10, 10)):
        ids = torch.randint(0, 340, (context + continuation,), generator=generator).tolist()
        pairs.append((ids[:context], ids[context:]))
    scores = local.score(pairs)
    for (context, continuation), found in zip(pairs, scores, strict=True):
        rows = logits_of(gpt2[1], context + continuation).log_softmax(-1)[len(context) - 1 : -1]
        expected = rows[range(len(continuation)), continuation].tolist()
        assert found == pytest.approx(expected, abs=1e-4)


def test_scores_do_not_depend_on_the_batch(local, monkeypatch):
    pairs = [(PROMPT[: 1 + n % 4], [n + 1] * (1 + n % 7)) for n in range(30)]
    together = local.score(pairs)
    monkeypatch.setattr("chatapp.engine.backends.local.LOGIT_ROWS", 2)
    local.batch_tokens = 9
    for alone, found in zip(local.score(pairs), together, strict=True):
        assert alone == pytest.approx(found, abs=1e-4)
    assert local.score([]) == []


@pytest.mark.parametrize(
    ("pair", "error"),
    [
        (([], [1]), ValueError),
        (([1], []), ValueError),
        (([1], [340]), ValueError),
        (([1] * 60, [1] * 5), ContextOverflow),
    ],
)
def test_pairs_that_cannot_be_scored(local, pair, error):
    with pytest.raises(error):
        local.score([([1], [2]), pair])


@pytest.mark.parametrize("layer", [-1, 0, 1])
def test_embeddings_are_the_mean_hidden_states_of_transformers(local, gpt2, layer):
    with torch.inference_mode():
        states = gpt2[1](torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    expected = states[layer][0].mean(0)
    assert local.embed(PROMPT, layer) == pytest.approx(expected.numpy(), abs=1e-5)
    assert local.embed(PROMPT, local.layers) == pytest.approx(local.embed(PROMPT), abs=0)


def test_embeddings_of_too_much_or_of_no_layer_are_refused(local):
    with pytest.raises(ContextOverflow, match=f"window has {local.context}"):
        local.embed([1] * (local.context + 1))
    for layer in (-2, local.layers + 1):
        with pytest.raises(ValueError, match=f"layer {layer} does not exist"):
            local.embed(PROMPT, layer)
    with pytest.raises(ValueError, match="at least one"):
        local.embed([])
