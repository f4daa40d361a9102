"""`finetune check`: the numbers of the very rows that would be trained on, and masks to see."""

import io
import json

import numpy as np
import pytest
from fakes import WordTokenizer
from rich.console import Console
from tiny import write_tiny_gpt2
from typer.testing import CliRunner

from finetune.cli import app
from finetune.config.sections import FinetuneConfig
from finetune.data.encoding import Encoded, Span
from finetune.measuring.run_report import header
from finetune.objectives.rows import masked
from finetune.run import examine, show

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_gpt2(tmp_path_factory.mktemp("model"), context=128)


def rows(folder, *more):
    path = folder / "rows.jsonl"
    plain = [{"prompt": f"say {n}", "completion": "yes " * (n % 3 + 1)} for n in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*plain, *more]))
    return str(path)


def config(model, folder, data, **sections):
    settings = {
        "model": str(model),
        "output": str(folder / "run"),
        "data": {"template": "chat", "held_out": 0.2, **data},
        "objective": {"aux_weight": 0.25},
        "train": {"batch_size": 4},
        **sections,
    }
    return FinetuneConfig.model_validate(settings)


def printed(found, **console):
    out = io.StringIO()
    show(found, Console(file=out, width=200, **console))
    return out.getvalue()


BAD = [
    {"prompt": "x", "completion": ""},
    {"prompt": "x", "completion": None},
    {"prompt": "long " * 100, "completion": "short"},
]


def test_numbers_and_text_agree_with_the_rows(model, tmp_path):
    data = {"train": rows(tmp_path, *BAD), "bad_rows": "skip", "too_long": "truncate-prompt"}
    found = examine(config(model, tmp_path, data, objective={"aux_weight": 0.5}))
    document = found.document()
    train = found.setup.data.train
    lengths = [len(each.ids) for each in train.examples]
    responses = sum(int((each.spans == Span.RESPONSE).sum()) for each in train.examples)
    held_out = document["held_out"]["held_out"]
    assert (document["kept"], document["dropped"]) == (
        31,
        {"empty completion": 1, "completion is not text": 1},
    )
    assert document["truncated"] == {"prompt": 1}
    assert held_out + len(lengths) == 31
    assert document["response_tokens"] == responses
    # Of each example all other tokens but the first are labels of L1.
    assert document["prompt_tokens"] == sum(lengths) - responses - len(lengths)
    assert document["effective_prompt_weight"] == pytest.approx(
        0.5 * responses / document["prompt_tokens"]
    )
    assert document["trainable_parameters"] == sum(
        each.numel() for each in found.setup.model.parameters()
    )
    assert document["seconds_per_step"] > 0
    assert document["peak_memory_bytes"] > 2**20
    assert document["steps"] == 2 * -(-len(train) // 4)
    json.dumps(document)

    text = printed(found)
    assert "rows.jsonl: prompt/completion (prompt, completion), rows: 33, kept: 31" in text
    assert "rows dropped, empty completion: 1" in text
    assert "rows.jsonl, line " in text.split("empty completion: 1")[1].split("rows cut")[0]
    assert "rows cut in their prompts: 1" in text
    assert f"{len(lengths)} examples in {len(train)} rows to learn from" in text
    assert f"held_out {held_out}" in text
    assert f"an epoch: {sum(lengths):,} tokens" in text
    assert text.count("⟦") == text.count("⟧") == 4  # the legend and three examples
    assert "⟦ yes" in text
    assert not (tmp_path / "run").exists()


def test_clusters_and_windows_are_shown(model, tmp_path):
    story = tmp_path / "story.txt"
    story.write_text("word " * 300)
    sources = [{"path": rows(tmp_path), "cluster": "[red]talk"}, {"path": str(story)}]
    text = printed(examine(config(model, tmp_path, {"train": sources, "packing": False})))
    assert "rows of the cluster [red]talk: 30" in text
    assert "plain texts split into windows: 1" in text
    assert "plain text (text)" in text


def test_no_weight_is_told_of_a_loss_without_labels(model, tmp_path):
    story = tmp_path / "story.txt"
    story.write_text("word " * 3000)
    found = examine(config(model, tmp_path, {"train": str(story)}))
    assert found.document()["effective_prompt_weight"] == 0
    assert "a token of L1" not in printed(found)
    assert "L1 has none" in "\n".join(header(found.setup))


def test_a_head_is_checked_too(model, tmp_path):
    path = tmp_path / "labelled.jsonl"
    lines = [{"text": f"text {n}", "label": ("yes", "no")[n % 2]} for n in range(20)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = config(model, tmp_path, {"train": str(path), "template": ""})
    head = FinetuneConfig.model_validate(
        settings.model_dump() | {"head": {"task": "classification"}}
    )
    found = examine(head)
    document = found.document()
    assert document["kept"] == 20
    assert document["response_tokens"] == 20 - document["held_out"]["held_out"]
    assert " no\n" in printed(found)


def example(tokenizer, *runs):
    pieces = [(span, tokenizer.encode(text) or [tokenizer.end_id]) for span, text in runs]
    ids = np.array([id for _, ids in pieces for id in ids], np.int32)
    spans = np.array([span for span, ids in pieces for _ in ids], np.uint8)
    return Encoded(ids, spans, "0" * 16)


def test_a_mask_has_a_style_a_span():
    tokenizer = WordTokenizer()
    chat = example(
        tokenizer,
        (Span.TEMPLATE, "User:"),
        (Span.PROMPT, " hi [bold]"),
        (Span.TEMPLATE, "\nAssistant:"),
        (Span.RESPONSE, " a\x1b[31m"),
        (Span.RESPONSE, ""),
    )
    text = masked(chat, tokenizer)
    assert text.plain == "User: hi [bold]\nAssistant: a␛[31m<|endoftext|>"
    assert [(text.plain[s.start : s.end], s.style) for s in text.spans] == [
        ("User:", "dim"),
        (" hi [bold]", "cyan"),
        ("\nAssistant:", "dim"),
        (" a␛[31m<|endoftext|>", "bold green"),
    ]
    assert masked(chat, tokenizer, marked=True).plain.endswith("⟦ a␛[31m<|endoftext|>⟧")


def test_a_long_span_is_shown_by_its_ends():
    tokenizer = WordTokenizer()
    words = " ".join(f"w{n}" for n in range(1000))
    shown = masked(example(tokenizer, (Span.PROMPT, words)), tokenizer).plain
    assert shown.startswith("w0 w1 ")
    assert shown.endswith("w998 w999")
    assert len(shown) < 500
    assert "[…]" in shown


def write(folder, model, **data):
    path = folder / "config.toml"
    values = {"train": rows(folder), "template": "chat", **data}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path.write_text(
        f'model = "{model}"\noutput = "{folder / "run"}"\n[data]\n'
        + "\n".join(lines)
        + "\n[train]\nbatch_size = 4\n"
    )
    return str(path)


def test_the_command(model, tmp_path):
    path = write(tmp_path, model)
    asked = RUNNER.invoke(app, ["check", path, "--json"])
    assert asked.exit_code == 0, asked.output
    document = json.loads(asked.stdout)
    assert {
        "kept", "dropped", "prompt_tokens", "response_tokens", "effective_prompt_weight",
        "trainable_parameters", "seconds_per_step", "peak_memory_bytes",
    } <= document.keys()  # fmt: skip
    assert document["kept"] == 30
    shown = RUNNER.invoke(app, ["check", path, "train.method=last-blocks", "train.last_blocks=1"])
    assert shown.exit_code == 0, shown.output
    assert "parameters are trained (last-blocks)" in shown.stdout
    assert RUNNER.invoke(app, ["check", path, "data.held_out=2"]).exit_code == 2


def test_a_source_without_rows_is_named_in_words(tmp_path):
    (tmp_path / "none.jsonl").touch()
    (tmp_path / "some.jsonl").write_text('{"prompt": "Hi", "completion": "Hello."}\n')
    (tmp_path / "config.toml").write_text(
        f'model = "bundled"\noutput = "{tmp_path / "run"}"\n[data]\nheld_out = 0.0\n'
        f'train = ["{tmp_path / "some.jsonl"}", "{tmp_path / "none.jsonl"}"]\n'
    )
    shown = CliRunner().invoke(app, ["check", str(tmp_path / "config.toml")])
    assert shown.exit_code == 0
    assert "none.jsonl:isempty" in "".join(shown.stdout.split())
