"""Every view of the table: in a terminal of three widths, as JSON, page, picture and notebook, and
with its key in F3. A view that is forgotten in one of these places fails here.
"""

import json
from xml.etree import ElementTree

import pytest
from inspector_driver import SETTINGS, words
from random_models import save_random
from ranges import check_ranges
from seq2seq_models import write_seq2seq
from tiny import write_tiny_gpt2
from typer.testing import CliRunner

from chatapp.cli import app
from chatapp.engine.model import Sampling
from chatapp.engine.models.loading import load_model
from chatapp.lab.view import Subject
from chatapp.lab.views import VIEWS
from chatapp.tui.inspector.view import CloseUpView

TEXT = "The quick [b]fox[/b]"
BEFORE = {"ablate": "all", "texts": "1.0", "neighbours": "x", "state": "1", "weight": "1.0"}
BEFORE |= {"neurons": "0.mlp"}
AFTER = {"patch": ["--noise", "1"], "positions": ["--with", TEXT[::-1]]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, bpe):
    """A model for each view: most views are of GPT-2."""
    folder = tmp_path_factory.mktemp("models")
    gpt2 = str(write_tiny_gpt2(folder / "gpt2", context=256))
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    for name in ("mixtral", "t5"):
        (folder / name).mkdir()
    save_random(folder / "mixtral", "mixtral", bpe, **sizes, **heads)
    write_seq2seq("t5", folder / "t5")
    others = {"experts": str(folder / "mixtral"), "cross_attention": str(folder / "t5")}
    return dict.fromkeys(VIEWS, gpt2) | others


def arguments(name, folder):
    """A command line that shows a view."""
    view = VIEWS[name]
    text = [TEXT] if view.takes_text == "always" else []
    given = [BEFORE[name]] if name in BEFORE else []
    more = list(AFTER.get(name, []))
    if name == "circuit":  # which of the two is likelier depends on the model
        model = load_model(folder)
        logits = model.logits(model.tokenizer.encode(TEXT))
        order = sorted("abcdefgh", key=lambda c: float(logits[model.tokenizer.encode(c)[0]]))
        more = ["--answer", order[-1], "--against", order[0]]
    return ["inspect", name, *given, *text, *more, "--model", folder]


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "prompt"])
def test_its_command(name, folders, tmp_path, monkeypatch):
    view, command = VIEWS[name], arguments(name, folders[name])
    help = " ".join(CliRunner().invoke(app, ["inspect", name, "--help"]).output.split())
    assert view.summary in help
    assert view.formula in help
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert document[name]
    check_ranges(document)
    for width in (60, 100, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(view.title)
        assert max(map(len, result.stdout.splitlines())) <= width
        assert "\x1b" not in result.stdout
    for file in (tmp_path / "view.html", tmp_path / "view.svg"):
        assert CliRunner().invoke(app, [*command, "--output", str(file)]).exit_code == 0
        assert view.title in file.read_text("utf-8")
    ElementTree.parse(tmp_path / "view.svg")


def test_a_notebook_shows_it(folders):
    model = load_model(folders["tokens"])
    ids = tuple(model.tokenizer.encode(TEXT))
    subject = Subject(model, ids, len(ids) - 1, cell=(1, 0), sampling=Sampling())
    for name in set(VIEWS) - {"experts", "cross_attention", "patch", "positions", "circuit"}:
        view = VIEWS[name].look(subject, VIEWS[name].here(subject))
        assert view.reading
        assert "<script" not in view._repr_html_()
        ElementTree.fromstring(view._repr_html_())


@pytest.mark.parametrize("name", [view.name for view in VIEWS.values() if view.key])
async def test_its_close_up(name, folders, open_app):
    view = VIEWS[name]
    async with open_app(load_model(folders[name]), settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "4", "tab", "up", view.key)
        (shown,) = driver.chat.query_one(CloseUpView).views()
        assert shown.name == name
        assert view.title in driver.sentences
        assert words(driver, "inspector-formula").startswith(view.formula)


def test_keys_and_names_are_unlike():
    keys = [view.key for view in VIEWS.values() if view.key]
    assert len(set(keys)) == len(keys)
    for view in VIEWS.values():
        assert view.title
        assert view.summary.startswith(("Show", "Find", "Compare"))
        assert len(view.formula) > 40, "the formula, and its source"
