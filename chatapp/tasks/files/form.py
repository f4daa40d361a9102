"""The layout of a prompt file as templates with named fields.

    example = "'{text}': {label}"     a demonstration; its last field is the answer
    query   = "'{text}':"             what is put to the model; without it, the example up to its
                                      answer

A field in braces is a column of the pool; `{instruction}` is the file's own instruction. `{{` and
`}}` are braces. The two prefixes of a prompt file are the short form of the same thing: "Email: "
and "Class:" make the example "Email: {input}\\nClass: {output}". There,

- the line break is left out when the output prefix is empty or begins with white space of its
  own: " =>" gives `cheese => fromage` on one line;
- the space is left out when the output prefix ends in a line break. Spaces at the end of an
  output prefix mean nothing.

Invariant: a template is parsed once, when its file is read. Values are put between its literals and
never read again, so that braces, quotes and markup in data are plain characters.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chatapp.common.userfiles import quoted
from chatapp.prompting.messages import Kind, Segment
from chatapp.rows.examples import Columns, Example

INSTRUCTION = "instruction"
"""The name of the field that stands for the instruction of the file."""

_PIECE = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|(?P<stray>[{}])|[^{}]+")


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """A place in a template where a value goes."""

    name: str


@dataclass(frozen=True, slots=True)
class Template:
    """Literals and fields in the order in which they are printed."""

    pieces: tuple[str | FieldPlace, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, each as often as it occurs."""
        return tuple(piece.name for piece in self.pieces if isinstance(piece, FieldPlace))

    def up_to_field(self, name: str) -> "Template":
        """The part before the first field of this name."""
        return Template(self.pieces[: self.pieces.index(FieldPlace(name))])

    @property
    def ending(self) -> str:
        """The literal that it ends in; empty where it ends in a field."""
        last = self.pieces[-1] if self.pieces else ""
        return last if isinstance(last, str) else ""


@dataclass(frozen=True, slots=True)
class Form:
    """How a prompt file lays out its items.

    example: a demonstration. query: what is put to the model. turn: an input as a turn of a chat.
    channel: an example with its answer first, whose last field is the input; None where the
        layout does not say how. output: the field of the answer. lead: the white space between a
        query and its answer.
    """

    example: Template
    query: Template
    turn: Template
    channel: Template | None
    output: str
    lead: str

    @property
    def columns(self) -> Columns:
        """What the rows of a pool have to hold."""
        names = dict.fromkeys((*self.query.fields, *self.example.fields))
        inputs = tuple(name for name in names if name not in (self.output, INSTRUCTION))
        return Columns(inputs, self.output)

    @property
    def query_fields(self) -> tuple[str, ...]:
        """The fields of an input in a query, each as often as it occurs."""
        return tuple(name for name in self.query.fields if name != INSTRUCTION)

    @property
    def announcement(self) -> str:
        """What precedes an answer without its input: the last line before it, or "Answer:"."""
        lines = self.query.ending.split("\n")
        return lines[-1].strip() or "Answer:"

    @property
    def places_instruction(self) -> bool:
        """Whether the layout itself says where the instruction stands."""
        return INSTRUCTION in self.query.fields + self.example.fields


def short_form(input_prefix: str, output_prefix: str) -> Form:
    """The form that two prefixes stand for."""
    announced = output_prefix.rstrip(" ")
    input_field, answer = FieldPlace("input"), FieldPlace("output")
    lead = "" if announced.endswith("\n") else " "
    inline = not announced or announced[0].isspace()
    marker = announced if inline else "\n" + announced
    query = Template((input_prefix, input_field, marker + lead))
    first = announced.lstrip()
    return Form(
        example=Template((*query.pieces, answer)),
        query=query,
        turn=Template((input_prefix, input_field)),
        channel=Template((first + lead if first else "", answer, "\n" + input_prefix, input_field)),
        output="output",
        lead=lead,
    )


def named_form(example: str, query: str) -> Form:
    """The form that the templates of a prompt file stand for; one of them may be empty.

    Raises FormError that names the key at fault.
    """
    query_template = _parse(query, "query") if query else None
    if not example:
        assert query_template is not None
        space = " " if query_template.ending == query_template.ending.rstrip() else ""
        between = [space] if space else []
        shown = Template((*query_template.pieces, *between, FieldPlace("output")))
    else:
        shown = _parse(example, "example")
    named = [name for name in shown.fields if name != INSTRUCTION]
    if not named:
        raise FormError("example", "holds no field, such as {label}, for the answer")
    output = named[-1]
    if set(named) == {output}:
        raise FormError("example" if example else "query", "holds no field for an input")
    query_template = query_template or shown.up_to_field(output)
    _check_query(query_template, shown, output)
    return Form(
        shown, query_template, query_template, None, output, _lead(shown, query_template, output)
    )


class FormError(ValueError):
    """A template that cannot be used. key: of the prompt file."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def _check_query(query: Template, example: Template, output: str) -> None:
    if output in query.fields:
        raise FormError("query", f"holds {quoted(f'{{{output}}}')}, which is the answer")
    known = [*dict.fromkeys(example.fields), INSTRUCTION]
    for name in query.fields:
        if name not in known:
            raise FormError(
                "query", f"holds {quoted(f'{{{name}}}')}, a field that 'example' does not have"
            )


def _lead(example: Template, query: Template, output: str) -> str:
    """White space before an answer: as the query ends in, else as in an example."""
    if query.ending != query.ending.rstrip():
        return query.ending[len(query.ending.rstrip(" \t")) :]
    before = example.up_to_field(output).ending
    return before[len(before.rstrip(" \t")) :]


def _parse(text: str, key: str) -> Template:
    pieces: list[str | FieldPlace] = []
    literal = ""
    for match in _PIECE.finditer(text):
        if match["stray"]:
            raise FormError(
                key,
                f"holds a single {match[0]} at character {match.start() + 1}; a field is written "
                f"as {{name}}, and a brace as {match[0] * 2}",
            )
        if match["name"] is None:
            literal += match[0][0] if match[0] in ("{{", "}}") else match[0]
            continue
        name = match["name"]
        if not name.strip() or name != name.strip():
            raise FormError(
                key, f"holds {quoted(match[0])}, which is not the name of a field in braces"
            )
        pieces += [literal, FieldPlace(name)] if literal else [FieldPlace(name)]
        literal = ""
    return Template((*pieces, *([literal] if literal else [])))


def fill(
    template: Template,
    item: Example,
    form: Form,
    instruction: str,
    input_kind: Kind,
    output_kind: Kind,
) -> Iterator[Segment]:
    """A template with the values of an item in its fields, not yet in its final segments.

    input_kind, output_kind: of the fields and of the answer.
    """
    named = form.channel is None
    for piece in template.pieces:
        if isinstance(piece, str):
            yield Segment("marker", piece)
        elif piece.name == form.output:
            yield Segment(output_kind, item.output.strip(), piece.name if named else "")
        elif piece.name == INSTRUCTION:
            yield Segment("instruction", instruction)
        else:
            yield Segment(input_kind, item.value(piece.name).strip(), piece.name if named else "")


def join(parts: Iterable[Segment]) -> list[Segment]:
    """Parts of a prompt as segments that meet at white space, and begin with it.

    What stands beside a value without white space between, such as its quotes, belongs to the
    segment of the value. So the segments, encoded one by one, give the tokens of the whole text:
    GPT-2's tokenizer begins a new piece at white space as well. White space at the very end is
    kept only when it holds a line break.
    """
    segments: list[Segment] = []
    space = ""
    for part in parts:
        whole = space + part.text
        body = whole.rstrip(" \t\r\n")
        space = whole[len(body) :]
        if body:
            _add(segments, Segment(part.kind, body, part.name))
    if "\n" in space:
        segments.append(Segment("marker", space.rstrip(" \t")))
    return segments


def _add(segments: list[Segment], new: Segment) -> None:
    if not segments or new.text[0].isspace():
        segments.append(new)
        return
    last = segments.pop()
    if last.kind == new.kind == "marker" or "marker" not in (last.kind, new.kind):
        segments.append(Segment(new.kind, last.text + new.text, new.name))
    elif new.kind == "marker":
        end = len(re.split(r"[ \t\r\n]", new.text, maxsplit=1)[0])
        segments.append(Segment(last.kind, last.text + new.text[:end], last.name))
        if end < len(new.text):
            segments.append(Segment("marker", new.text[end:]))
    else:
        words = last.text.rstrip(" \t\r\n")
        begin = len(words) - len(re.split(r"[ \t\r\n]", words)[-1])
        head = last.text[:begin].rstrip(" \t\r\n")
        if head:
            segments.append(Segment("marker", head))
        glued = Segment(new.kind, last.text[len(head) :] + new.text, new.name)
        if head:
            segments.append(glued)
        else:
            _add(segments, glued)
