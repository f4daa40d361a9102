"""What `finetune check` shows of rows."""

import pytest

from finetune.objectives.rows import short_middling_long


@pytest.mark.parametrize(
    ("rows", "shown"), [("a", "a"), ("ab", "ab"), ("abc", "abc"), ("abcdefghij", "bfj")]
)
def test_of_few_rows_none_is_shown_twice(rows, shown):
    assert short_middling_long(rows) == list(shown)
