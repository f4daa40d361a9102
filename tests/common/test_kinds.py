"""Kinds of faults that came back by another entrance: for each one mechanism, and all its users.

Each test walks the whole product by its syntax. A new user of the bare form fails here; the
mechanism's docstring says what it bounds. `kinds.toml` names the exceptions, with their reasons.
"""

import ast
import re
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FILES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for room in ("chatapp", "finetune")
    for path in (ROOT / room).rglob("*.py")
    if "bundled_model" not in path.parts and "recipes" not in path.parts
}
"""The recipes read data that their authors publish, on the maintainer's machine."""

KINDS = tomllib.loads((Path(__file__).parent / "kinds.toml").read_text())


def calls(names):
    """The calls of functions and methods whose dotted end a pattern matches, with their file."""
    for file, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and re.fullmatch(names, name := ast.unparse(node.func)):
                yield file, node, name


def users(names):
    return {file for file, _, _ in calls(names)}


def test_json_is_read_by_one_function():
    """`parse_json` raises ValueError for everything, so no `except` can name too little."""
    own = {"chatapp/common/foreign.py", "finetune/objectives/reward_worker.py"}  # a script
    assert users(r"json\.loads?") == own
    assert len(list(calls("parse_json"))) > 40


SHIPPED = re.compile(r"__file__|files\(|_TABLE|SOURCE|^ITEMS$|^\(folder / .page\.(css|js)")


def test_files_are_opened_by_one_room():
    """Who opens a path itself waits for a pipe without end, or reads a device."""
    found = set()
    for file, node, name in calls(r"(.*\.)?(open|read_text|read_bytes)"):
        receiver, _, method = name.rpartition(".")
        mode = node.args[0] if node.args else None
        is_mode = isinstance(mode, ast.Constant) and re.fullmatch(r"[rwxabt+]+", str(mode.value))
        is_named_so = bool(receiver) and method == "open" and not is_mode and receiver != "gzip"
        if not (is_named_so or SHIPPED.search(receiver) or name in ("read_text", "read_bytes")):
            found.add(file)
    assert found == KINDS["opened"].keys()


def test_folders_are_made_by_one_function():
    """`mkdir(parents=True, mode=…)` leaves those above to everybody; `make_private` does not."""
    for file, node, _ in calls(r".*\.(mkdir|makedirs)"):
        options = {keyword.arg for keyword in node.keywords}
        assert "mode" not in options or file == "chatapp/common/userfiles.py", file
    assert len(list(calls("make_private"))) > 8


_PACKED = r"gzip|bz2|lzma|tarfile|zipfile|pyarrow.*|pypdf|brotli|zstandard|compression.*"


def test_decoded_bytes_are_counted():
    found = users(r"np\.load|.*\.decompress|.*unpack_archive|zlib\.\w+")
    found |= users(r"httpx2\.(Async)?Client|urlopen|requests\..*|aiohttp\.Client.*")
    for file, tree in FILES.items():
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if any(re.fullmatch(_PACKED, name) for name in names):
                found.add(file)
    assert found | {"chatapp/common/web.py"} == KINDS["decoders"].keys()
    assert len(users("web_client")) == 3
    whole = {file for file, node, _ in calls(r".*\.read") if not node.args}
    assert whole == KINDS["whole"].keys()


def test_what_several_processes_write_is_locked():
    own = r"(write|change)_whole|write_named|whole_file|open_own|np\.save.*|json\.dump"
    found = users(rf"{own}|os\.(replace|rename|link)|.*\.write_(text|bytes)")
    for file, node, name in calls(r".*\.(rename|replace)|(.*\.)?(fd)?open"):
        mode = next((part for part in node.args[:2] if isinstance(part, ast.Constant)), None)
        writes = mode is not None and re.fullmatch(r"[wxa][bt+]*", str(mode.value))
        is_moved = name.endswith("rename") or (name.endswith("replace") and len(node.args) == 1)
        if writes or (is_moved and not node.keywords):
            found.add(file)
    known = {file for files in KINDS["writers"].values() for file in files.split()}
    assert found - {"chatapp/common/userfiles.py"} == known
    assert users("locked|hold|change_whole") - {"chatapp/common/userfiles.py"} == {
        *KINDS["writers"]["locked"].split(),
        "finetune/training/checkpoints.py",
    }
    hub = "chatapp/engine/models/fetching.py"  # has its own locks
    assert users(".*FileLock") == {"chatapp/common/userfiles.py", hub}


def test_queues_have_a_bound():
    found = set()
    for file, node, name in calls(r"(.*\.)?(Simple|Lifo|Priority)?Queue(\[.*\])?|(.*\.)?deque"):
        is_bounded = node.keywords if name.endswith("deque") else node.args
        if not is_bounded:
            found.add(file)
    assert found == KINDS["unbounded"].keys()
    for file, node, _ in calls(r".*create_memory_object_stream.*"):
        assert node.args, file


def test_processes_are_started_by_one_room():
    """A program of others ends with its call only below a supervisor."""
    pattern = r"subprocess\.(Popen|run|check_output|call)|os\.(fork|system|popen|exec.*|spawn.*)"
    assert users(pattern) <= KINDS["starters"].keys()
    assert users("exec|eval") == {"chatapp/dialogue/tools/python.py"}


def test_times_are_read_by_one_function():
    """`local_time` takes any number of a damaged file."""
    assert users(r".*fromtimestamp|time\.(localtime|gmtime)") == {"chatapp/common/foreign.py"}


def test_the_clock_is_read_for_the_time_of_day_alone():
    """It may jump: what waits or gives up reads `time.monotonic`."""
    clocks = r"(time\.)?(time|time_ns|strftime|ctime)|.*\.(now|today|utcnow)"
    found = users(clocks)
    for file, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("st_mtime"):
                found.add(file)
    assert found == KINDS["clock"].keys()


def test_lists_are_drawn_by_one_class():
    """`Options` has a height at every width; Textual's own ends the program where it has none."""
    assert users(r"(.*\.)?(OptionList|SelectionList)") == set()


MEANS = {
    "items, or labels answered or right, 0–1": "metrics:_mean_best metrics:wilson metrics:macro_f1 "
    "metrics:_over_items metrics:_variances report:Result report:Measured.mean_of "
    "report:Measured.majority language_modelling:lambada heads:head_figures",
    "runs or orders": "experiment:_spread metrics:estimate metrics:crossed_interval "
    "metrics:difference compare:mean_curve compare:spread",
    "pairs, a share of them 0–1": "experiments:preference pairs:PairObjective.losses.compute "
    "pairs:PairEvaluator.measure steering:make_direction",
    "drawn tokens, 0–1": "generation:Continuation._end text_views:Tokens.reading",
    "all weights, votes, or prompts without content, 0–1": "answering:softmax "
    "answering:Answerer._by_vote answering:probabilities",
    "|λ|, -1–1; positions that a measure counts": "heads:copying_scores heads:Sums.means",
    "labels": "l3:l3_losses l3:decoder_losses masked:Masked.losses architectures:Segments.losses "
    "distillation:Distillation.losses.compute",
    "bytes": "l3:ChatEvaluator.measure forgetting:_nats_a_byte",
    "tokens of a reply": "protocol:score_continuation export:_check pairs:replies_of "
    "pairs:Dpo.of_replies pairs:Simpo.log_probability pairs:Orpo.of_replies grpo:Grpo.losses.mean",
    "replies, or those of a kind": "grpo:Grpo.losses.compute grpo:Grpo.preview kto:Kto.losses "
    "grpo:Grpo.preview_figures kto:Kto.losses.compute",
    "steps, or what they are means over": "objective:Objective.means",
    "examples or rows": "heads:_spec heads:HeadObjective.losses.compute "
    "heads:HeadObjective.preview building:timed_steps "
    "architectures:Segments.loss_with_memory answering:Answerer._labelled",
    "no figure": "summarize:_pieces reader:_read sampling:_nucleus kto:weights "
    "encoders:SentenceEncoder.encode quality:_train feedback:write_configuration "
    "forgetting:measure_forgetting display:_filled",
}
"""What each mean, rate and share is over: the place by file and function; see `ranges.RANGES`."""

DIVISORS = re.compile(
    r"len\(.*\)|.*\.clamp\(min=1.*|n(_\w+)?|.*total.*|.*count.*|.*_steps\w*|good|bad|size|weight"
)


def means(node, names=()):
    """The functions in which something is divided by how many there are."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        names = (*names, node.name)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("fmean", "mean", "np.mean"):
        yield ".".join(names)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        right = node.right
        while isinstance(right, ast.Call) and ast.unparse(right.func) in ("float", "max"):
            right = right.args[-1]
        if DIVISORS.fullmatch(ast.unparse(right)):
            yield ".".join(names)
    for child in ast.iter_child_nodes(node):
        yield from means(child, names)


def test_each_mean_has_a_known_divisor():
    """A sum once had a step more than its divisor, and a share was 1.996."""
    found = {f"{Path(file).stem}:{name}" for file, tree in FILES.items() for name in means(tree)}
    assert found == set(" ".join(MEANS.values()).split())


def patterns():
    """Every constant regular expression with its flags, and how it is applied."""
    found = {}
    for file, node, name in calls(
        r"re\.(compile|sub|fullmatch|match|search|split|findall|finditer)"
    ):
        pattern = node.args[0]
        if not (isinstance(pattern, ast.Constant) and isinstance(pattern.value, str)):
            continue
        flags = 0
        for part in (*node.args[1:], *(keyword.value for keyword in node.keywords)):
            for flag in re.findall(r"re\.([A-Z]+)", ast.unparse(part)):
                flags |= getattr(re, flag)
        how = name.removeprefix("re.")
        if how == "compile":
            text = ast.unparse(FILES[file])
            target = re.search(rf"(\w+) = {re.escape(ast.unparse(node))}", text)
            own = re.findall(rf"\b{target[1]}\.(\w+)\(", text) if target else []
            how = "search" if set(own) - {"match", "fullmatch"} or not own else own[0]
        how = how if how in ("match", "fullmatch") else "search"
        found[f"{file}:{node.lineno}"] = (pattern.value, flags, how)
    return found


def attacks(pattern):
    """Texts that make a backtracking search try each of its places to the end."""
    literal = sorted({*re.sub(r"\\.|[\[\]()|?*+^$]", "", pattern)} | {*"a0 \n"})
    units = [*literal, *(first + second for first in literal for second in "a0 \n")]
    for unit in units[:25]:
        yield unit * (_LENGTH // len(unit)) + "\x00"


_LENGTH = 8_000
_SECONDS = 0.2
"""Linear ones need a hundredth of it."""


def test_regular_expressions_take_linear_time():
    found = patterns()
    assert len(found) > 80
    for place, (pattern, flags, how) in found.items():
        apply = getattr(re.compile(pattern, flags), how)
        for text in attacks(pattern):
            began = time.process_time()
            apply(text)
            assert time.process_time() - began < _SECONDS, (place, pattern, text[:20])
