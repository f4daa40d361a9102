"""Passages whose last word the text before them tells, where no copy of LAMBADA is at hand.

    python tests/benchmarks/last_words.py data/kept_out passages.jsonl
    chatapp eval --lambada passages.jsonl

Of stories that the bundled model was not taught (`python -m finetune.bundled_model DATA data`):
five sentences in a row of 50 words or more. LAMBADA (Paperno et al. 2016) had people choose those
whose last word can be guessed from the whole and not from the last sentence. Here it is a word of
four letters or more in small letters that stands before the last sentence and nowhere else in it,
as most of theirs do; people looked at none, so figures are not those of LAMBADA.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = ("short_stories", "fairytale_qa")
SENTENCES = 5
WORDS = 50

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def passages(text: str) -> Iterator[str]:
    """The passages of a story that end in such a word, none in two of them."""
    sentences = _SENTENCE_END.split(text)
    start = 0
    while start + SENTENCES <= len(sentences):
        *context, last = sentences[start : start + SENTENCES]
        words = re.findall(r"[\w']+", last)
        before = re.findall(r"[\w']+", " ".join(context))
        target = words[-1] if words else ""
        is_told = re.fullmatch(r"[a-z]{4,}", target) and target in before
        if is_told and target not in words[:-1] and len(before) + len(words) >= WORDS:
            yield " ".join([*context, last]).rstrip(".!?\"' ")
            start += SENTENCES
        else:
            start += 1


def main(kept_out: Path, out: Path) -> None:
    """Write the passages of all stories that were kept out."""
    lines = []
    for name in SOURCES:
        for line in (kept_out / f"{name}.jsonl").read_text("utf-8").splitlines():
            story = json.loads(line).get("text", "")
            lines += [json.dumps({"input": passage}) for passage in passages(story)]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{out}: {len(lines)} passages")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
