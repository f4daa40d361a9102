"""The prompts of the literature, byte for byte as `run --show-prompt` prints them."""

import json
from pathlib import Path

import pytest
from fakes import ScriptedModel
from program import Run, UseModel

PROMPTS = Path(__file__).parents[2] / "prompts"
SHOWN = {
    ("news", '{"title": "Rain", "subtitle": "It {is} wet"}', "1"): (
        "Title: Lighthouse Keeper's Cat Gets a Pension\n"
        "Subtitle: After fourteen years of catching mice, Admiral retires to a cottage\n"
        "Article: The cat Admiral has left the lighthouse of Skerry Point for the last time. The "
        "harbour board voted on Monday to pay for his fish until the end of his days. "
        '"He never missed a night," said Moira Tennant, the keeper. His successor, a black '
        "kitten, is still afraid of the foghorn.\n\n"
        "Title: Rain\nSubtitle: It {is} wet\nArticle:"
    ),
    ("word_in_a_sentence", '{"word": "plimmock", "kind": "a hat made of reeds"}', "1"): (
        'A "glimble" is a verb that means to polish something until it shines. An example of a '
        "sentence that uses the word glimble is:\n"
        "Before the guests arrived, Rosa glimbled every spoon in the house.\n\n"
        'A "plimmock" is a hat made of reeds. An example of a sentence that uses the word '
        "plimmock is:\n"
    ),
    ("hate_speech_named", "It's late.", "1"): (
        "Classify each sentence as sexist, racist or neither.\n"
        "'Women are simply too emotional to be trusted with a budget.': sexist\n"
        "'It's late.':"
    ),
    ("hate_speech_named --instruction off", "It's late.", "2"): (
        "'Women are simply too emotional to be trusted with a budget.': sexist\n"
        "'The new manager explained the figures well, and she answered every question.': neither\n"
        "'It's late.':"
    ),
    ("hate_speech_named", "It's late.", "0"): (
        "Classify each sentence as sexist, racist or neither.\n'It's late.':"
    ),
    ("hate_speech_zero", "It's late.", "0"): (
        "'It's late.'\nIs the text in quotes sexist? Answer yes or no:"
    ),
    ("email_from_notes", '{"notes": "late; sorry", "to": "Vera"}', "1"): (
        "Turn the notes into an email.\n\n"
        "Notes: meeting moved to Thursday 3 pm; bring the figures\nTo: Nina\nEmail:\n"
        "Dear Nina, our meeting has been moved to Thursday at 3 pm. Could you please bring the "
        "figures with you? Kind regards, Paul\n\n"
        "Notes: late; sorry\nTo: Vera\nEmail:\n"
    ),
    ("sql_comments", "All orders", "1"): (
        "-- customers (id, name, city, email)\n"
        "-- products (id, name, colour, price, stock)\n"
        "-- orders (id, customer_id, ordered_on, shipped_on, total)\n\n"
        "-- The names of all products that are sold out\n"
        "SELECT name FROM products WHERE stock = 0\n\n"
        "-- All orders\n"
    ),
    ("css_comments", "Lists have no bullets", "1"): (
        "/* All links are green */\na { color: green; }\n\n/* Lists have no bullets */\n"
    ),
    ("spreadsheet_rows", '{"river": "Thames", "country": "England", "sea": "North Sea"}', "1"): (
        "River | Country | Flows into | Length\n"
        "Rhine | Germany | North Sea | 1,230 km\n"
        "Thames | England | North Sea |"
    ),
    ("linear_equations", '{"equation": "4k = 12", "letter": "k"}', "2"): (
        "If x + 3 = 8, then x = 5\nIf 2y = 14, then y = 7\nIf 4k = 12, then k ="
    ),
    ("quoted_grammar", "They was happy.", "1"): (
        'Wrong: "She no like the rain." Right: "She does not like the rain."\n'
        'Wrong: "They was happy." Right: "'
    ),
}


@pytest.mark.parametrize("case", SHOWN, ids=lambda case: case[0])
def test_the_prompt_of_the_library_is_shown_byte_for_byte(
    run: Run, use_model: UseModel, case: tuple[str, str, str]
) -> None:
    name, text, shots = case
    use_model(ScriptedModel([" x"]))
    result = run("run", *name.split(), "--input", text, "--shots", shots, "--json")
    assert result.status == 0, result.err
    assert json.loads(result.out)["prompt"] == SHOWN[case]
    result = run("run", *name.split(), "--input", text, "--shots", shots, "--show-prompt")
    assert result.err.startswith(SHOWN[case])


@pytest.mark.parametrize(("name", "end"), [("unicorns", "a dozen"), ("prime_numbers", "17, 19,")])
def test_a_text_to_complete(run: Run, use_model: UseModel, name: str, end: str) -> None:
    (path,) = PROMPTS.rglob(f"{name}.txt")
    text = path.read_bytes().decode().removesuffix("\n")
    use_model(ScriptedModel([" 23"]))
    result = run("run", name, "--json")
    assert json.loads(result.out)["prompt"] == text
    assert end in text
    assert run("run", name, "--show-prompt").err.startswith(text + "\n")
