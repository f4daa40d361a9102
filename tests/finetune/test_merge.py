"""`finetune merge`: an adapter and its base as one whole model, which answers as they do."""

import json

import pytest
import tiny_finetune as tiny
import torch
from full_disk import full_after
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from chatapp.engine.backends.transformers_loading import load_causal
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.template import CHAT, load_template
from finetune import predict
from finetune.config.sections import ConfigError
from finetune.evaluation import evaluate
from finetune.run import train
from finetune.sharing import merge

QUIET = Console(stderr=True, quiet=True)
IDS = torch.arange(12)[None] % tiny.VOCABULARY


@pytest.mark.parametrize("method", ["lora", "dora", "rslora"])
def test_a_trained_adapter_is_chatted_with_and_merged(tmp_path, method):
    config = tiny.config(tmp_path, train={"method": method, "learning_rate": 0.05})
    run = train(config, QUIET)
    assert not (run / "config.json").exists()
    settings = json.loads((run / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(tmp_path / "base")
    assert load_template(run) == CHAT
    size = (run / "adapter_model.safetensors").stat().st_size
    assert size < (tmp_path / "base" / "model.safetensors").stat().st_size

    merge(str(run), tmp_path / "merged")
    assert load_template(tmp_path / "merged") == CHAT
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    logits, before = (each(input_ids=IDS).logits for each in (whole, base))
    assert (logits - before).abs().max() > 0.1
    torch.testing.assert_close(load_causal(ModelFiles.read(run))(input_ids=IDS).logits, logits)
    # The engine's own decoder on the merged model, transformers on the adapter.
    greedy = Sampling(temperature=0.0, max_tokens=12)
    adapter, merged = load_model(str(run)), load_model(str(tmp_path / "merged"))
    prompt = adapter.tokenizer.encode("User: What comes after 7?\nAssistant:")
    replies = [
        [event.text for event in m.generate(Request(prompt, greedy))] for m in (adapter, merged)
    ]
    assert replies[0] == replies[1]
    scores = [m.score([(prompt, prompt)])[0] for m in (adapter, merged)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_merge_refuses_what_it_cannot_do(tmp_path):
    run = train(tiny.config(tmp_path, train={"method": "lora", "epochs": 0.3}), QUIET)
    with pytest.raises(ConfigError, match="whole model already"):
        merge(str(tmp_path / "base"), tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="exists already"):
        merge(str(run), tmp_path / "out")
    with full_after(20_000), pytest.raises(Exception, match=r"File too large|os error 27"):
        merge(str(run), tmp_path / "whole")
    assert not list((tmp_path / "whole").iterdir())
    merge(str(run), tmp_path / "whole")


def test_a_merged_run_keeps_its_head(tmp_path):
    rows = tmp_path / "labelled.jsonl"
    lines = [{"text": f"text {n}", "label": ("yes", "no")[n % 2]} for n in range(20)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = tiny.config(
        tmp_path,
        head={"task": "classification"},
        data={"train": str(rows)},
        train={"method": "lora", "epochs": 0.5},
    )
    run = train(config, QUIET)
    merge(str(run), tmp_path / "merged")

    def measured(model):
        found = evaluate(str(model), str(model), str(rows), 0, 8, lambda *_: None)
        return found.sets["labelled.jsonl"].figures

    assert measured(tmp_path / "merged") == pytest.approx(measured(run), rel=1e-5)
    (first,), (second,) = (predict(folder, ["text 7"]) for folder in (run, tmp_path / "merged"))
    assert first["output"] == second["output"]
    assert first["label_probabilities"] == pytest.approx(second["label_probabilities"], rel=1e-4)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
def test_a_merged_run_is_stored_as_its_base(tmp_path, stored):
    config = tiny.config(tmp_path, train={"method": "lora", "epochs": 0.3})
    AutoModelForCausalLM.from_pretrained(tmp_path / "base").to(stored).save_pretrained(
        tmp_path / "base"
    )
    merge(str(train(config, QUIET)), tmp_path / "merged")
    weights = load_file(tmp_path / "merged" / "model.safetensors").values()
    assert {weight.dtype for weight in weights} == {stored}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "merged").dtype == stored
