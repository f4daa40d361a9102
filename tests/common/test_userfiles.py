"""Files that users write: the line of a key, the word probably meant, and TOML that is none."""

import os
import threading
from pathlib import Path

import pytest

from chatapp.common import userfiles
from chatapp.common.userfiles import (
    UserError,
    line_of,
    missing_path,
    open_regular,
    parse_toml,
    read_text,
    suggestion,
)
from chatapp.engine.errors import ModelError
from chatapp.engine.models.resolving import model_folder
from chatapp.rows.examples import PromptError
from chatapp.tasks.evaluation import inputs, journal

SOURCE = '''\
# top_k = 1
text = """
top_k = 2
"""
"top_k" = 3
nested.key = 4
inline = {key = 5, list = []}

[keys]  # a table
help = "f9"
[[rows]]
a = 1
[[rows]]
a = 2
[rows.more]
b = 3
[[rows.parts]]
[[rows.parts]]
c = 4
'''


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (("text",), 2),
        (("top_k",), 5),
        (("nested", "key"), 6),
        (("inline", "key"), 7),
        (("keys",), 9),
        (("keys", "help"), 10),
        (("rows",), 11),
        (("rows", 0), 11),
        (("rows", 0, "a"), 12),
        (("rows", 1, "a"), 14),
        (("rows", 1, "more", "b"), 16),
        (("rows", 1, "parts", 1, "c"), 19),
        (("rows", 2, "a"), None),
        (("inline", "list", 3, "key"), 7),
        (("help",), None),
        ((), None),
    ],
)
def test_the_line_on_which_a_key_is_set(location, line):
    assert line_of(SOURCE, location) == line


def test_an_unknown_word_is_told_with_the_one_meant_or_with_all():
    assert suggestion("colum", ["column", "row"]) == "; did you mean 'column'?"
    assert suggestion("zzz", ["column", "row"]) == "; there are column, row"
    assert suggestion("zzz", []) == "; there are none yet"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a = = 3", "x.toml, line 1, column 5: is not valid TOML: Invalid value"),
        ("a = 1\na = 2", "x.toml, line 2: is not valid TOML: Cannot overwrite a value"),
        ("a = " + "[" * 50_000, "x.toml: is nested too deeply"),
    ],
)
def test_broken_toml_is_one_sentence(text, sentence):
    with pytest.raises(UserError) as error:
        parse_toml(text, Path("x.toml"))
    assert str(error.value) == sentence


def test_a_path_that_leads_nowhere_is_told_from_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "instructions").mkdir(parents=True)
    missing = "there is no such file or folder"
    assert missing_path("runs/instrctions") == (
        f"runs/instrctions: {missing}; did you mean 'instructions'?"
    )
    for path in ("./x", str(tmp_path / "no" / "x"), "~/../no/x"):
        assert missing_path(path) == f"{path}: {missing}"
    for name in ("gpt2", "owner/model", "runs/instructions", "run\0s/x"):
        assert missing_path(name) == ""


def test_no_hub_is_asked_for_a_misspelt_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    monkeypatch.setattr("chatapp.engine.models.hub.downloaded_folder", pytest.fail)
    with pytest.raises(ModelError, match="no such folder; did you mean 'mine'"):
        model_folder("runs/mien")


@pytest.mark.skipif(not Path("/proc/kmsg").exists(), reason="Linux has these devices")
@pytest.mark.parametrize(("endless", "why"), [("/dev/zero", "it is a device"), ("/proc/kmsg", "")])
def test_an_endless_file_is_a_sentence(endless, why):
    with pytest.raises(UserError, match=rf"^{endless}: cannot be read: {why}"):
        read_text(Path(endless))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="Linux has this device")
@pytest.mark.parametrize(
    "read", [lambda p: list(inputs.read_inputs(p)), lambda p: list(journal.read_rows(p))]
)
def test_rows_of_a_device_are_not_read(read):
    with pytest.raises(PromptError, match="it is a device"):
        read(Path("/dev/zero"))


@pytest.mark.skipif(os.name != "posix", reason="POSIX has files of descriptors")
def test_an_endless_pipe_is_a_sentence(monkeypatch):
    monkeypatch.setattr(userfiles, "_MOST", 2**10)
    source, sink = os.pipe()
    os.write(sink, b"x" * 2_000)
    with pytest.raises(UserError, match="cannot be read: it is larger than"):
        read_text(Path(f"/dev/fd/{source}"))
    os.close(source)
    os.close(sink)


@pytest.mark.skipif(os.name != "posix", reason="POSIX has it")
def test_the_empty_device_is_an_empty_file():
    assert read_text(Path(os.devnull)) == ""


@pytest.mark.skipif(os.name != "posix", reason="POSIX has files of descriptors")
def test_a_pipe_that_the_user_names_is_read_to_its_end():
    source, sink = os.pipe()
    writer = threading.Timer(0.1, lambda: (os.write(sink, b"late"), os.close(sink)))
    writer.start()
    assert read_text(Path(f"/dev/fd/{source}")) == "late"
    os.close(source)


def test_a_file_that_has_nothing_yet_is_an_error_and_is_not_waited_for(tmp_path, monkeypatch):
    """As /proc/kmsg does, which looks like a regular file."""
    os.mkfifo(tmp_path / "pipe")
    keep_open = os.open(tmp_path / "pipe", os.O_RDWR)
    monkeypatch.setattr(userfiles.stat, "S_ISREG", lambda mode: True)
    with open_regular(tmp_path / "pipe") as file, pytest.raises(OSError, match="nothing to read"):
        file.read(10)
    os.write(keep_open, b"some")
    with open_regular(tmp_path / "pipe") as file:
        assert file.read(4) == b"some"
    os.close(keep_open)
