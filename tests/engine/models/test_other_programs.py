"""GGUF files of Ollama and LM Studio, by names that stay whatever else lies there."""

import json
from pathlib import Path

import pytest

from chatapp.engine.errors import ModelError
from chatapp.engine.models import resolving
from chatapp.engine.models.resolving import (
    file_of_other_program,
    files_of_other_programs,
    local_models,
    model_folder,
)


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch):
    """A user's home without any model."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr(resolving, "_SERVICE_MODELS", tmp_path / "service")
    return tmp_path


def pulled(models, manifest, digit="a", **layer):
    """Have a model as Ollama keeps one; returns the file of its weights."""
    digest = digit * 64
    blob = models / "blobs" / f"sha256-{digest}"
    path = models / "manifests" / manifest
    for file in (blob, path):
        file.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(b"GGUF")
    weights = {
        "mediaType": "application/vnd.ollama.image.model",
        "digest": f"sha256:{digest}",
        **layer,
    }
    template = {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:0"}
    path.write_text(json.dumps({"schemaVersion": 2, "layers": [template, weights]}))
    return blob


def test_models_of_ollama(user):
    models = user / ".ollama" / "models"
    library = "registry.ollama.ai/library"
    latest = pulled(models, f"{library}/smollm2/latest", "a")
    small = pulled(models, f"{library}/smollm2/135m", "b")
    own = pulled(models, "registry.ollama.ai/me/mine/v1", "c")
    hub = pulled(models, "hf.co/org/tiny-GGUF/Q4_K_M", "d")
    assert files_of_other_programs() == {
        "ollama:smollm2": latest,
        "ollama:smollm2:135m": small,
        "ollama:me/mine:v1": own,
        "ollama:hf.co/org/tiny-GGUF:Q4_K_M": hub,
    }
    assert file_of_other_program("ollama:smollm2:latest") == latest
    assert model_folder("ollama:smollm2:135m") == small
    with pytest.raises(ModelError, match=r"did you mean 'ollama:smollm2:135m'\?"):
        model_folder("ollama:smollm2:153m")


def test_where_ollama_keeps_them(user, tmp_path, monkeypatch):
    pulled(user / ".ollama" / "models", "registry.ollama.ai/library/a/latest")
    pulled(user / "service", "registry.ollama.ai/library/c/latest")
    assert list(files_of_other_programs()) == ["ollama:a", "ollama:c"]
    pulled(tmp_path / "disk", "registry.ollama.ai/library/b/latest")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "disk"))
    assert list(files_of_other_programs()) == ["ollama:b"]


@pytest.mark.parametrize(
    "manifest",
    [
        "oops",
        "[]",
        "{}",
        '{"layers": 3}',
        '{"layers": [{}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 3}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:.."}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.tensor", "digest": "sha256:0"}]}',
        "[" * 100_000,
        "\ud800",
    ],
)
def test_a_broken_manifest_is_left_out(user, manifest):
    models = user / ".ollama" / "models"
    whole = pulled(models, "registry.ollama.ai/library/whole/latest")
    broken = models / "manifests/registry.ollama.ai/library/broken/latest"
    broken.parent.mkdir()
    broken.write_bytes(manifest.encode("utf-8", "surrogatepass"))
    pulled(models, "registry.ollama.ai/library/gone/latest", "e").unlink()
    assert files_of_other_programs() == {"ollama:whole": whole}


def test_files_of_lm_studio(user):
    new, old = user / ".lmstudio" / "models", user / ".cache" / "lm-studio" / "models"
    files = [
        new / "pub" / "repo" / "tiny.Q4_1.gguf",
        new / "pub" / "repo" / "mmproj-tiny.gguf",
        new / "pub" / "repo" / "large-00001-of-00002.gguf",
        new / "pub" / "repo" / "large-00002-of-00002.gguf",
        new / "pub" / "repo" / "notes.txt",
        old / "pub" / "other" / "tiny.Q4_1.gguf",
        old / "pub" / "other" / "second.gguf",
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert files_of_other_programs() == {
        "lmstudio:tiny.Q4_1": files[0],
        "lmstudio:large": files[2],
        "lmstudio:pub/other/tiny.Q4_1": files[5],
        "lmstudio:second": files[6],
    }
    assert model_folder("lmstudio:second") == files[6]
    assert "lmstudio:second" in local_models()
