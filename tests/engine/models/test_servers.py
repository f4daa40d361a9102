"""Addresses and names of servers."""

import base64
from urllib.parse import quote

import pytest

from chatapp.engine.backends.remote.http import Server, reason_of, server_url
from chatapp.engine.errors import ModelError
from chatapp.engine.models.resolving import named_servers, server_of


@pytest.fixture(autouse=True)
def names(tmp_path, monkeypatch):
    """The file of names, which is not there yet."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "servers.toml"


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/", "http://localhost:8000/v1"),
        ("https://gpu7.example/v1/", "https://gpu7.example/v1"),
        ("http://[::1]:11434/v1", "http://[::1]:11434/v1"),
        ("https://example.com/team/gpt", "https://example.com/team/gpt"),
    ],
)
def test_addresses_have_one_spelling(address, url):
    assert server_url(address) == url


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://", "expected one like"),
        ("http://[::1", "not a server address"),
        ("http://host:port/v1", "not a server address"),
        ("http://host:99999/v1", "not a server address"),
        ("ftp://host/v1", "expected one like"),
        ("http://a b/v1", "expected one like"),
        ("http://a\x1b]31m/v1", "not a server address"),
        ("http://a\x1b/v1", "expected one like"),
        ("http://host/v1?key=x", "expected one like"),
        ("http://\ud800/v1", "expected one like"),
    ],
)
def test_what_is_no_address(address, words):
    with pytest.raises(ModelError, match="address") as error:
        server_url(address)
    assert words in str(error.value)
    assert "\x1b" not in str(error.value)


def test_a_key_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(ModelError, match="environment variable") as error:
        server_url("https://me:sesame@gpu7.example/v1")
    assert "sesame" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("http://localhost:1/v1", True),
        ("http://a.localhost/v1", True),
        ("http://127.3.2.1/v1", True),
        ("http://[::1]:1/v1", True),
        ("http://10.0.0.1/v1", False),
        ("http://localhost.example/v1", False),
        ("http://gpu7/v1", False),
    ],
)
def test_what_is_on_this_machine(url, is_here):
    assert Server(url).is_here is is_here


def test_names_and_addresses(names):
    assert server_of("gpt2-large") is None
    assert server_of("http://here") == Server("http://here/v1")
    assert server_of("http://here#a/b:c") == Server("http://here/v1", "a/b:c")
    names.write_text(
        '[cluster]\nurl = "https://gpu7.example"\nmodel = "xl"\nkey = "CLUSTER_KEY"\n'
        "context = 1024\n"
    )
    cluster = Server("https://gpu7.example/v1", "xl", "CLUSTER_KEY", 1024)
    assert named_servers() == {"cluster": cluster}
    assert server_of("cluster") == server_of("https://gpu7.example/v1/") == cluster
    other = Server("https://gpu7.example/v1", "small", "CLUSTER_KEY", 1024)
    assert server_of("cluster#small") == server_of("https://gpu7.example#small") == other
    assert server_of("cluster7") is None
    # A key is for its server alone.
    assert server_of("https://gpu7.example:444") == Server("https://gpu7.example:444/v1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a", "not valid TOML"),
        ("\udcff", "not valid UTF-8"),
        ("a = 1", "'a': is the number 1, expected a table"),
        ("[a]", "'a': 'url' is missing"),
        ('[a]\nurll = "http://x"', "'urll' is not a key of a server; did you mean 'url'?"),
        (
            '[a]\nurl = "http://x"\nzzz = 1',
            "'zzz' is not a key of a server; there are url, model, key, context",
        ),
        ("[a]\nurl = 1", "'url' is the number 1, expected a string"),
        ('[a]\nurl = "x"', "'x': this is not a server address"),
        (
            '[a]\nurl = "http://x"\ncontext = "1"',
            "'context' is the string '1', expected a whole number",
        ),
        ('[a]\nurl = "http://x"\ncontext = true', "'context' is true, expected a whole number"),
        ('[a]\nurl = "http://x"\ncontext = -1', "'context' is -1, expected 2 tokens or more"),
        ('[a]\nurl = "http://x"\nkey = "sk-123"', "must name an environment variable"),
    ],
)
def test_a_file_of_names_that_cannot_be_used(names, text, words):
    names.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ModelError) as error:
        server_of("a")
    message = str(error.value)
    assert message.startswith(str(names))
    assert words in message
    assert "\n" not in message
    assert "sk-123" not in message


def test_keys(monkeypatch):
    server = Server("https://x/v1", key="CLUSTER_KEY")
    assert Server("https://x/v1").secret() == ""
    monkeypatch.delenv("CLUSTER_KEY", raising=False)
    with pytest.raises(ModelError, match="CLUSTER_KEY, which holds its key, is not set"):
        server.secret()
    monkeypatch.setenv("CLUSTER_KEY", " sesame\n")
    assert server.secret() == "sesame"
    for bad in ("two\nlines", "schlüssel"):
        monkeypatch.setenv("CLUSTER_KEY", bad)
        with pytest.raises(ModelError, match="is not a valid key") as error:
            server.secret()
        assert bad not in str(error.value)


def _spellings(key):
    for text in (key, key[::-1]):
        yield text
        yield quote(text, safe="")
        yield "".join(f"%{ord(each):02X}" for each in text)
        for around in ("", "x", "xx"):
            yield base64.b64encode(f"{around}{text}{around}".encode()).decode()
            yield base64.urlsafe_b64encode(f"{around}{text}{around}".encode()).decode()


@pytest.mark.parametrize("key", ["sk-se/same+open?~1234567890", "sesame-open", "a.b+c"])
def test_a_key_is_masked_however_a_server_spells_it(key, monkeypatch):
    monkeypatch.setenv("CLUSTER_KEY", key)
    server = Server("https://x/v1", key="CLUSTER_KEY")
    for text in _spellings(key):
        words = reason_of(server, {"error": {"message": f"invalid key {text}, sorry"}})
        assert "CLUSTER_KEY" in words
        assert words.startswith("invalid key ")
        assert words.endswith(", sorry")
        rest = words.removeprefix("invalid key ").removesuffix(", sorry")
        assert len(rest.replace("CLUSTER_KEY", "")) <= 10  # of base64: what is around the key
    assert Server("https://x/v1").masked("sesame") == "sesame"
