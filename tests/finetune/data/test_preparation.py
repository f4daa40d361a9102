"""From the [data] section to examples: nothing lost uncounted, nothing measured is learned."""

import json

import pytest
from fakes import WordTokenizer
from hypothesis import given
from hypothesis import strategies as st

from chatapp.engine.files.model_files import ModelFiles
from chatapp.prompting.template import ALPACA, CHAT, save_template
from finetune.config.sections import ConfigError, Data
from finetune.data.encoding import ExampleEncoder, Span
from finetune.data.preparation import CHATS, HELD_OUT, choose_template, encode_rows, length_of


def pairs(count, start=0):
    return [
        {"prompt": f"question {n}", "completion": f"answer {n}"}
        for n in range(start, start + count)
    ]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def made(window=200, seed=0, **data):
    settings = Data.model_validate(data)
    length = length_of(settings, window)
    encoder = ExampleEncoder(CHAT, WordTokenizer(), length, settings.too_long)
    prepared = encode_rows(settings, CHATS, encoder, seed)
    report = prepared.report
    read = sum(table.rows for table in report.tables)
    assert report.kept + sum(report.dropped.values()) == read
    return prepared


def texts(examples):
    """The examples as comparable things (a fresh tokenizer numbers words as they come)."""
    return [tuple(example.ids.tolist()) for example in examples]


def keys(examples):
    return [example.key for example in examples]


def test_a_file_is_split_by_hash_and_described(tmp_path):
    rows = [{**row, "id": n} for n, row in enumerate(pairs(300))]
    path = write(tmp_path / "a.jsonl", rows)
    prepared = made(train=path, held_out=0.2)
    train, held_out = keys(prepared.train), keys(prepared.held_out[HELD_OUT])
    assert len(train) + len(held_out) == 300
    assert 35 < len(held_out) < 85
    assert not set(train) & set(held_out)
    (table,) = prepared.report.tables
    assert (table.name, table.layout, table.rows, table.kept) == (
        path, "prompt/completion", 300, 300,
    )  # fmt: skip
    assert (table.fields, table.ignored) == (("prompt", "completion"), ("id",))
    # A row never changes sides: not with the order, not with what stands beside it.
    moved = made(train=write(tmp_path / "b.jsonl", pairs(400)[::-1]), held_out=0.2)
    assert set(held_out) <= set(keys(moved.held_out[HELD_OUT]))
    assert made(train=path, held_out=0).held_out == {}


def test_a_held_out_file_and_the_rows_it_shares(tmp_path):
    train = write(tmp_path / "train.jsonl", pairs(10))
    test = write(tmp_path / "test.jsonl", pairs(5, start=8))
    prepared = made(train=train, held_out=test)
    assert (len(prepared.train), len(prepared.held_out[HELD_OUT])) == (8, 5)
    assert prepared.report.dropped == {"also held out": 2}
    assert [table.kept for table in prepared.report.tables] == [5, 8]


def test_weights_are_passes(tmp_path):
    a, b = write(tmp_path / "a.jsonl", pairs(10)), write(tmp_path / "b.jsonl", pairs(10, 100))
    sources = [{"path": a, "weight": 2.5}, {"path": b, "weight": 0.3}]
    prepared = made(train=sources, held_out=0)
    counts = {key: keys(prepared.train).count(key) for key in keys(prepared.train)}
    assert len(prepared.train) == 28
    assert sorted(counts.values()) == [1] * 3 + [2] * 5 + [3] * 5
    assert (prepared.report.kept, prepared.report.repeated) == (20, 0)
    assert keys(made(train=sources, held_out=0).train) == keys(prepared.train)
    assert keys(made(train=sources, held_out=0, seed=1).train) != keys(prepared.train)


def test_repeated_rows_are_counted(tmp_path):
    path = write(tmp_path / "a.jsonl", pairs(3) + pairs(2))
    assert made(train=path, held_out=0).report.repeated == 2


def test_bad_rows_are_raised_or_counted(tmp_path):
    rows = [{"prompt": "a"}, *pairs(3), {"prompt": "a", "completion": ""}, {"prompt": "b"}]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 1: expected instruction and output"):
        made(train=path, held_out=0)
    prepared = made(train=path, held_out=0, bad_rows="drop")
    assert len(prepared.train) == 3
    assert prepared.report.dropped == {
        "unknown layout": 1,
        "empty completion": 1,
        "no completion": 1,
    }


def test_too_long_rows(tmp_path):
    rows = [*pairs(3), {"prompt": "word " * 60, "completion": "short"}]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(ConfigError) as caught:
        made(train=path, held_out=0, max_length=50)
    assert str(caught.value) == (
        f"{path}, line 4: 65 tokens with 2 of response; a row may have 50; data.too_long can "
        "drop, truncate-prompt or truncate-history"
    )
    dropped = made(train=path, held_out=0, max_length=50, too_long="drop")
    assert dropped.report.dropped == {"too long": 1}
    cut = made(train=path, held_out=0, max_length=50, too_long="truncate-prompt")
    assert (len(cut.train), cut.report.truncated) == (4, {"prompt": 1})
    assert max(len(example.ids) for example in cut.train) == 50
    lost = made(train=path, held_out=0, max_length=50, too_long="truncate-history")
    assert lost.report.dropped == {"too long": 1}
    with pytest.raises(ConfigError, match=r"max_length is 300; the model's window has 200"):
        made(train=path, max_length=300)
    # The model's window bounds a row when nothing else does.
    with pytest.raises(ConfigError, match="a row may have 40"):
        made(window=40, train=path)


def test_clusters_are_held_out_by_name(tmp_path):
    a = write(tmp_path / "a.jsonl", [{**row, "task": "nli"} for row in pairs(4)])
    mixed = [{**row, "task": ("nli", "qa")[n % 2]} for n, row in enumerate(pairs(6, 10))]
    b = write(tmp_path / "b.jsonl", mixed)
    c = write(tmp_path / "c.jsonl", [*pairs(5, 20), *pairs(1, 2)])
    sources = [
        {"path": a, "cluster": "nli"},
        {"path": b, "columns": {"cluster": "task"}},
        {"path": c, "cluster": "sentiment"},
    ]
    everything = made(train=sources, held_out=0)
    assert everything.report.clusters == {"nli": 7, "qa": 3, "sentiment": 6}
    assert len(everything.train) == 16
    held = made(train=sources, held_out=0, held_out_clusters=["nli", "qa"])
    assert {name: len(each) for name, each in held.held_out.items()} == {"nli": 7, "qa": 3}
    # The row of the third file that is also one of the first is not learned.
    assert (len(held.train), held.report.dropped) == (5, {"also held out": 1})
    with pytest.raises(ConfigError) as caught:
        made(train=sources, held_out=0, held_out_clusters=["nlli"])
    assert str(caught.value) == (
        "data.held_out_clusters: no row belongs to a cluster 'nlli'; did you mean 'nli'?; "
        "there are 'nli', 'qa', 'sentiment'"
    )


def test_phrasings_take_turns_over_the_passes(tmp_path):
    templates = tmp_path / "t.toml"
    templates.write_text(
        'cluster = "topic"\n'
        + "".join(
            f'[[templates]]\nprompt = "v{n} {{text}}"\nresponse = "{{label}}"\n' for n in range(3)
        )
    )
    rows = [{"text": f"text {n}", "label": "yes"} for n in range(20)]
    source = {"path": write(tmp_path / "a.jsonl", rows), "template": str(templates)}
    once = made(train=source, held_out=0)
    assert len(set(texts(once.train))) == 20
    (table,) = once.report.tables
    assert table.layout == f"3 instruction templates of {templates}"
    assert once.report.clusters == {"topic": 20}
    thrice = made(train={**source, "weight": 3}, held_out=0)
    assert len(set(texts(thrice.train))) == 60
    assert len(set(keys(thrice.train))) == 20
    # The held-out rows are the same whatever the weight, each in one phrasing.
    one, three = (made(train={**source, "weight": w}, held_out=0.3) for w in (1, 3))
    assert keys(one.held_out[HELD_OUT]) == keys(three.held_out[HELD_OUT])
    assert len(three.train) == 3 * len(one.train)


def test_a_long_text_is_split_between_training_and_measuring(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(" ".join(f"w{n}" for n in range(4000)))
    prepared = made(train=str(path), held_out=0.2, max_length=50)
    windows = prepared.train + prepared.held_out[HELD_OUT]
    assert len(windows) == 81
    assert 5 < len(prepared.held_out[HELD_OUT]) < 30
    assert sum(len(window.ids) for window in windows) == 4001
    assert (prepared.report.kept, prepared.report.truncated) == (1, {"windows": 1})


def test_digests_change_with_the_tokens_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = pairs(5)

    def digests(**data):
        return list(made(train=str(path), held_out=0, **data).report.hashes.values())

    write(path, rows)
    first = digests()
    write(path, [{**row, "id": n} for n, row in enumerate(rows)])
    assert digests() == first
    write(path, [*rows[:-1], {**rows[-1], "completion": "other"}])
    assert digests() != first
    two = write(tmp_path / "b.jsonl", rows)
    twice = [{"path": two}, {"path": two, "weight": 2}]
    assert list(made(train=twice, held_out=0).report.hashes) == [two]


def test_nothing_left_says_why(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": "a", "completion": ""}] * 2 + [{"prompt": "b"}])
    with pytest.raises(ConfigError) as caught:
        made(train=path, bad_rows="drop")
    assert str(caught.value) == (
        "data.train: no row is left to train on: 0 held out, 2 dropped for 'empty completion', "
        "1 dropped for 'no completion'"
    )
    empty = write(tmp_path / "b.jsonl", [])
    with pytest.raises(ConfigError, match="no row is left to train on: 0 held out"):
        made(train=empty)


def test_columns_name_fields_of_layouts(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"Q": "a", "A": "b"}])
    columns = {"prompt": "Q", "completion": "A"}
    assert len(made(train={"path": path, "columns": columns}, held_out=0).train) == 1
    with pytest.raises(ConfigError, match="columns names 'promt', which no layout has; did you"):
        made(train={"path": path, "columns": {"promt": "Q", "completion": "A"}})


@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.5, 3.0]), min_size=3, max_size=3),
    share=st.sampled_from([0.0, 0.3, 0.6]),
    seed=st.integers(0, 5),
)
def test_nothing_measured_is_learned_and_every_row_is_counted(
    tmp_path_factory, counts, weights, share, seed
):
    folder = tmp_path_factory.mktemp("mixture")
    # Files that overlap, so that the same row comes with several weights.
    sources = [
        {"path": write(folder / f"{n}.jsonl", pairs(count, n * 4)), "weight": weights[n]}
        for n, count in enumerate(counts)
    ]
    try:
        prepared = made(train=sources, held_out=share, seed=seed)
    except ConfigError as error:
        assert "no row is left" in str(error)  # noqa: PT017
        return
    measured = prepared.held_out.get(HELD_OUT, [])
    assert not set(keys(measured)) & set(keys(prepared.train))
    assert all((e.spans == Span.RESPONSE).any() for e in prepared.train + measured)


def test_the_template_of_a_run(tmp_path):
    def chosen(name):
        data = Data.model_validate({"train": "x", "template": name})
        return choose_template(data, ModelFiles.read(tmp_path), ["<|im_end|>"]).name

    (tmp_path / "config.json").write_text("{}")
    assert chosen("alpaca") == "alpaca"
    with pytest.raises(ConfigError, match="this model has no dialogue template"):
        chosen("")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}<|im_end|>")
    assert chosen("") == chosen("own") == "own"
    assert chosen("alpaca") == "alpaca"
    save_template(ALPACA, tmp_path)
    assert chosen("") == "alpaca"
    with pytest.raises(ConfigError, match="there are plain, alpaca, chat; did you mean 'alpaca'"):
        chosen("alpacca")
    (tmp_path / "chatapp_template.json").write_text("{")
    with pytest.raises(ConfigError, match="is not valid JSON"):
        chosen("")


def test_an_empty_file_and_a_misspelt_path_are_named(tmp_path):
    (tmp_path / "rows.json").write_text("")
    with pytest.raises(ConfigError, match=r"no row is left .*rows\.json holds no row"):
        made(train=str(tmp_path / "rows.json"))
    (tmp_path / "instructions").mkdir()
    with pytest.raises(ConfigError, match=r"no such file or folder; did you mean 'instructions'"):
        made(train=str(tmp_path / "instrctions"))
