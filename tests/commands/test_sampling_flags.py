"""Flags of sampling parameters with values that are no numbers: refused in our own words."""

import pytest

from chatapp.common.settings import SettingsError, load_settings


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", "hot", "--temperature: temperature is 'hot'; expected a number"),
        ("top_k", "1.5", "--top-k: top_k is '1.5'; expected a whole number"),
        ("top_p", "2", "--top-p: top_p is 2.0; expected above 0 and at most 1"),
    ],
)
def test_a_flag_that_is_no_number(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=f"^{words}"):
        load_settings({name: value})


def test_a_flag_is_read_as_the_number_that_it_is() -> None:
    settings = load_settings({"temperature": "0.5", "top_k": "3", "model": "7"})
    assert (settings.sampling.temperature, settings.sampling.top_k) == (0.5, 3)
    assert settings.model == "7"
