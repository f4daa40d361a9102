"""Which files are found: .gitignore, links, hidden names, patterns, and paths that lead nowhere."""

import os
from pathlib import Path

import pytest

from chatapp.dialogue.documents import reader
from chatapp.dialogue.documents.reader import list_files
from chatapp.tasks.files.documents import DocumentsError


def names(folder, *paths):
    found = list_files(paths or [str(folder)]).files
    return sorted(str(Path(path).relative_to(folder)) for path in found)


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_folders_are_read_to_the_bottom(folder):
    write(folder, a_txt="a", sub__b_md="b", sub__deep__c_py="c")
    assert names(folder) == ["a.txt", "sub/b.md", "sub/deep/c.py"]


def test_gitignore_is_respected_as_git_has_it(folder):
    write(folder, a_log="", kept_log="", build__x_txt="", sub__a_tmp="", sub__b_tmp="", c_txt="")
    (folder / ".gitignore").write_text("*.log\n!kept.log\nbuild/\n*.tmp\n")
    (folder / "sub" / ".gitignore").write_text("!b.tmp\n")
    assert names(folder) == ["c.txt", "kept.log", "sub/b.tmp"]


def test_rules_above_a_folder_of_a_repository_count(folder):
    write(folder, sub__a_log="", sub__b_txt="")
    (folder / ".gitignore").write_text("*.log\n")
    assert names(folder, str(folder / "sub")) == ["sub/a.log", "sub/b.txt"]
    (folder / ".git").mkdir()
    assert names(folder, str(folder / "sub")) == ["sub/b.txt"]


def test_a_file_that_is_named_is_taken_whatever_the_rules_say(folder):
    write(folder, a_log="")
    (folder / ".gitignore").write_text("*.log\n")
    assert names(folder, str(folder / "a.log")) == ["a.log"]


def test_hidden_names_are_left_out(folder):
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("x")
    (folder / ".env").write_text("SECRET")
    assert names(folder) == []


def test_links_are_left_out_so_that_no_walk_goes_round(folder, tmp_path):
    write(folder, a_txt="a")
    (folder / "round").symlink_to(folder)
    (tmp_path / "secret.txt").write_text("s")
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "nowhere").symlink_to(folder / "gone")
    listing = list_files([str(folder)])
    assert [Path(path).name for path in listing.files] == ["a.txt"]
    assert listing.left_out == {"links": 3}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe")
    assert list_files([str(folder)]).left_out == {"no regular files": 1}


def test_names_that_are_no_text_are_counted(folder):
    try:
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff.txt")).write_text("a")
    except OSError:
        pytest.skip("the file system takes no such name")
    assert list_files([str(folder)]).left_out == {"names that are not valid UTF-8": 1}


def test_patterns(folder):
    write(folder, a_txt="", b_md="", sub__c_txt="")
    assert names(folder, str(folder / "**" / "*.txt")) == ["a.txt", "sub/c.txt"]
    assert names(folder, str(folder / "*.md"), str(folder / "b.md")) == ["b.md"]


@pytest.mark.parametrize("name", ["gone.txt", "*.gone", "a\0b", ""])
def test_paths_that_lead_nowhere_are_told_in_a_sentence(folder, name):
    path = str(folder / name) if name else ""
    with pytest.raises(
        DocumentsError, match=r"no such file|matches this pattern|is not a " "valid path"
    ):
        list_files([path])


def test_a_whole_disk_is_refused(folder, monkeypatch):
    monkeypatch.setattr(reader, "MOST_FILES", 2)
    write(folder, a="", b="", c="")
    with pytest.raises(DocumentsError, match="more than 2 files"):
        list_files([str(folder)])
