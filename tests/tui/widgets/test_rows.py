"""Keys with their words, in rows."""

from chatapp.tui.widgets.rendered import in_rows


def test_no_key_is_in_two_rows():
    keys = "← → choose · Tab: scroll the layers · s saves"
    assert in_rows(keys, 45) == keys
    assert in_rows(keys, 36) == "← → choose · Tab: scroll the layers\ns saves"
    assert in_rows(keys, 12) == "← → choose\nTab: scroll the layers\ns saves"
