"""Settings come from four places, and whatever is wrong is named with its place."""

import pytest

from chatapp.common import paths
from chatapp.common.settings import Settings, SettingsError, keep_settings, load_settings
from chatapp.engine.model import Sampling


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    return tmp_path


def write(text):
    path = paths.settings_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_chatapp_home_moves_every_folder(home):
    folders = {paths.config_dir(), paths.data_dir(), paths.cache_dir(), paths.log_dir()}
    assert {folder.parent for folder in folders} == {home}
    assert len(folders) == 4
    assert paths.database_path().parent == paths.data_dir()
    assert not any(folder.exists() for folder in folders)


def test_without_chatapp_home_the_platform_decides(monkeypatch):
    monkeypatch.delenv("CHATAPP_HOME")
    assert paths.data_dir().name == "chatapp"
    assert paths.data_dir().is_absolute()


def test_nothing_set_gives_the_defaults():
    assert load_settings() == Settings()


def test_flags_win_over_variables_over_the_file(monkeypatch):
    write('model = "./mine"\ntemperature = 1\ntop_k = 5\nmax_tokens = 10\n')
    monkeypatch.setenv("CHATAPP_TOP_K", "6")
    monkeypatch.setenv("CHATAPP_MAX_TOKENS", "11")
    settings = load_settings({"max_tokens": 12, "seed": None, "template": None})
    assert settings.model == "./mine"
    assert settings.sampling == Sampling(temperature=1.0, top_k=6, max_tokens=12)


def test_temperature_0_as_a_flag_is_greedy_without_penalties():
    model = {"temperature": 0.6, "repetition_penalty": 1.2, "top_k": 20}
    chosen = load_settings({"temperature": 0}).choices(model).sampling
    assert (chosen.temperature, chosen.repetition_penalty, chosen.no_repeat_ngram) == (0, 1, 0)
    named = load_settings({"temperature": 0, "repetition_penalty": 1.1}).choices(model).sampling
    assert named.repetition_penalty == 1.1
    warm = load_settings({"temperature": 0.5}).choices(model).sampling
    assert warm.repetition_penalty == 1.2


def test_a_file_may_start_with_a_byte_order_mark():
    write('\ufefftheme = "nord"\n')
    assert load_settings().theme == "nord"


def test_an_unknown_key_is_named_with_file_line_and_nearest_key():
    path = write('# mine\nmodel = "bundled"\n\ntemprature = 0.5\n')
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert str(error.value) == (
        f"{path}, line 4: there is no setting 'temprature'; did you mean 'temperature'?"
    )


def test_a_key_unlike_any_other_lists_the_keys_there_are():
    write("[zzz]\nx = 1\n")
    with pytest.raises(SettingsError, match=r"line 1: .*'zzz'; there are model, template"):
        load_settings()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("seed = true", "seed is True; expected a whole number"),
        ("model = 3", "model is 3; expected text in quotes"),
        (f"temperature = 1{'0' * 400}", "too large"),
        ("model =", "is not valid TOML"),
        ('device = "gpu"', "device is 'gpu'; expected one of auto, cpu, cuda, mps"),
    ],
)
def test_a_bad_value_is_refused_in_one_sentence(line, expected):
    path = write(line)
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert str(error.value).startswith(str(path))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_text_is_refused():
    write("").write_bytes(b"model = '\xff'")
    with pytest.raises(SettingsError, match="is not valid UTF-8"):
        load_settings()


def test_a_folder_in_place_of_the_file_is_refused():
    paths.settings_path().mkdir(parents=True)
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        load_settings()


def test_variables_and_flags_are_named(monkeypatch):
    monkeypatch.setenv("CHATAPP_TOP_P", "much")
    with pytest.raises(SettingsError, match="variable CHATAPP_TOP_P: top_p is 'much'"):
        load_settings()
    monkeypatch.setenv("CHATAPP_TOP_P", "")  # empty is not set
    with pytest.raises(SettingsError, match=r"^--no-repeat-ngram: no_repeat_ngram is -1"):
        load_settings({"no_repeat_ngram": -1})
    monkeypatch.setenv("CHATAPP_THEMES", "nord")
    with pytest.raises(SettingsError, match=r"CHATAPP_THEMES: .*did you mean 'theme'"):
        load_settings()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'theme = "nord"\n'),
        ("top_k = 3 # mine\n", 'theme = "nord"\ntop_k = 3 # mine\n'),
        ('# a\r\n theme = "old" # why\r\ntop_k = 3', '# a\r\n theme = "nord" # why\r\ntop_k = 3'),
        ("'theme'='old'\n[keys]\nhelp = \"f9\"\n", '\'theme\'="nord"\n[keys]\nhelp = "f9"\n'),
        ('theme = """\nold"""\ntop_k = 3', 'theme = "nord"\ntop_k = 3'),
        ('[keys]\nhelp = "f9"\n', 'theme = "nord"\n[keys]\nhelp = "f9"\n'),
    ],
)
def test_a_theme_is_kept_and_all_else_stays(before, after):
    path = write("")
    path.write_bytes(before.encode())
    path.chmod(0o640)
    keep_settings({"theme": "nord"})
    assert path.read_bytes().decode() == after
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_theme_is_kept_where_there_was_no_file_and_behind_a_link(tmp_path):
    keep_settings({"theme": 'a "quoted" näme'})
    assert load_settings().theme == 'a "quoted" näme'
    path = paths.settings_path()
    real = tmp_path / "dotfiles.toml"
    path.rename(real)
    path.symlink_to(real)
    keep_settings({"theme": "nord"})
    assert path.is_symlink()
    assert real.read_text() == 'theme = "nord"\n'


@pytest.mark.parametrize("text", ["theme = ", "a = 1\na = 2", "\xff"])
def test_a_file_that_cannot_keep_a_theme_stays_as_it_is(text):
    path = write("")
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match="theme cannot be saved"):
        keep_settings({"theme": "nord"})
    assert path.read_bytes() == text.encode("latin-1")
    path.unlink()
    path.mkdir()
    with pytest.raises(
        SettingsError, match=r"cannot be saved: .*settings\.toml: .*: Is a directory"
    ):
        keep_settings({"theme": "nord"})
