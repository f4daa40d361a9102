"""The look: one theme of our own, and the right one for terminals of few colours.

Keep: a colour stands here and nowhere else; widgets name what the theme calls it.
"""

from textual.theme import Theme

CALM = Theme(
    name="chatapp",
    primary="#5fb3a1",
    accent="#5fb3a1",
    secondary="#8aa4b8",
    warning="#d9a55b",
    error="#d9736f",
    success="#7fb069",
    foreground="#d5d9de",
    background="#15181c",
    surface="#1c2026",
    panel="#1c2026",
    variables={
        "border": "#5fb3a1",
        "border-blurred": "#39414a",
        "footer-background": "#15181c",
        "block-cursor-text-style": "none",
    },
)
FEW_COLORS = "ansi-dark"
