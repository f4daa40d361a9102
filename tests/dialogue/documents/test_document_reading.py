"""Each kind of file as blocks of text, and what each broken one says."""

import zlib
from pathlib import Path

import pytest

from chatapp.dialogue.documents import passages, reader
from chatapp.dialogue.documents.passages import Unreadable, read_blocks, read_bytes
from chatapp.dialogue.documents.reader import DocumentReader


def blocks(name, content):
    data = content.encode() if isinstance(content, str) else content
    return read_blocks(Path(name), data)


def texts(name, content):
    return [(block.text, block.place) for block in blocks(name, content)]


def a_pdf(*pages):
    """A PDF whose pages say this; readers find its objects without a table of them."""
    count = len(pages)
    kids = b" ".join(b"%d 0 R" % (10 + 2 * page) for page in range(count))
    objects = [
        b"1 0 obj <</Type/Catalog/Pages 2 0 R>> endobj",
        b"2 0 obj <</Type/Pages/Count %d/Kids[%s]>> endobj" % (count, kids),
        b"3 0 obj <</Type/Font/Subtype/Type1/BaseFont/Helvetica>> endobj",
    ]
    for number, page in enumerate(pages):
        stream = b"BT /F1 12 Tf 72 720 Td (%s) Tj ET" % page
        own = 10 + 2 * number
        objects.append(
            b"%d 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents %d 0 R"
            b"/Resources<</Font<</F1 3 0 R>>>>>> endobj" % (own, own + 1)
        )
        objects.append(
            b"%d 0 obj <</Length %d>> stream\n%s\nendstream endobj" % (own + 1, len(stream), stream)
        )
    return ended(b"%PDF-1.4\n" + b"\n".join(objects))


def ended(body):
    return b"%s\ntrailer <</Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (body, len(body))


def test_paragraphs_of_a_text():
    assert texts("a.txt", "One\ntwo\n\n\n  three\r\n\r\nfour\n") == [
        ("One\ntwo", "line 1"),
        ("  three", "line 5"),
        ("four", "line 7"),
    ]


def test_source_code_is_text_and_its_comments_no_headings():
    assert texts("a.py", "# A comment\nx = 1\n") == [("# A comment\nx = 1", "line 1")]


def test_markdown_has_headings_but_not_in_code():
    page = "# Top\ntext\n```sh\n# no heading\n\nls\n```\n## Below ##\n"
    assert [(block.title, block.level) for block in blocks("a.md", page)] == [
        ("Top", 1),
        ("", 0),
        ("Below", 2),
    ]
    assert blocks("a.md", page)[1].text == "text\n```sh\n# no heading\n\nls\n```"


def test_html_is_what_a_reader_sees():
    page = """<html><head><title>No</title><script>bad()</script></head>
<body><h2>A <em>title</em></h2><p>Fish &amp; chips<br>and
 more<!-- hidden --><ul><li>one<li>two</ul><style>p {}</style>
<table><tr><td>a</td><td>b</td></tr></table><pre>x
  y</pre>"""
    assert [(block.text, block.level) for block in blocks("a.HTML", page)] == [
        ("A title", 2),
        ("Fish & chips and more", 0),
        ("one", 0),
        ("two", 0),
        ("a b", 0),
        ("x\n  y", 0),
    ]
    assert blocks("a.html", page)[0].place == "line 2"


@pytest.mark.parametrize(
    "page",
    ["<p>seen" + "<div>" * 50_000, "<p>seen</p><!--", "<p>seen</p><![CDATA[", "seen<p <"],
    ids=["deep", "comment", "section", "tag"],
)
def test_broken_html(page):
    assert blocks("a.html", page)[0].text.startswith("seen")


def test_rows_of_a_table():
    table = 'name,note\nAda,"first, and\nlast"\nBob,,extra\n'
    assert texts("a.csv", table) == [
        ("name: Ada\nnote: first, and\nlast", "line 3"),
        ("name: Bob\ncolumn 3: extra", "line 4"),
    ]
    assert all(block.alone for block in blocks("a.csv", table))
    assert texts("a.tsv", "a\tb\n1\t2\n") == [("a: 1\nb: 2", "line 2")]


def test_rows_of_jsonl_and_lines_that_are_none():
    deep = "[" * 100_000
    rows = '{"q": "Who?", "n": 3, "none": null}\nno json\n\n' + deep + "\n[1]\n" + "9" * 5_000
    assert texts("a.jsonl", rows) == [
        ("q: Who?\nn: 3", "line 1"),
        ("no json", "line 2"),
        (deep, "line 4"),
        ("[1]", "line 5"),
        ("9" * 5_000, "line 6"),
    ]


def test_escapes_in_a_row_reach_no_terminal():
    assert texts("a.jsonl", '{"a": "\\u001b[2J\\ud800"}') == [("a: ␛[2J\ufffd", "line 1")]


def test_pages_of_a_pdf():
    assert texts("a.pdf", a_pdf(b"Walrus", b"Clam")) == [("Walrus", "page 1"), ("Clam", "page 2")]


def test_a_pdf_that_goes_round_is_told():
    data = a_pdf(b"x").replace(b"/Kids[10 0 R]", b"/Kids[2 0 R] ")
    with pytest.raises(Unreadable, match="PDF"):
        blocks("a.pdf", data)


def test_a_pdf_that_takes_all_memory_is_told(tmp_path):
    bomb = zlib.compress(zlib.compress(bytes(2**28), 9), 9)
    stream = b"11 0 obj <</Filter[/FlateDecode/FlateDecode]/Length %d>> stream\n" % len(bomb)
    old = b"11 0 obj <</Length"
    data = a_pdf(b"x")
    body = data[: data.index(old)] + stream + bomb + b"\nendstream endobj"
    (tmp_path / "a.pdf").write_bytes(ended(body))
    with pytest.raises(Unreadable):
        list(DocumentReader().read(str(tmp_path / "a.pdf"), 600, ""))


def test_a_file_that_never_ends_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_SECONDS", 0.0)
    (tmp_path / "a.pdf").write_bytes(a_pdf(b"x"))
    with pytest.raises(Unreadable, match="take longer than"):
        list(DocumentReader().read(str(tmp_path / "a.pdf"), 600, ""))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.txt", b"a\0b", "binary"),
        ("a.txt", b"caf\xe9", "not UTF-8"),
        ("a.txt", b"\xff\xfe\x00", "not UTF-8"),
        ("a.txt", b" \n\t\n", "without text"),
        ("a.csv", b"only,a,header\n", "without text"),
        ("a.html", b"<script>x</script>", "without text"),
        ("a.pdf", b"no pdf at all", "PDFs that cannot be read"),
        pytest.param("a.pdf", a_pdf(b""), "without text", id="empty page"),
        ("a.svg", b"<svg>words</svg>", "pictures"),
    ],
)
def test_files_that_give_no_text_say_why(name, content, why):
    with pytest.raises(Unreadable, match=why):
        blocks(name, content)


def test_other_encodings_that_say_so():
    assert texts("a.txt", "Grüße".encode("utf-16")) == [("Grüße", "line 1")]
    assert texts("a.txt", b"\xef\xbb\xbfa") == [("a", "line 1")]


def test_control_characters_become_visible():
    assert texts("a.txt", "\x1b]0;x\x07 \x9b2J\u202e") == [("␛]0;x␇ \ufffd2J\ufffd", "line 1")]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "cannot be read"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_bytes(b"x" * 11), "larger than"),
        (lambda path: path.mkdir(), "cannot be read"),
    ],
)
def test_files_that_are_no_longer_there_or_too_much(make, why, tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "MOST_BYTES", 10)
    make(tmp_path / "a.txt")
    with pytest.raises(Unreadable, match=why):
        read_bytes(tmp_path / "a.txt")
