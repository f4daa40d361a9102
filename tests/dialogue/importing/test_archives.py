"""Chats come from several files, from folders and from archives, which are bounded."""

import json
import struct
import zipfile

import pytest

from chatapp.dialogue import importing
from chatapp.dialogue.importing import ImportingError, read_chats

HOSTILE = "x\x1b[2J\u202e.json"


def chat(text):
    return {"messages": [{"role": "user", "content": text}]}


def questions(*paths):
    return [each.messages[0].text for each in read_chats(*paths).chats]


def questions_or_sentence(path):
    """The first question in a file, or why there is none."""
    try:
        return questions(path)[0]
    except ImportingError as error:
        return str(error)


def archive(path, **texts):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in texts.items():
            text = content if isinstance(content, str) else json.dumps(content)
            file.writestr(name.replace("__", "/") + ".json", text)
    return path


def test_an_export_is_read_from_files_a_folder_and_an_archive(tmp_path):
    parts = {f"conversations-{n:03}": [chat(f"Hi {n}"), chat(f"Ho {n}")] for n in range(50)}
    others = {"user": {"id": "u"}, "message_feedback": [], "__MACOSX__x": "\x00"}
    folder = tmp_path / "export"
    (folder / "deep").mkdir(parents=True)
    for name, content in (parts | {"deep/user": others["user"]}).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "picture.png").write_bytes(b"\x89")
    (folder / "again").symlink_to(folder)
    packed = archive(tmp_path / "export.zip", **parts, deep__user={"id": "u"}, list=[1])
    expected = [f"{word} {n}" for n in range(50) for word in ("Hi", "Ho")]
    files = sorted(folder.glob("*.json"))
    unnamed = packed.with_name("without suffix")
    unnamed.write_bytes(packed.read_bytes())
    for paths in ([folder], [packed], files, [unnamed]):
        assert questions(*paths) == expected
    assert read_chats(folder).others == 1
    assert read_chats(unnamed).others == 2


def test_a_part_that_cannot_be_read_is_named_and_the_rest_is_read(tmp_path):
    path = archive(tmp_path / "x.zip", a=[chat("Hi")], b="{", c=[chat("Ho")], d=[chat("Hum")])
    data = bytearray(path.read_bytes())
    at = data.index(b"c.json")
    data[at + 6 : at + 16] = bytes(10)
    path.write_bytes(data)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("e.json", b"\xff")
        file.writestr(HOSTILE, "[")
    read = read_chats(path)
    assert [each.messages[0].text for each in read.chats] == ["Hi", "Hum"]
    places = [fault.removeprefix(f"{path}, ").split(":")[0] for fault in read.faults]
    assert places == ["'b.json'", "'c.json'", "'e.json'", repr(HOSTILE)]
    assert "\x1b" not in "".join(read.faults)


def test_an_encrypted_part_is_named(tmp_path):
    path = archive(tmp_path / "x.zip", a=[chat("Hi")])
    data = path.read_bytes()
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(mark) + flags
        data = data[:at] + struct.pack("<H", 1) + data[at + 2 :]
    path.write_bytes(data)
    with pytest.raises(ImportingError, match=r"'a\.json': is encrypted"):
        read_chats(path)


def test_no_archive_is_unpacked_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "_MOST_UNPACKED", 2**20)
    bomb = " " * 2**20
    path = archive(tmp_path / "x.zip", a=[chat("Hi")], b=bomb, c=[chat("Ho")], d=bomb)
    read = read_chats(path)
    assert [each.messages[0].text for each in read.chats] == ["Hi"]
    (fault,) = read.faults
    assert fault.endswith("more than 1 MiB; the rest is left out")
    monkeypatch.setattr(importing, "_MOST_ENTRIES", 3)
    with pytest.raises(ImportingError, match="more than 3 files"):
        read_chats(path)


def test_a_broken_archive_is_refused_in_words(tmp_path):
    path = archive(tmp_path / "x.zip", a=[chat("Hi")])
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(ImportingError) as caught:
            read_chats(path)
        assert str(caught.value).startswith(str(path))
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        assert questions_or_sentence(path).startswith(("Hi", str(path)))
