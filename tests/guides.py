"""What guides tell people to type, so that tests type it."""

import pathlib
import re

GUIDES = pathlib.Path(__file__).resolve().parent.parent / "docs/guides"


def blocks(page, section=None):
    """The language and the text of each block of a guide, or of one of its sections."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    if section is not None:
        parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
        sections = dict(zip(parts[1::2], parts[2::2]))
        assert section in sections, f"{page} has no section `{section}`, but {sorted(sections)}"
        text = sections[section]
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page, section=None):
    """The blocks for a shell."""
    found = [text for language, text in blocks(page, section) if language == "sh"]
    assert found, f"{page} has no commands"
    return found
