"""Pages: sections of figures as one HTML file that needs no network; `page.js` draws them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One figure at the top."""

    label: str
    value: str
    about: str = ""
    tone: Literal["", "bad"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a page."""

    id: str
    kind: Literal["gantt", "stack", "stragglers", "table", "outlooks", "text"]
    """What of `page.js` draws it."""
    title: str
    about: str = ""
    content: dict[str, Any] = field(default_factory=dict)
    """What that function is given."""
    remarks: tuple[str, ...] = ()
    """What is left out, assumed or unknown."""


def page(title: str, subtitle: str, cards: Sequence[Card], sections: Sequence[Section]) -> str:
    """The whole file."""
    data = {"cards": [asdict(card) for card in cards], "sections": [asdict(section) for section in sections]}
    # A name that holds "</script>" must not end the script.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{(_HERE / 'page.css').read_text()}</style></head>\n"
        f'<body><main><header><h1>{escape(title)}</h1><span class="subtitle">{escape(subtitle)}</span>'
        '<button id="theme" title="light or dark">◐</button></header></main>\n'
        f'<script id="data" type="application/json">{text}</script>\n'
        f"<script>\n{(_HERE / 'page.js').read_text()}</script></body></html>\n"
    )
