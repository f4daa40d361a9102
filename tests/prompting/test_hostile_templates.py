"""Chat templates that try to burn time or memory: each ends in a text or a sentence."""

import random
import re
from collections import Counter

import pytest

from chatapp.prompting.chat_template import ChatTemplate, ChatTemplateError
from chatapp.prompting.messages import Message

CHAT = [Message("system", "Be brief."), Message("user", "a walrus " * 50)]

TWICE = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
GROWN = "{% set n = namespace(x=[messages]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}"

BURNING = {
    "a macro that calls itself twice": TWICE + "{{ f(60) }}",
    "the name of the counter is taken": "{% set _count_step = dict %}{% set no_text = dict %}"
    "{% macro g(no_text, _count_step) %}{% for a in range(9999) %}{% for b in range(9999) %}"
    "{% endfor %}{% endfor %}{% endmacro %}{{ g(dict, dict) }}",
    "a loop within itself": "{% for i in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
    "a block within itself": "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
    "a caller": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    "{% macro g(n) %}{% call f() %}{% if n %}{{ g(n - 1) }}{% endif %}{% endcall %}{% endmacro %}"
    "{{ g(60) }}",
    "join": "{{ (['a' * 900000] * 1000) | join('a' * 900000) }}",
    "join of a text": "{% set x = 'a' * 900000 %}{{ x.join(x) }}",
    "format": "{{ ('{0}' * 100000).format('a' * 900000) }}",
    "a width": "{{ '{:>{w}}'.format('a', w=10 ** 12) }}",
    "remainder": "{{ ('%s' * 100000) % ((('a' * 900000),) * 100000) }}",
    "replace": "{% set x = 'a' * 900000 %}{{ x | replace('a', x) }}",
    "replace as a method": "{% set x = 'a' * 900000 %}{{ x.replace('a', x) }}",
    "indent": "{{ ('\n' * 900000) | indent(900000, true, true) }}",
    "map": "{{ (['a' * 900000] * 9000) | map('upper') | map('center', 900000) | list }}",
    "lipsum": "{{ lipsum(900000) }}",
    "powers": "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}"
    "{% endfor %}{{ n.x }}",
    "nested lists": GROWN + "{% endfor %}{{ n.x }}",
    "nested lists as JSON": GROWN + "{% endfor %}{{ n.x | tojson }}",
    "tabs": "{{ ('\t' * 900000).expandtabs(900000) }}",
    "characters": "{% set x = messages[-1].content * 9999 %}{{ x | list | length }}",
    "sums": "{{ ([[1]] * 900000) | sum(start=[]) | length }}",
    "deep JSON": "{{ messages | tojson(indent=900000) }}",
    "slices": "{% set n = namespace(x=[]) %}{% set x = messages[-1].content * 2000 %}"
    "{% for i in range(9999) %}{% set n.x = n.x + [x[1:]] %}{% endfor %}",
}


@pytest.fixture
def hurry(monkeypatch):
    """A tenth of the usual time."""
    monkeypatch.setattr("chatapp.prompting.chat_template._MOST_SECONDS", 0.3)


def outcome(source):
    """The text that a template writes, or the sentence that says why it writes none."""
    try:
        segments = ChatTemplate(source, "test").render(CHAT)
    except ChatTemplateError as error:
        return str(error)
    return "".join(segment.text for segment in segments)


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("name", BURNING)
def test_a_template_that_burns_time_or_memory_is_given_up(name):
    assert outcome(BURNING[name]).startswith("test: the chat template ")


def test_the_next_template_works_after_one_that_was_given_up(hurry, monkeypatch):
    assert outcome(TWICE + "{{ f(60) }}").startswith("test: the chat template ")
    monkeypatch.undo()
    assert outcome("{{ messages[1].content[2:8] }}{{ messages[0].content }}") == "walrusBe brief."


GROWTH = """x ~ x|x + x|x * 999|x | join(x)|x.join([x] * 999)|x | replace('a', x)|x.replace('', x)
x | indent(99999)|x | center(999999)|[x] * 99999|x | list|[x, x] | map('upper') | join|lipsum(999)
('%s' * 999) % ((x,) * 999)|x | wordwrap(1)|x | tojson(indent=99999)|x | string | urlize
x.expandtabs(99999)|x | batch(1) | list|x | pprint|x | string | striptags|x.split('a')
x | unique | join|x[::-1] ~ x[1:]|dict(a=x, b=[x, x]) | tojson|x.title().swapcase() * 9
x | e | e | e|x | urlencode | urlencode|x.zfill(999999)|x.encode().hex()|x.splitlines() * 999
x | reverse | string * 9|x.format(x, x)|x.translate({97: x})|x.partition('a') | join(x)|x | sort
x | dictsort|x | xmlattr|x | truncate(999999)|x | sum|x | groupby('a') | list|[[x]] * 9999"""
SHAPES = (
    "{% set n = namespace(x=messages[-1].content) %}{% for i in range(99999) %}{% set x = n.x %}"
    "{% set n.x = EXPRESSION %}{% endfor %}{{ n.x }}",
    "{% macro f(x, i) %}{% set x = EXPRESSION %}{{ f(x, i) }}{{ f(x, i) }}{{ x }}{% endmacro %}"
    "{{ f(messages[-1].content, 0) }}",
    "{% set x = messages[-1].content %}" + "{% set x = EXPRESSION %}" * 30 + "{{ x }}",
    "{% set x = 'a<!-- http://b ' * 9999 %}{% for m in messages recursive %}"
    "{% set x = EXPRESSION %}{{ x }}{{ loop(messages) }}{% endfor %}",
    "{% block b %}{% set x = 'ab\n\t' * 99999 %}{% filter upper %}{{ EXPRESSION }}{% endfilter %}"
    "{{ self.b() }}{{ self.b() }}{% endblock %}",
)


def hostile_templates(seed):
    """Programs that make texts, lists and numbers grow, in loops and in what calls itself."""
    dice = random.Random(seed)
    growth = GROWTH.replace("\n", "|").replace(" | ", "\0").split("|")
    while True:
        source = dice.choice(SHAPES)
        while "EXPRESSION" in source:
            expression = dice.choice(growth).replace("\0", " | ")
            if dice.random() < 0.3:
                expression = f"({expression}) ~ ({dice.choice(growth)})".replace("\0", " | ")
            source = source.replace("EXPRESSION", expression, 1)
        yield source


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("number", range(5))
def test_hostile_templates_end(number):
    assert outcome(next(hostile_templates(number)))


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_three_hundred_hostile_templates_end():
    templates = hostile_templates(2026)
    outcomes = Counter(
        re.sub(r".*chat template (\w+ \w+ \w+).*", r"\1", outcome(next(templates))[-200:])[:40]
        for _ in range(300)
    )
    assert outcomes.total() == 300
