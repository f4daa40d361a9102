"""Selection methods of installed packages: found by their entry points, refused in a sentence."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chatapp.commands import options
from chatapp.prompting.examples import Pool, PromptError
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tasks.options import method_of
from chatapp.tasks.selection import installed
from chatapp.tasks.selection.installed import find_method, listed_methods, usable_methods
from chatapp.tasks.selection.methods import METHODS, Knn
from chatapp.tasks.selection.select import Select, build_selector

CODE = '''
from chatapp.tasks.selection.methods import Selector

class Shortest(Selector):
    """The shortest inputs."""

    name = "shortest"
    summary = "the shortest of the pool"

    def select(self, query, k):
        inputs = self._pool.inputs
        return self._first(sorted(range(len(inputs)), key=lambda i: len(inputs[i])), query, k)

class Empty(Selector):
    name = "shortest"
    summary = "it selects nothing"
'''
POOL = Pool(["a long one", "short", "a longer one"], ["x", "y", "z"])


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    installed._installed.cache_clear()


def install(folder: Path, package: str, *methods: str, code: str = CODE) -> None:
    """Put a package and its metadata into a folder, as pip does."""
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{method} = {module}:{value}" for method, value in (m.split("=") for m in methods)]
    (metadata / "entry_points.txt").write_text("\n".join(["[chatapp.selection]", *lines, ""]))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def prompt_file(folder: Path, method: str) -> Path:
    path = folder / "task.toml"
    path.write_text(f'examples = [{{input = "a", output = "b"}}]\n[select]\nmethod = "{method}"\n')
    return path


def test_a_method_of_a_package_is_used_like_one_that_is_built_in(place: Path) -> None:
    install(place, "short-examples", "shortest=Shortest")
    select = load_prompt(prompt_file(place, "shortest")).select
    assert build_selector(POOL, select).select("short", 2) == [0, 2]
    assert method_of("shortest") is select.selector
    assert options.methods("sho") == [("shortest", "the shortest of the pool")]
    assert listed_methods() == ([*METHODS, "shortest"], "")
    with pytest.raises(PromptError, match="did you mean 'shortest'"):
        method_of("shrotest")
    with pytest.raises(
        PromptError, match="only knn, mmr, knn-balanced, knn-block, coverage, vote take an encoder"
    ):
        method_of("shortest:minilm")


@pytest.mark.parametrize(
    ("methods", "code", "problem"),
    [
        ("shortest=Shortest", "import not_there", "it cannot be loaded: No module named"),
        ("shortest=Shortest", "raise ValueError('no\\nkey')", "it cannot be loaded: no key"),
        ("shortest=Shortest", "def (", "it cannot be loaded: "),
        ("shortest=Absent", CODE, "it cannot be loaded: module 'short_examples' has no"),
        (
            "shortest=Selector.select",
            CODE,
            "short_examples:Selector.select is not a subclass of Sel",
        ),
        ("shortest=Empty", CODE, "short_examples:Empty has no method `select`"),
        ("short=Shortest", CODE, "short_examples:Shortest has no `name` that says so"),
    ],
)
def test_a_broken_package_is_one_sentence(
    place: Path, methods: str, code: str, problem: str
) -> None:
    install(place, "short-examples", methods, code=code)
    name = methods.partition("=")[0]
    sentence = f"the package 'short-examples' offers the method '{name}', but "
    with pytest.raises(PromptError) as error:
        method_of(name)
    assert str(error.value).startswith(sentence)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)
    path = prompt_file(place, name)
    with pytest.raises(PromptError) as error:
        load_prompt(path)
    assert str(error.value).startswith(f"{path}, line 3: 'select.method' is '{name}': {sentence}")
    assert set(usable_methods()) == set(METHODS), "it costs no other method"


def test_two_packages_with_one_name_are_both_named(place: Path) -> None:
    install(place, "short-examples", "shortest=Shortest")
    install(place, "other", "shortest=Shortest")
    with pytest.raises(PromptError) as error:
        find_method("shortest")
    assert str(error.value) == (
        "the packages 'other' and 'short-examples' both offer the method 'shortest'; remove one"
    )


def test_what_is_built_in_is_never_replaced(place: Path) -> None:
    install(place, "short-examples", "knn=Shortest")
    assert find_method("knn") is Knn
    assert usable_methods() == METHODS
    clash = "(the package 'short-examples' offers 'knn', which is built in)"
    with pytest.raises(PromptError) as error:
        method_of("zzz")
    assert str(error.value) == (
        f"--select is 'zzz', which is not known; there are {', '.join(METHODS)} {clash}"
    )
    with pytest.raises(PromptError, match=r"or 'vote' \(the package 'short-examples' offers"):
        load_prompt(prompt_file(place, "zzz"))


def test_packages_are_looked_for_only_when_a_name_is_not_built_in() -> None:
    script = """
import sys
from chatapp.tasks.options import method_of
from chatapp.tasks.selection.select import Select
before = "importlib.metadata" in sys.modules
method_of("knn:tfidf"), Select(method="bm25").selector
assert before == ("importlib.metadata" in sys.modules)
sys.modules["importlib.metadata"] = None
method_of("knn:tfidf"), Select(method="bm25").selector
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_chooses_from_a_small_pool(method: str) -> None:
    selector = build_selector(POOL, Select(method=method))
    assert sorted(selector.select("short", 2)) == [0, 2]
    assert len(selector.select("else", 9)) == 3
