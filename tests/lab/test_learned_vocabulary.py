"""Learning follows the papers' formulas, and each tokenizer's steps end in its tokens."""

import time
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from chatapp.common.userfiles import UserError
from chatapp.engine.tokenizers import BPETokenizer, TransformersTokenizer
from chatapp.lab.vocabulary import learn_vocabulary, merge_steps, read_words

HUGS = Counter({"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5})

TEXTS = ("unhappiness naïve 😀 漢字", "  two  spaces\n\n", "", "a", "<|endoftext|> the the")


def test_the_first_merges_of_a_small_corpus():
    first = [(step.token, step.count) for step in learn_vocabulary(HUGS, "bpe", 3)]
    assert first == [("ug", 20), ("un", 16), ("hug", 15)]
    step = next(learn_vocabulary(HUGS, "wordpiece", 1))
    assert (step.pair, step.token, step.count) == (("##g", "##s"), "##gs", 5)
    assert step.score == pytest.approx(5 / (20 * 5))


@pytest.mark.parametrize("method", ["bpe", "wordpiece"])
def test_every_step_takes_the_best_pair(method):
    random = Random(0)
    words = Counter({"".join(random.choices("aab", k=random.randint(1, 9))): n for n in range(60)})
    mark = "##" if method == "wordpiece" else ""
    cuts = {word: [word[0], *(mark + each for each in word[1:])] for word in words}
    for step in learn_vocabulary(words, method, 40):
        tokens = Counter()
        pairs = Counter()
        for word, cut in cuts.items():
            tokens.update(dict.fromkeys(cut, 0))
            for token in cut:
                tokens[token] += words[word]
            for pair in pairwise(cut):
                pairs[pair] += words[word]
        scores = {
            (a, b): count if method == "bpe" else count / (tokens[a] * tokens[b])
            for (a, b), count in pairs.items()
            if count
        }
        assert step.count == pairs[step.pair]
        assert step.score == pytest.approx(max(scores.values())) == scores[step.pair]
        for word, cut in cuts.items():
            text = " ".join(cut)
            while f" {' '.join(step.pair)} " in f" {text} ":
                text = f" {text} ".replace(f" {' '.join(step.pair)} ", f" {step.token} ", 1).strip()
            cuts[word] = text.split()


@pytest.mark.parametrize("method", ["bpe", "wordpiece"])
def test_a_merge_takes_no_longer_than_its_pairs(method):
    word = "".join(Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=100_000))

    def seconds(merges):
        began = time.process_time()
        assert len(list(learn_vocabulary({word: 1}, method, merges))) == merges
        return time.process_time() - began

    assert seconds(20) < 6 * min(seconds(1), seconds(1))  # a merge of the whole word: 13 times


def test_the_steps_of_an_endless_word_are_refused(bpe):
    with pytest.raises(UserError, match="a word of this text has 30,001 characters"):
        merge_steps(BPETokenizer(bpe, 0), "Say " + "walrus" * 5_000)


def test_learning_ends_where_no_pair_is_left():
    assert [step.token for step in learn_vocabulary({"ab": 2, "c": 1}, "bpe", 10)] == ["ab"]


def test_a_file_is_a_text_or_a_list_of_counts():
    assert read_words("hug hug\npug 5 hug") == {"hug": 3, "pug": 1, "5": 1}
    assert read_words("hug 10\n\npug\t5\nhug 1\n") == {"hug": 11, "pug": 5}
    many = "9" * 5_000
    assert read_words(f"hug {many}") == {"hug": 1, many: 1}  # more than Python converts
    assert not read_words(" \n")


def steps_and_tokens(tokenizer, text):
    words = merge_steps(tokenizer, text)
    ends = [word.steps[-1].tokens if word.steps else word.tokens for word in words]
    ids = tokenizer.encode(text)
    return [token for end in ends for token in end], [tokenizer.piece(id) for id in ids]


@pytest.mark.parametrize("text", TEXTS)
def test_steps_of_byte_level_bpe_end_in_its_tokens(bpe, text):
    ends, tokens = steps_and_tokens(BPETokenizer(bpe, 0), text)
    assert ends == tokens
    assert "\ufffd" not in "".join(ends)


def test_each_step_is_the_earliest_merge(bpe):
    (word,) = merge_steps(BPETokenizer(bpe, 0), "there")
    before = word.tokens
    assert before == ("t", "h", "e", "r", "e")
    for step in word.steps:
        assert "".join(step.tokens) == "there"
        assert len(step.tokens) < len(before)
        assert step.token in step.tokens
        before = step.tokens


def bytes_fallback():
    """As Llama's: spaces are U+2581, and a character without a token is its bytes."""
    letters = ["▁", "a", "b", "▁a", "ab", "▁ab"]
    vocabulary = {"<s>": 0, "</s>": 1} | {f"<0x{n:02X}>": n + 2 for n in range(256)}
    vocabulary |= {token: 258 + n for n, token in enumerate(letters)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token=None)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.ByteFallback()
    return TransformersTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>")
    )


def test_bytes_of_sentencepiece():
    ends, tokens = steps_and_tokens(bytes_fallback(), "ab ab ïb")
    assert ends == tokens == ["ab", " ab", " ", "<C3>", "<AF>", "b"]


def test_wordpiece_takes_the_longest_token(tmp_path):
    names = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "un", "##hap", "##happi", "##ness", "a"]
    model = models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    library = BertTokenizer(tokenizer_object=tokenizer, eos_token="[SEP]")
    wrapped = TransformersTokenizer(library)
    words = merge_steps(wrapped, "a unhappiness")
    assert [step.token for step in words[1].steps] == ["un", "##happi", "##ness"]
    assert words[1].steps[0].tokens == ("un", "##happiness")
    ends, tokens = steps_and_tokens(wrapped, "a unhappiness xyz")
    assert ends == tokens


def test_tokenizers_without_merges_are_refused(bpe):
    model = models.Unigram([("</s>", 0.0), ("a", -1.0)], unk_id=0)
    unigram = TransformersTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model), eos_token="</s>")
    )
    with pytest.raises(UserError, match="Unigram tokenizer"):
        merge_steps(unigram, "a")
    added = tokenizers.Tokenizer.from_str(bpe.to_str())
    added.add_tokens(["naïve words"])
    with pytest.raises(UserError, match="as a whole"):
        merge_steps(BPETokenizer(added, 0), "naïve words")
