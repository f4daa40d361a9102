"""Models that bring a chat template are trained, sampled, checked and chatted with in it."""

import json

import pytest
import tiny_finetune as tiny
from rich.console import Console

from chatapp.dialogue.events import Options
from chatapp.dialogue.turn import answer
from chatapp.dialogue.writers.choosing import choose_template, writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.model import Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.chat_template import ChatTemplate
from finetune.config.sections import ConfigError
from finetune.data.encoding import Span
from finetune.evaluation import evaluate
from finetune.run import resume, train
from finetune.sharing import merge
from finetune.training.setup import set_up_run

QUIET = Console(stderr=True, quiet=True)


def config(folder, **sections):
    if not (folder / "base").exists():
        tiny.chatml_base(folder / "base")
        tiny.pairs(folder / "rows.json")
    return tiny.config(folder, **sections)


def reply(folder):
    """What a model says to a question of the rows, in the template chosen for it."""
    model = load_model(str(folder))
    template = choose_template(model, "")
    assert isinstance(template, ChatTemplate)
    greedy = Sampling(temperature=0.0, max_tokens=24)
    return "".join(
        event.text for event in answer(model, template, "What comes after 7?", Options(greedy))
    )


@pytest.mark.parametrize("method", ["full", "lora", "dora"])
def test_a_run_is_chatted_with_in_the_template_of_its_base(tmp_path, method):
    rate = 0.01 if method == "full" else 0.05
    settings = config(tmp_path, train={"method": method, "learning_rate": rate, "epochs": 10})
    before = reply(tmp_path / "base")
    run = train(settings, QUIET)
    template = choose_template(load_model(str(tmp_path / "base")), "")
    saved = json.loads((run / "chatapp_template.json").read_text())
    assert saved == {"name": "own", "fingerprint": template.fingerprint}
    assert json.loads((run / "run.json").read_text())["template"] == saved
    assert choose_template(load_model(str(run)), "").fingerprint == template.fingerprint
    assert " after." in reply(run)
    assert " after." not in before
    if method == "full":
        return
    merge(str(run), tmp_path / "merged")
    assert json.loads((tmp_path / "merged" / "chatapp_template.json").read_text()) == saved
    assert reply(tmp_path / "merged") == reply(run)


def test_another_template_than_the_one_trained_in_is_refused(tmp_path):
    run = train(config(tmp_path, train={"epochs": 0.3}), QUIET)
    model = load_model(str(run))
    with pytest.raises(
        ValueError, match=r"template 'own' and does not understand the template 'alpaca'"
    ):
        choose_template(model, "alpaca")
    (run / "chat_template.jinja").write_text(tiny.CHATML.replace("good", "bad"))
    with pytest.raises(ValueError, match=r"but .*chat_template.jinja has a different one now;"):
        choose_template(model, "")
    with pytest.raises(ConfigError, match="chat template, but"):
        train(config(tmp_path, model=str(run), output=str(tmp_path / "second")), QUIET)
    (run / "chat_template.jinja").unlink()
    names = json.loads((run / "tokenizer_config.json").read_text())
    del names["chat_template"]
    (run / "tokenizer_config.json").write_text(json.dumps(names))
    with pytest.raises(ValueError, match="but there is none now"):
        choose_template(load_model(str(run)), "")


def test_a_template_that_is_named_wins_over_the_models_own(tmp_path):
    run = train(config(tmp_path, data={"template": "alpaca"}, train={"epochs": 0.3}), QUIET)
    assert choose_template(load_model(str(run)), "").name == "alpaca"


def test_a_run_is_gone_on_with_and_measured_in_it(tmp_path):
    run = train(config(tmp_path, train={"epochs": 1}), QUIET)
    resume(run, ["train.epochs=2"], QUIET)
    found = evaluate(str(run), str(run), "", 2, 8, lambda *_: None)
    result = json.loads((run / "result.json").read_text())
    assert found.template == "own"
    assert found.sets["held_out"].figures["loss"] == pytest.approx(result["eval_loss"], rel=1e-5)


def test_before_a_reply_stand_the_ids_that_a_chat_prompts_with(tmp_path):
    setup = set_up_run(config(tmp_path, data={"held_out": 0.0}))
    model = load_model(str(tmp_path / "base"))
    writer = writer_for(model, choose_template(model, ""))
    rows = json.loads((tmp_path / "rows.json").read_text())
    end = model.tokenizer.special["<|im_end|>"]
    for row, example in zip(rows, setup.data.train.examples, strict=True):
        response = example.spans == Span.RESPONSE
        prompt = writer.write(None, [Exchange(row["instruction"])], max_tokens=1).ids
        assert tuple(example.ids[~response]) == prompt
        reply = [*model.tokenizer.encode(row["output"]), end, *model.tokenizer.encode("\n")]
        assert example.ids[response].tolist() == reply
