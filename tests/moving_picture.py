"""Screens of the program, each for its time, as one SVG that moves without a script.

Invariant: what stays on the screen is drawn once, and texts above all backgrounds; where nothing
can move, or a reader wants nothing to, the last screen is seen.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

_NAMESPACE = "http://www.w3.org/2000/svg"
_RULE = re.compile(r"\.(terminal-\d+-r\d+) \{ (.*?) \}")
_STYLE = """
.screen { font: 20px Fira Code, monospace; font-variant-east-asian: full-width }
.title { font: bold 18px sans-serif }
@media (prefers-reduced-motion: reduce) { g { animation: none !important } }
"""

Span = tuple[int, int]
"""The first frame in which something is seen, and the first after it in which it is not."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A screen as Textual exports it, and how long it is to be seen."""

    svg: str
    seconds: float


def assemble(frames: Sequence[Frame]) -> str:
    """One SVG of all frames, which begins anew after the last. A single frame stands still."""
    ElementTree.register_namespace("", _NAMESPACE)
    roots = [ElementTree.fromstring(frame.svg) for frame in frames]
    classes: dict[str, str] = {}
    shapes = [_shapes(root, classes) for root in roots]
    picture = roots[-1]
    picture.remove(_child(picture, "defs"))
    _child(picture, "text").set("class", "title")
    screen = _screen(picture)
    for shape in list(screen):
        screen.remove(shape)
    screen.attrib.pop("clip-path")
    screen.set("class", "screen")
    moving: set[Span] = set()
    for kind in ("rect", "text"):
        for span, drawn in _by_span([shapes_of[kind] for shapes_of in shapes]).items():
            group = SubElement(screen, "g")
            group.extend(map(ElementTree.fromstring, drawn))
            if span != (0, len(frames)):
                moving.add(span)
                group.set("class", _name(span))
    rules = [f".{name} {{ {rule} }}" for rule, name in classes.items()]
    ends = list(accumulate(frame.seconds for frame in frames))
    rules += [_movement(span, ends) for span in sorted(moving)]
    _child(picture, "style").text = _STYLE + "\n".join(rules) + "\n"
    return ElementTree.tostring(picture, encoding="unicode")


def _child(element: Element, name: str) -> Element:
    child = element.find(f"{{{_NAMESPACE}}}{name}")
    assert child is not None
    return child


def _screen(root: Element) -> Element:
    """What stands inside the window's frame."""
    return next(child for child in root if child.get("clip-path"))


def _shapes(root: Element, classes: dict[str, str]) -> dict[str, list[str]]:
    """The backgrounds (rect) and texts of a frame, in classes that all frames share.

    classes: the name for each rule of CSS; new ones are put into it.
    """
    rules = dict(_RULE.findall(_child(root, "style").text or ""))
    screen = _screen(root)
    texts = []
    for text in _child(screen, "g"):
        if (text.text or "").strip():
            rule = rules[text.get("class", "")]
            text.set("class", classes.setdefault(rule, f"c{len(classes)}"))
            text.attrib.pop("clip-path")
            texts.append(text)
    backgrounds = screen.findall(f"{{{_NAMESPACE}}}rect")
    return {"rect": _written(backgrounds), "text": _written(texts)}


def _written(elements: Sequence[Element]) -> list[str]:
    for element in elements:
        element.tail = None
    return [ElementTree.tostring(element, encoding="unicode") for element in elements]


def _by_span(frames: Sequence[Sequence[str]]) -> dict[Span, list[str]]:
    """The shapes that are seen from one frame to another, for each such span."""
    seen: dict[str, list[int]] = {}
    for number, shapes in enumerate(frames):
        for shape in shapes:
            seen.setdefault(shape, []).append(number)
    spans: dict[Span, list[str]] = {}
    for shape, numbers in seen.items():
        for span in _stretches(numbers):
            spans.setdefault(span, []).append(shape)
    return spans


def _stretches(numbers: Sequence[int]) -> Iterator[Span]:
    """Where rising numbers follow one another without a gap."""
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        stretch = [number for _, number in group]
        yield stretch[0], stretch[-1] + 1


def _name(span: Span) -> str:
    return "s{}-{}".format(*span)


def _movement(span: Span, ends: Sequence[float]) -> str:
    """The CSS that shows a group in its span alone. ends: of the frames, in seconds."""
    begin, end = (100 * (0.0, *ends)[number] / ends[-1] for number in span)
    is_last = span[1] == len(ends)
    steps = "0% { visibility: hidden } " if span[0] else ""
    steps += f"{begin:.2f}% {{ visibility: visible }}"
    steps += "" if is_last else f" {end:.2f}% {{ visibility: hidden }}"
    name, rest = _name(span), "visible" if is_last else "hidden"
    return (
        f".{name} {{ visibility: {rest}; animation: {name} {ends[-1]:.2f}s step-end infinite }}\n"
        f"@keyframes {name} {{ {steps} }}"
    )
