"""What `models get` brings from the hub, how it goes on, and what it tells when it cannot."""

import errno
import os
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import huggingface_hub
import pytest
from filelock import FileLock
from httpx2 import ConnectError, Request, Response
from huggingface_hub import DryRunFileInfo, constants, errors

from chatapp.common.paths import fetched_path, models_dir
from chatapp.engine.errors import ModelError
from chatapp.engine.models import fetching
from chatapp.engine.models.fetching import Fetched, fetch, fetched_models, remove
from chatapp.engine.models.known_models import known_models
from chatapp.engine.models.resolving import model_folder

COMMIT = "c0ffee"


class Hub:
    """The repository org/tiny, and a cache as the hub's client keeps one.

    files: its contents by their paths.
    meanwhile: done with the bar when a file is there.
    failures: what the next downloads raise, each after one more file is there; None for nothing.
    """

    def __init__(self, cache):
        self.repository = cache / "models--org--tiny"
        self.snapshot = self.repository / "snapshots" / COMMIT
        self.files = {"config.json": b"{}", "model.safetensors": b"weights", "README.md": b"card"}
        self.card = {"license": "mit"}
        self.failures = []
        self.refusal = None
        self.asked = []
        self.meanwhile = lambda bar: bar.update(1)

    def model_info(self, name):
        self.asked.append(name)
        if self.refusal is not None:
            raise self.refusal
        return SimpleNamespace(card_data=self.card)

    def snapshot_download(
        self,
        name,
        *,
        allow_patterns,
        ignore_patterns,
        dry_run=False,
        local_files_only=False,
        tqdm_class=None,
    ):
        from huggingface_hub.utils import filter_repo_objects

        wanted = list(
            filter_repo_objects(
                self.files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
            )
        )
        if dry_run:
            return [self._planned(file) for file in wanted]
        if local_files_only:
            if not self.snapshot.exists():
                raise errors.LocalEntryNotFoundError("not here")
            return str(self.snapshot)
        assert tqdm_class is not None
        with tqdm_class(total=len(wanted)) as bar:
            for file in wanted:
                if (self.snapshot / file).exists():
                    continue
                self.put(file)
                self.meanwhile(bar)
                if self.failures:
                    raise self.failures.pop(0)
        return str(self.snapshot)

    def put(self, file):
        """Have a file in the cache."""
        blob = self.repository / "blobs" / file.replace("/", "-")
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(self.files[file])
        (self.snapshot / file).parent.mkdir(parents=True, exist_ok=True)
        (self.snapshot / file).symlink_to(os.path.relpath(blob, (self.snapshot / file).parent))

    def _planned(self, file):
        path = self.snapshot / file
        return DryRunFileInfo(
            commit_hash=COMMIT,
            file_size=len(self.files[file]),
            filename=file,
            local_path=str(path),
            is_cached=path.exists(),
            will_download=not path.exists(),
        )


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    """A home of the test's own, and a hub that answers."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(fetching, "_WAITS", (0, 0))
    hub = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "model_info", hub.model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def get(name="org/tiny"):
    said = []
    return fetch(name, say=said.append, progress=lambda done, of: None), said


def refusal(name="org/tiny"):
    with pytest.raises(ModelError) as error:
        get(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_model_of_the_hub(hub):
    hub.files |= {
        "pytorch_model.bin": b"pickled",
        "modeling_tiny.py": b"code",
        "onnx/config.json": b"{}",
        "original/model.safetensors": b"the same again",
        "chat_template.jinja": b"{{ messages }}",
        "additional_chat_templates/tools.jinja": b"{{ tools }}",
        "LICENSE": b"MIT",
    }
    model, said = get()
    assert model.folder == hub.snapshot
    assert model.is_whole
    assert said == [f"downloading org/tiny ({model.bytes / 1e3:.1f} kB, licence mit) from the hub"]
    there = {str(path.relative_to(hub.snapshot)) for path in hub.snapshot.rglob("*.*")}
    assert there == {
        "config.json",
        "model.safetensors",
        "README.md",
        "chat_template.jinja",
        "additional_chat_templates/tools.jinja",
    }
    assert (hub.snapshot / "LICENSE").is_file()
    assert fetched_models() == [model]
    assert get() == (model, ["org/tiny is already on this machine"])


def test_removing_it_leaves_nothing(hub):
    model, _ = get()
    assert remove("org/tiny") == model.bytes
    assert not hub.repository.exists()
    assert fetched_models() == []
    with pytest.raises(ModelError, match="has not downloaded it"):
        remove("org/tiny")


def test_what_others_brought_is_never_removed(hub):
    hub.put("config.json")
    hub.put("README.md")
    get()
    other = hub.repository / "snapshots" / "0ther"  # a version that shares the weights
    other.mkdir()
    (other / "model.safetensors").symlink_to("../../blobs/model.safetensors")
    assert remove("org/tiny") == 0
    assert sorted(path.name for path in hub.snapshot.iterdir()) == ["README.md", "config.json"]
    assert (other / "model.safetensors").read_bytes() == b"weights"


def test_a_model_that_was_here_is_not_on_record_and_needs_no_network(hub):
    for file in hub.files:
        hub.put(file)
    hub.refusal = ConnectError("no network")
    model, said = get()
    assert (model.folder, model.is_whole) == (hub.snapshot, True)
    assert fetched_models() == []
    assert said == ["org/tiny is already on this machine"]
    with pytest.raises(ModelError, match="has not downloaded it"):
        remove("org/tiny")
    assert (hub.snapshot / "model.safetensors").is_file()


def test_a_file_put_in_the_place_of_one_that_was_brought_stays(hub, tmp_path):
    get()
    mine = tmp_path / "mine"
    mine.write_bytes(b"work of a week")
    (hub.snapshot / "model.safetensors").unlink()
    (hub.snapshot / "model.safetensors").symlink_to(mine)
    with pytest.raises(ModelError, match="not the file that"):
        remove("org/tiny")
    mine.write_bytes(b"weights")  # even with the size of the other one
    remove("org/tiny")
    assert mine.read_bytes() == b"weights"


def test_a_connection_that_breaks_off(hub):
    hub.failures = [ConnectError("gone"), errors.XetDownloadError("gone")]
    model, said = get()
    assert model.is_whole
    assert said[1:] == ["org/tiny: the connection broke off (gone); trying again"] * 2


def test_a_connection_that_breaks_off_for_good(hub, monkeypatch):
    hub.failures = [ConnectError("gone")] * 2
    monkeypatch.setattr(fetching, "_WAITS", ())
    assert "`models get org/tiny` fetches what is missing" in refusal()
    (begun,) = fetched_models()
    assert begun.has_begun
    assert not begun.is_whole
    partial = hub.repository / "blobs" / "0123.4567.incomplete"
    locked = hub.repository / "blobs" / "89ab.cdef.incomplete"
    partial.touch()  # as a killed process leaves it
    locked.touch()  # as another process is filling it now
    locks = hub.repository.parent / ".locks" / hub.repository.name
    with FileLock(locks / "89ab.lock"):
        hub.failures = []
        model, _ = get()
    assert model.is_whole
    assert not partial.exists()
    assert locked.exists()
    assert set(model.files) == set(hub.files)  # those of the first time too
    remove("org/tiny")
    assert not hub.repository.exists()


def test_a_newer_version_takes_the_place_of_a_part_of_an_older_one(hub, monkeypatch):
    hub.failures = [ConnectError("gone")]
    monkeypatch.setattr(fetching, "_WAITS", ())
    refusal()
    old = hub.snapshot
    hub.snapshot = old.with_name("newer")
    get()
    assert not old.exists()
    remove("org/tiny")
    assert not hub.repository.exists()


def test_a_failure_that_brought_nothing_is_not_on_record(hub, monkeypatch):
    monkeypatch.setattr(hub, "put", lambda file: None)
    hub.failures = [OSError(errno.ENOSPC, "No space left on device")]
    assert "the disk is full" in refusal()
    assert fetched_models() == []


def test_what_ends_the_progress_ends_the_download(hub):
    interrupted = threading.Event()

    def progress(done, of):
        interrupted.set()
        raise KeyboardInterrupt

    def many_chunks(bar):
        interrupted.wait(120)
        for _ in range(1000):
            bar.update(1)
            time.sleep(0.01)

    hub.meanwhile = many_chunks
    with pytest.raises(KeyboardInterrupt):
        fetch("org/tiny", say=lambda sentence: None, progress=progress)
    assert not fetched_models()[0].is_whole


def answer(status, kind):
    return kind("refused", response=Response(status, request=Request("GET", "http://hub")))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (answer(401, errors.GatedRepoError), f"accepted first, at {constants.ENDPOINT}/org/tiny"),
        (answer(404, errors.RepositoryNotFoundError), "there is no such model on the hub"),
        (answer(403, errors.HfHubHTTPError), "cannot be fetched: refused"),
        (answer(503, errors.HfHubHTTPError), "the hub reports an error (status 503)"),
        (ConnectError("no route\nto host"), "check the network (no route)"),
        (errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE is set"),
        (errors.HFValidationError("bad"), "'org/tiny' is not a model id"),
        (ValueError("\x1b[31modd"), "cannot be fetched: ␛[31modd"),
    ],
)
def test_what_the_hub_refuses(hub, error, words):
    hub.refusal = error
    assert words in refusal()
    dry_run = errors.DryRunError("cannot be performed")
    dry_run.__cause__ = error
    hub.refusal = dry_run
    assert words in refusal()
    assert fetched_models() == []


def test_pickled_weights_alone_are_no_model(hub):
    hub.files["pytorch_model.bin"] = hub.files.pop("model.safetensors")
    assert "no safetensors weights" in refusal()
    assert not hub.repository.exists()


def test_a_disk_without_room(hub, monkeypatch, tmp_path):
    hub.files["model.safetensors"] = bytes(2_000_000)
    monkeypatch.setattr(
        fetching.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1_900_000)
    )
    assert refusal() == f"{tmp_path}: 2.0 MB are needed on this disk, but only 1.9 MB are free"
    assert not hub.repository.exists()


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        (None, "no licence named"),
        ({"license": "other", "license_name": "tiny-1"}, "licence tiny-1"),
        ({"license": "other"}, "licence other"),
    ],
)
def test_the_licence(hub, card, licence):
    hub.card = card
    _, (said,) = get()
    assert licence in said


def test_a_name_that_is_not_in_the_catalogue(hub):
    assert refusal("smolm2").endswith("did you mean 'smollm2'?")
    assert "no model ''" in refusal("")
    assert hub.asked == []


def test_one_process_at_a_time():
    with fetching.only_one():
        assert "another `models get`" in refusal()


@pytest.mark.parametrize(
    "text",
    [
        "oops",
        "[]",
        '{"org/tiny": {}}',
        '{"org/tiny": 3}',
        '{"m": {"source": "p==1", "folder": "m", "files": {"../../x": 1}, "licence": ""}}',
        '{"m": {"source": "hub", "folder": "/home/me/x", "files": {}, "licence": ""}}',
    ],
)
def test_a_record_that_is_broken(hub, text):
    fetched_path().parent.mkdir(parents=True)
    fetched_path().write_text(text)
    assert str(fetched_path()) in refusal()
    assert fetched_path().read_text() == text


def test_the_catalogue():
    models = known_models()
    assert {"gpt2", "gpt2-xl", "distilgpt2", "smollm2", "qwen3-0.6b", "pythia-160m"} <= set(models)
    for model in models.values():
        huggingface_hub.utils.validate_repo_id(model.hub)
        assert "/" not in model.name
        assert model.hub.count("/") == 1
        assert model.licence
        assert model.purpose
        assert model.bytes > 1e8
    package = models["smollm2"].package
    assert package.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert len(package.sha256) == 64


def test_a_short_name_is_a_model(monkeypatch, tmp_path):
    cached = {"HuggingFaceTB/SmolLM2-135M-Instruct"}

    def download(name, *, local_files_only=False, **options):
        if local_files_only and name not in cached:
            raise errors.LocalEntryNotFoundError("not here")
        folder = tmp_path / f"cached-{name.replace('/', '-')}"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").touch()
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert model_folder("gpt2").name == "cached-openai-community-gpt2"
    cached.add("gpt2")  # as it was called before the hub had organisations
    assert model_folder("gpt2").name == "cached-gpt2"
    assert model_folder("smollm2").name == "cached-HuggingFaceTB-SmolLM2-135M-Instruct"
    (models_dir() / "smollm2").mkdir(parents=True)
    (models_dir() / "smollm2" / "model.gguf").touch()
    assert model_folder("smollm2") == models_dir() / "smollm2"
    (tmp_path / "smollm2").mkdir()  # hides no known model
    assert model_folder("smollm2") == models_dir() / "smollm2"
    assert model_folder("./smollm2").resolve() == tmp_path / "smollm2"


def test_a_model_named_to_be_loaded_whose_licence_is_not_accepted(monkeypatch):
    def download(name, *, local_files_only=False, **options):
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not here")
        raise answer(401, errors.GatedRepoError)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelError, match="its licence must be accepted first"):
        model_folder("org/tiny")


def test_a_link_in_the_place_of_the_folder(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "m.gguf").write_bytes(b"1234")
    models_dir().mkdir(parents=True)
    (models_dir() / "smollm2").symlink_to(mine)
    model = Fetched("smollm2", "p==1", models_dir() / "smollm2", {"m.gguf": 4}, "")
    fetching.remember(model)
    with pytest.raises(ModelError, match="is a link"):
        remove("smollm2")
    (models_dir() / "smollm2").unlink()
    (models_dir() / "smollm2").mkdir()
    (models_dir() / "smollm2" / "m.gguf").symlink_to(mine / "m.gguf")
    with pytest.raises(ModelError, match="is not the file"):
        remove("smollm2")
    assert (mine / "m.gguf").read_bytes() == b"1234"
    fetching.remember(replace(model, files={}))
    (models_dir() / "smollm2" / "notes.txt").touch()
    assert remove("smollm2") == 0
    assert (models_dir() / "smollm2" / "notes.txt").exists()
