"""What a model's makers say: ends of every form, values of every kind, and nonsense."""

import json
from dataclasses import replace

import pytest
from random_models import END

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.errors import ModelError
from chatapp.engine.exporting import write_gguf
from chatapp.engine.files.model_files import GenerationConfig, ModelFiles, read_generation_config
from chatapp.engine.model import NO_TOKEN, Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import find_model

WORDS = "names no token that ends a text; a reply ends where its template stops it"


def files(path, says):
    """A model whose generation_config.json says this; a string stands there unchanged."""
    (path / "config.json").write_text("{}")
    text = says if isinstance(says, str) else json.dumps(says)
    (path / "generation_config.json").write_text(text)
    return ModelFiles.read(path)


@pytest.mark.parametrize(
    ("value", "ends"), [(7, {7}), ([7, 9, 7], {7, 9}), (None, set()), ([], set())]
)
def test_ends_are_a_number_or_a_list(tmp_path, value, ends):
    read = read_generation_config(files(tmp_path, {"eos_token_id": value}))
    assert (read.ends, read.ignored) == (ends, ())


def test_the_configuration_names_the_ends_where_there_is_no_such_file(tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": [3, 4]}')
    assert read_generation_config(ModelFiles.read(tmp_path)).ends == {3, 4}
    assert read_generation_config(None) == GenerationConfig()


def test_an_end_that_is_not_the_tokenizers_ends_a_reply(make_gpt2):
    path, _ = make_gpt2(seed=3)
    greedy = Sampling(temperature=0.0, max_tokens=6, max_repeats=0)
    before = LocalModel.load(ModelFiles.read(path))
    *drawn, _ = before.generate(Request([5, 6, 7], greedy))
    end = drawn[2].id
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    model = load_model(str(path))
    assert model.end_ids == {0, end}
    *shorter, finished = model.generate(Request([5, 6, 7], greedy))
    assert (finished.reason, len(shorter)) == ("stop", [each.id for each in drawn].index(end))


def without_end(folder):
    """A random model of a folder, whose tokenizer and configuration name no end."""
    names = {"tokenizer.json": END, "config.json": "eos_token_id"}
    for name, end in names.items():
        file = folder / name
        file.write_text(file.read_text().replace(end, end.replace("e", "E")))
    (folder / "generation_config.json").unlink()
    return folder


@pytest.mark.parametrize("ends", [None, 0, [0, 9]])
def test_a_model_whose_tokenizer_names_no_end_loads_and_says_what_ends_a_reply(make_gpt2, ends):
    folder = without_end(make_gpt2()[0])
    if ends is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    said = []
    model = load_model(str(folder), say=said.append)
    assert model.end_ids == set(ends if isinstance(ends, list) else [0] if ends == 0 else [])
    assert [WORDS in sentence for sentence in said] == [True] * (ends is None)
    likely = Request([5, 6], Sampling(temperature=0.0, max_tokens=5, max_repeats=0), bias={0: 99.0})
    *_, finished = model.generate(likely)
    assert finished.reason == ("length" if ends is None else "stop")
    *tokens, finished = model.generate(replace(likely, constraint=Constraint("pattern", "ab?")))
    assert ("".join(token.text for token in tokens), finished.reason) == ("a", "stop")
    *tokens, finished = model.generate(replace(likely, forced=(7, 8, NO_TOKEN)))
    assert ([token.id for token in tokens], finished.reason) == ([7, 8], "stop")
    files, out = find_model(str(folder)), folder / "a.gguf"
    if ends is None:
        with pytest.raises(ModelError, match="names no end-of-text token"):
            write_gguf(files, out, "f32", {}, lambda done, total: None)
        return
    write_gguf(files, out, "f32", {}, lambda done, total: None)
    assert load_model(str(out)).end_ids == model.end_ids


def test_the_values_of_our_parameters_are_taken(tmp_path):
    says = {
        "do_sample": True,
        "temperature": 1,
        "top_p": 0.95,
        "top_k": 64,
        "repetition_penalty": 1.05,
        "no_repeat_ngram_size": 3,
        "max_new_tokens": 99,
        "num_beams": 4,
        "min_p": None,
        "typical_p": "x",
    }
    read = read_generation_config(files(tmp_path, says))
    assert read.ignored == ()
    assert read.sampling == {
        "temperature": 1.0,
        "top_p": 0.95,
        "top_k": 64,
        "repetition_penalty": 1.05,
        "no_repeat_ngram": 3,
        "max_tokens": 99,
    }


def test_what_is_not_sampled_is_greedy(tmp_path):
    says = {"do_sample": False, "temperature": 0.6}
    assert read_generation_config(files(tmp_path, says)).sampling == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ({"top_p": 1.5}, r"expected above 0 and at most 1 \(off\); the value is ignored"),
        ({"temperature": "hot"}, "temperature is 'hot'; expected a number"),
        ({"top_k": True}, "top_k is True; expected a whole number"),
        ({"top_k": [1]}, r"top_k is \[1\]; expected a whole number"),
        ({"eos_token_id": "</s>"}, "eos_token_id is the string '</s>'; expected a token's id"),
        ({"eos_token_id": [1, None]}, "eos_token_id is a list; expected a token's id, or a list"),
        ("[1]", "expected a JSON object, found a list; the file is ignored"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"temperature": NaN}', "temperature is nan"),
        ('{"temperature": 1e999}', "temperature is inf"),
    ],
)
def test_what_is_wrong_is_left_out_and_said(tmp_path, says, words):
    read = read_generation_config(files(tmp_path, says))
    assert read.sampling == {}
    (sentence,) = read.ignored
    assert sentence.startswith(str(tmp_path / "generation_config.json"))
    with pytest.raises(ValueError, match=words):
        raise ValueError(sentence)


@pytest.mark.parametrize("says", ["{", '{"temperature": "hot", "eos_token_id": "x"}'])
def test_a_bad_file_does_not_keep_a_model_from_loading(make_gpt2, says):
    path, _ = make_gpt2()
    (path / "generation_config.json").write_text(says)
    assert load_model(str(path)).end_ids == {0}
