"""A server that runs is used instead of loading its model, where that is the same model."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from api_server import TOKEN, serving
from completions_server import CompletionsServer, closed_port

from chatapp.common.paths import background_path
from chatapp.engine.backends.background import Address, BackgroundModel
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder.interventions import Part, switched_off
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import ContextOverflow, LanguageModel, Request, Sampling
from chatapp.engine.models import background
from chatapp.engine.models.loading import load_model
from chatapp.lab.inspectable import inspectable

SAMPLING = Sampling(temperature=0.9, top_p=0.95, seed=3, max_tokens=9)


@pytest.fixture(scope="module")
def local(tiny_folder: Path) -> LanguageModel:
    return load_model(str(tiny_folder))


@pytest.fixture
def noted(
    address: str, local: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> background.Background:
    """The server at `address` as this user's; its name for the model is "tiny"."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    parts = urlsplit(address)
    served = background.describe(str(local.files.path), local, ("auto", "cpu"), {})  # type: ignore[union-attr]
    at = Address(str(parts.hostname), int(parts.port or 0), TOKEN)
    server = background.Background(os.getpid(), at, (replace(served, name="tiny"),))
    background.note(server)
    return server


@pytest.fixture
def model(noted: background.Background, tiny_folder: Path) -> LanguageModel:
    model = background.load_served(str(tiny_folder), "float32", "cpu")
    assert isinstance(model, BackgroundModel)
    return model


def test_its_replies_are_the_models(model: LanguageModel, local: LanguageModel) -> None:
    ids = model.tokenizer.encode("To be")
    requests = [Request(ids, replace(SAMPLING, seed=n), top=2) for n in range(3)]
    for request in requests:
        *tokens, end = model.generate(request)
        *expected, expected_end = local.generate(request)
        assert len(tokens) == len(expected) > 1
        for token, other in zip(tokens, expected, strict=True):
            assert isinstance(token, Token)
            assert isinstance(other, Token)
            assert (token.id, token.text, token.piece) == (other.id, other.text, other.piece)
            assert token.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert len(token.alternatives) == 2
        assert isinstance(end, Finished)
        assert isinstance(expected_end, Finished)
        assert (end.reason, end.reply_tokens) == (expected_end.reason, expected_end.reply_tokens)
    ends = [event for _, event in model.generate_many(requests) if isinstance(event, Finished)]
    assert [end.reason for end in ends] == ["length"] * 3


def test_its_scores_are_the_models(model: LanguageModel, local: LanguageModel) -> None:
    ids = local.tokenizer.encode("To be or not to be")
    pairs = [(ids[:n], ids[n:]) for n in range(1, 5)]
    for own, expected in zip(model.score(pairs), local.score(pairs), strict=True):
        assert own == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ContextOverflow):
        model.score([(ids * 99, ids)])
    with pytest.raises(ContextOverflow):
        model.generate(Request(ids * 99, SAMPLING))


def test_the_microscope_and_changes_load_the_model(
    model: LanguageModel, local: LanguageModel
) -> None:
    ids = local.tokenizer.encode("To be")
    changed = replace(Request(ids, SAMPLING), interventions=switched_off([Part(0, is_mlp=True)]))
    texts = ["".join(event.text for event in one.generate(changed)) for one in (model, local)]
    assert texts[0] == texts[1]
    view, expected = inspectable(model), inspectable(local)
    assert view is not None
    assert expected is not None
    assert type(view.inspect(ids)) is type(expected.inspect(ids))
    assert isinstance(model, BackgroundModel)
    assert isinstance(model.here, LocalModel)


def test_another_model_is_not_used(
    noted: background.Background, tiny_folder: Path, tmp_path: Path
) -> None:
    name = str(tiny_folder)
    assert background.find(name, "auto", "cpu") is not None
    assert background.find(os.path.relpath(name), "float32", "cpu") is not None
    assert background.find(name, "int8", "cpu") is None
    assert background.find(name, "auto", "auto") is None
    assert background.find("bundled", "auto", "cpu") is None
    assert background.find(str(tmp_path), "auto", "cpu") is None
    (served,) = noted.models
    files = dict(served.files)
    path, (size, time) = next(iter(files.items()))
    files[path] = (size, time - 1)  # trained again since
    background.note(replace(noted, models=(replace(served, files=files),)))
    assert background.find(name, "auto", "cpu") is None


def test_only_the_server_of_this_user_is_used(noted: background.Background) -> None:
    assert background.running() == noted
    assert os.name == "nt" or background_path().stat().st_mode & 0o777 == 0o600
    for address in (
        replace(noted.address, token="another"),
        replace(noted.address, port=closed_port()),
    ):
        background.note(replace(noted, address=address))
        assert background.running() is None
    with CompletionsServer().running() as other:  # another program at that port
        port = int(urlsplit(other.url).port or 0)
        background.note(replace(noted, address=replace(noted.address, port=port)))
        assert background.running() is None
    wrong = ("", "[]", "{}", '{"pid": 1, "address": 2, "models": 3}', "[" * 100_000, "\udcff")
    for nonsense in wrong:
        background_path().write_text(nonsense, errors="surrogateescape")
        assert background.running() is None
        background.forget(os.getpid())
    if hasattr(os, "mkfifo"):
        background_path().unlink()
        os.mkfifo(background_path())
        assert background.running() is None
    with pytest.raises(ModelError, match="API key"):
        list(replace(noted.address, token="another").request("/background/generate", {}))


def test_a_cancelled_reply_ends(model: LanguageModel) -> None:
    cancel = threading.Event()
    ids = model.tokenizer.encode("To be")
    long = replace(SAMPLING, max_tokens=200, max_repeats=0)
    events = model.generate(Request(ids, long, cancel=cancel))
    assert isinstance(next(events), Token)
    cancel.set()
    *_, end = events
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"


COMMANDS = "answers ask console loading options serving".split()
SLOW = "torch transformers datasets tokenizers numpy jinja2 jsonschema llguidance".split()
SLOW += "textual rich aiohttp httpx2 sqlite3 huggingface_hub".split()


def test_ask_imports_little(
    noted: background.Background, tiny_folder: Path, tmp_path: Path
) -> None:
    """Imports took most of the time of an answer."""
    code = (
        "import sys; from chatapp.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "print(*sys.modules, file=sys.stderr)"
    )
    options = ["--model", str(tiny_folder), "--max-tokens", "4", "--seed", "1", "--json"]
    environment = os.environ | {"CHATAPP_DEVICE": "cpu"}

    def run(*command: str) -> tuple[Any, str]:
        result = subprocess.run(
            [sys.executable, *command, "ask", "Who is it?", *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(result.stdout), result.stderr

    served, imported = run("-c", code)
    modules = imported.split()
    assert not {*SLOW} & {*modules}
    rooms = {name.split(".")[1] for name in modules if name.startswith("chatapp.")}
    assert rooms <= {"cli", "commands", "common", "dialogue", "engine"}
    commands = {name.split(".")[2] for name in modules if name.startswith("chatapp.commands.")}
    assert commands == {*COMMANDS}
    assert not {name for name in modules if name.startswith("chatapp.engine.decoder.families")}
    options.append("--no-server")
    alone, _ = run("-m", "chatapp")
    assert [served[name] for name in ("reply", "template", "prompt_tokens")] == [
        alone[name] for name in ("reply", "template", "prompt_tokens")
    ]


async def test_the_own_paths_need_the_token(local: LanguageModel) -> None:
    async with serving(local, token="secret") as client:
        for headers in ({}, {"Authorization": "Bearer no"}):
            answer = await client.post("/background/score", {"pairs": []}, headers=headers)
            assert answer["status"] == 401
        headers = {"Authorization": "Bearer secret"}
        assert await client.post("/background/score", {"pairs": []}, headers=headers) == {
            "scores": []
        }
        bad = await client.post("/background/generate", {"ids": "x"}, headers=headers)
        assert bad["status"] == 400
    async with serving(local) as client:  # that other machines can reach, perhaps
        assert (await client.post("/background/proof", {"nonce": "1"}))["status"] == 404
