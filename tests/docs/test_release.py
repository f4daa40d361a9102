"""A release by one command, tried on a clone that is thrown away."""

import importlib.util
from datetime import date
from zipfile import ZipFile

import pytest
from guides import ROOT

spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

DAY = date(2030, 1, 31)
CHANGES = (
    "# Changelog\n\n## Unreleased\n\nIt counts.\n\n### Added\n\n- A count.\n\n## 0.1.0\n\nFirst.\n"
)
NOTHING_NEW = CHANGES.replace("It counts.\n\n", "")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A repository with a changelog, a version and one commit on main."""
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Anna")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "anna@example.org")
    (tmp_path / "chatapp").mkdir()
    (tmp_path / "chatapp" / "__init__.py").write_text('"""0.1.0"""\n__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    tool.git(tmp_path, "init", "--quiet", "--initial-branch=main")
    tool.git(tmp_path, "add", ".")
    tool.git(tmp_path, "commit", "--quiet", "--message", "First")
    return tmp_path


def test_it_cuts_the_changelog_sets_the_version_commits_and_tags(clone):
    tool.release(clone, "0.2.0", DAY)
    changelog = (clone / "CHANGELOG.md").read_text()
    assert changelog == CHANGES.replace(
        "## Unreleased\n", "## Unreleased\n\n## 0.2.0, 2030-01-31\n"
    )
    assert tool.version_of(clone) == "0.2.0"
    assert (clone / "chatapp" / "__init__.py").read_text().startswith('"""0.1.0"""')
    assert tool.git(clone, "status", "--porcelain") == ""
    assert (
        tool.git(clone, "log", "-1", "--format=%s %D") == "Release 0.2.0 HEAD -> main, tag: v0.2.0"
    )
    assert tool.git(clone, "tag", "--list", "--format=%(contents)") == "It counts."
    assert tool.notes(changelog, "0.2.0") == "It counts."
    with pytest.raises(tool.Refused, match="1 to 24 lines of what matters"):
        tool.release(clone, "0.3.0", DAY)


@pytest.mark.parametrize(
    ("version", "spoil", "sentence"),
    [
        ("0.2", lambda clone: None, "expected a version such as 0.2.0"),
        ("0.1.0", lambda clone: None, "0.1.0 is not above 0.1.0"),
        ("0.2.0", lambda clone: (clone / "new").touch(), "not committed"),
        ("0.2.0", lambda clone: tool.git(clone, "switch", "-q", "-c", "wish"), "branch is wish"),
        ("0.2.0", lambda clone: tool.git(clone, "tag", "v0.2.0"), "tag v0.2.0 is there"),
        (
            "0.2.0",
            lambda clone: (
                (clone / "CHANGELOG.md").write_text(NOTHING_NEW),
                tool.git(clone, "commit", "-qam", "Less"),
            ),
            "there are 0",
        ),
    ],
)
def test_a_refused_release_changes_nothing(clone, version, spoil, sentence):
    spoil(clone)
    state = (("rev-parse", "HEAD"), ("status", "--porcelain"), ("tag", "--list"))
    before = [tool.git(clone, *words) for words in state]
    with pytest.raises(tool.Refused, match=sentence):
        tool.release(clone, version, DAY)
    assert [tool.git(clone, *words) for words in state] == before
    assert tool.version_of(clone) == "0.1.0"


def test_this_checkout_can_be_released():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    is_cut = not tool.section(changelog, "Unreleased")
    assert tool.notes(changelog, tool.version_of(ROOT) if is_cut else "Unreleased")


def wheel(folder, name, kernels):
    with ZipFile(folder / name, "w") as made:
        for level in kernels:
            made.writestr(f"chatapp/engine/kernels/kernels-{level}-0.so", "")
    return folder / name


def test_wheels_are_checked_before_they_are_published(tmp_path):
    levels = ("baseline", "avx2", "avx512")
    tool.check_wheel(wheel(tmp_path, "glassgpt-0.2.0-py3-none-win_amd64.whl", levels), "0.2.0")
    arm = "glassgpt-0.2.0-py3-none-macosx_11_0_arm64.whl"
    tool.check_wheel(wheel(tmp_path, arm, ("baseline",)), "0.2.0")
    for name, kernels, sentence in (
        ("glassgpt-0.1.0-py3-none-win_amd64.whl", levels, "expected glassgpt 0.2.0"),
        ("glassgpt-0.2.0-cp311-cp311-win_amd64.whl", levels, "any Python"),
        ("glassgpt-0.2.0-py3-none-any.whl", (), "holds 0 compiled kernels"),
    ):
        with pytest.raises(tool.Refused, match=sentence):
            tool.check_wheel(wheel(tmp_path, name, kernels), "0.2.0")
