"""What people bring: one begin token at every door, and a text longer than the window at each."""

import json
import re

import pytest
import torch
from api_server import serving
from random_models import save_random
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.files.gguf.reader import GGUFFile
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from finetune.config.sections import FinetuneConfig
from finetune.run import examine

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
SIZES = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "head_dim": 24,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
START = 340


@pytest.fixture(scope="module")
def twice(bpe, tmp_path_factory):
    """A Qwen3 whose template writes a begin token, which its tokenizer puts before texts, too."""
    folder = tmp_path_factory.mktemp("twice")
    tokenizer = Tokenizer.from_str(bpe.to_str())
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", START)]
    )
    save_random(folder, "qwen3", bpe, **SIZES)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="<|endoftext|>",
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def read(monkeypatch):
    """The sequences that models have read, with what they put before each themselves."""
    seen = []

    def kept(name):
        unchanged = getattr(LocalModel, name)

        def method(self, ids, *more):
            rows = ids if name == "score_rows" else [ids]
            seen.extend([*self.start, *row] for row in rows)
            return unchanged(self, ids, *more)

        monkeypatch.setattr(LocalModel, name, method)

    for name in ("next_logits", "read", "score_rows"):
        kept(name)
    return seen


def test_a_begin_token_of_template_and_tokenizer_comes_once(run, twice, read, tmp_path):
    gguf, rows, task = tmp_path / "a.gguf", tmp_path / "rows.jsonl", tmp_path / "task.toml"
    rows.write_text('{"text": "Hi", "label": "yes"}\n{"text": "Ho", "label": "no"}\n')
    task.write_text(
        'instruction = "Say."\nlabels = ["yes", "no"]\nexamples_file = "rows.jsonl"\n'
        '[chat]\nstyle = "turns"\n'
    )
    assert "3 prompts have" in run("models", "export", str(twice), str(gguf), "--check").err
    assert GGUFFile(gguf).metadata["tokenizer.ggml.add_bos_token"] is True
    prompts = {}
    for name in (str(twice), str(gguf)):
        model = ("--model", name)
        for door in (
            ("ask", "Hi", "--max-tokens", "3", *model),
            ("eval", str(task), "--test", str(rows), "--shots", "1", *model),
        ):
            read.clear()
            result = run(*door)
            assert result.status == 0, result.err
            assert {(ids[0], ids.count(START)) for ids in read} == {(START, 1)}
            prompts.setdefault(door[0], []).append(sorted(map(tuple, read))[:1])
    assert all(one == other for one, other in prompts.values())


async def test_so_it_does_from_the_server(twice, read):
    model = load_model(str(twice))
    async with serving(model, template=choose_template(model, "")) as client:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
            ("/v1/completions", {"prompt": "Hi"}),
        ):
            read.clear()
            await client.post(path, {"max_tokens": 3, **body})
            assert {(ids[0], ids.count(START)) for ids in read} == {(START, 1)}


@pytest.mark.parametrize("texts", [False, True])
def test_so_it_does_in_rows_to_train_on(twice, tmp_path, texts):
    """With the model's own template, which the rows are written in, and in rows without one."""
    path = tmp_path / "rows.jsonl"
    row = {"text": "Hi you"} if texts else {"prompt": "Hi", "completion": "you"}
    path.write_text(f"{json.dumps(row)}\n" * 8)
    settings = {"model": str(twice), "output": str(tmp_path / "run"), "data": {"train": str(path)}}
    found = examine(FinetuneConfig.model_validate(settings))
    assert found.setup.data.train.examples
    for example in found.setup.data.train.examples:
        assert (example.ids[0], list(example.ids).count(START)) == (START, 1)


SECRET = "The secret is 7. " + "word " * 150


async def test_a_text_longer_than_the_window_is_refused_with_both_numbers(run, twice, tmp_path):
    """At each door, because what is left out silently is answered wrongly."""
    file = tmp_path / "long.txt"
    file.write_text(SECRET)
    model = load_model(str(twice))
    asked = f"{SECRET}\n\nWhat is the secret?"
    refused = run("ask", "What is the secret?", "-f", str(file), "--model", str(twice))
    assert refused.status == 2
    answers = [refused.err]
    turns = [{"role": "user", "content": asked}]
    async with serving(model, template=choose_template(model, "")) as client:
        for path, body in (
            ("/v1/chat/completions", {"messages": turns}),
            ("/v1/completions", {"prompt": asked}),
        ):
            answer = await client.post(path, body)
            assert answer["status"] == 400
            answers.append(answer["error"]["message"])
    for words in answers:
        given, window = (int(number) for number in re.findall(r"\b\d{3,}\b", words)[:2])
        assert given > model.context >= window, words


async def test_messages_left_out_of_the_window_are_named(twice, caplog):
    """In the answer, each chunk of a stream, a header and the log, which has no client's words."""
    model = load_model(str(twice))
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "The secret is 7. " + "word " * 25},
        {"role": "assistant", "content": "Good."},
        {"role": "user", "content": "word " * 10},
        {"role": "assistant", "content": "Good."},
        {"role": "user", "content": "What is the secret?"},
    ]
    words = "all before messages.3, except instructions"
    async with serving(model, template=choose_template(model, "")) as client:
        for messages, said in ((chat, words), (chat[:1] + chat[3:], None)):
            body, address = {"messages": messages, "max_tokens": 64}, f"{client.address}/v1/chat"
            for stream in (False, True):
                caplog.clear()
                sent = body | {"stream": stream}
                with caplog.at_level("INFO"):
                    async with client.session.post(f"{address}/completions", json=sent) as answer:
                        text = await answer.text()
                assert (answer.status, answer.headers.get("X-Left-Out")) == (200, said)
                parts = [p for p in text.split("\n\n") if "{" in p]
                assert {json.loads(p.removeprefix("data: ")).get("left_out") for p in parts} == {
                    said
                }
                assert (f"left out {words}" in caplog.text) == bool(said)
                assert "secret" not in caplog.text
            assert (await client.post("/tokenize", {"messages": messages})).get("left_out") == said


def test_a_reply_beyond_the_sliding_windows_is_that_of_transformers(bpe, tmp_path):
    """It is several of them long, and ends at the window of the whole with that reason."""
    sizes = {**SIZES, "max_position_embeddings": 96, "query_pre_attn_scalar": 24}
    kinds = ["sliding_attention", "full_attention"]
    network = save_random(
        tmp_path, "gemma3_text", bpe, **sizes, sliding_window=16, layer_types=kinds
    )
    model, ids = load_model(str(tmp_path)), [5, 6, 7, 8]
    greedy = Sampling(temperature=0.0, max_tokens=500, max_repeats=0)
    *tokens, end = model.generate(Request(ids, greedy, bias={0: -100.0}))
    assert (end.reason, len(tokens)) == ("context", 92)
    for token in tokens:
        logits = network(torch.tensor([ids]), use_cache=False).logits[0, -1]
        logits[0] = -torch.inf
        assert logits[token.id] == logits.max()
        ids.append(token.id)


def test_a_qwen3_whose_heads_are_no_part_of_its_width_comes_back(run, bpe, tmp_path):
    network = save_random(tmp_path / "a", "qwen3", bpe, **SIZES)  # 4 heads of 24, 32 wide
    names = [str(tmp_path / name) for name in ("a", "b", "c.gguf", "d")]
    for source, target in ((0, 1), (0, 2), (2, 3)):
        again = ("models", "export", names[source], names[target], "--type", "f32", "--check")
        assert "moves by 0.00000" in run(*again).err
    ids = list(range(5, 30))
    expected = network(torch.tensor([ids])).logits[0, :, :340].log_softmax(-1)  # without padding
    for name in names:
        scores = load_model(name).score([(ids[:1], ids[1:])])[0]
        rows = zip(range(24), ids[1:], strict=True)
        assert scores == pytest.approx([float(expected[i, id]) for i, id in rows], abs=1e-4)
        shown = run("inspect", "heads", "Hello you", "--model", name, "--json")
        assert (shown.status, len(json.loads(shown.out)["heads"])) == (0, 8), shown.err
