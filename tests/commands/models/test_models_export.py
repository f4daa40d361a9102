"""`chatapp models export`, and chatting with the file that it writes."""

import json
from pathlib import Path

import pytest
from tiny import write_tiny_gpt2

from chatapp.models.resolving import has_bundled
from chatapp.prompting.template import CHAT, save_template


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = write_tiny_gpt2(tmp_path / "tiny", context=64)
    save_template(CHAT, folder)
    return folder


def test_an_exported_run_is_the_same_model(
    run, capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tiny.gguf"
    capsys.readouterr()  # of what wrote the model
    status, printed, err = run("models", "export", str(model), str(out), "--type", "f32")
    assert (status, printed) == (0, "")
    assert err == f"chatapp: wrote {out}, {out.stat().st_size / 1e6:,.1f} MB\n"
    question = ("ask", "hi", "--temperature", "0", "--max-tokens", "9", "--json")
    answers = [json.loads(run(*question, "--model", str(each)).out) for each in (model, out)]
    assert answers[0]["reply"] == answers[1]["reply"] != ""
    assert answers[1]["template"] == "chat"
    info = json.loads(run("models", "info", str(out), "--json").out)
    expected = json.loads(run("models", "info", str(model), "--json").out)
    for key in ("parameters", "layers", "heads", "vocabulary", "context", "template", "dtype"):
        assert info[key] == expected[key], key
    assert info["bytes"] == out.stat().st_size


def test_a_file_is_replaced_only_when_asked_for(run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny.gguf"
    out.write_text("mine")
    status, _, err = run("models", "export", str(model), str(out))
    assert (status, err) == (2, f"chatapp: {out}: this file already exists; --force replaces it\n")
    assert out.read_text() == "mine"
    assert run("models", "export", str(model), str(out), "--force").status == 0
    assert out.read_bytes().startswith(b"GGUF")


def test_what_cannot_be_exported_is_told(run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny.gguf"
    assert run("models", "export", str(model), str(out)).status == 0
    for arguments, words in (
        ((str(out), str(tmp_path / "b.gguf")), f"{out}: is a GGUF file already"),
        ((str(tmp_path / "none.gguf"), "b.gguf"), "none.gguf: there is no such file"),
        ((str(model), str(model), "--force"), f"{model}: is a folder; expected the name of a file"),
        ((str(model), str(out / "b.gguf")), "b.gguf: cannot be written: "),
    ):
        status, printed, err = run("models", "export", *arguments)
        assert (status, printed) == (2, "")
        assert words in err
        assert err.count("\n") == 1


@pytest.mark.skipif(not has_bundled(), reason="this copy carries no bundled model")
def test_the_bundled_model_can_be_exported(run, tmp_path: Path) -> None:
    out = tmp_path / "bundled.gguf"
    assert run("models", "export", "bundled", str(out)).status == 0
    question = ("ask", "Hello, who are you?", "--temperature", "0", "--json")
    own, again = (json.loads(run(*question, "--model", name).out) for name in ("bundled", str(out)))
    for key in ("reply", "template", "prompt_tokens", "reply_tokens"):
        assert again[key] == own[key]


def test_models_list_knows_a_folder_with_a_file(run, model: Path, home: Path) -> None:
    kept = home / "data" / "models" / "mine"
    out = kept / "tiny.gguf"
    assert run("models", "export", str(model), str(out)).status == 0
    rows = json.loads(run("models", "list", "--json").out)
    row = next(row for row in rows if row["name"] == "mine")
    assert row["dtype"] == "F16"
