"""Reads a page as strictly as a validator would: each element is closed where it must be, each id is there once."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "input", "hr", "img"}
# SVG elements may close themselves.
SVG = {"path", "line", "rect", "circle"}


class MarkupError(AssertionError):
    pass


class StrictPage(HTMLParser):
    """The elements of a page.

    Attributes:
        elements: (name, attributes) in their order.
        text: all text outside of the head's title.
    """

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        if self._open:
            raise MarkupError(f"not closed: {self._open}")
        ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        if len(ids) != len(set(ids)):
            raise MarkupError(f"ids twice: {ids}")

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            raise MarkupError(f"{tag} has an attribute twice: {names}")
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        if tag not in SVG:
            raise MarkupError(f"<{tag}/> closes nothing in HTML")
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            raise MarkupError(f"</{tag}> closes another element at {self.getpos()}")

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]
