"""Takes the commands of a guide out of its page, so that a test follows it literally."""

import pathlib
import re

from packages import TREE


def blocks(page, section):
    """The fenced commands of one section of a page of docs/guides, in their order."""
    text = (pathlib.Path(TREE) / "docs/guides" / page).read_text()
    parts = re.split(r"^## (.+)$", text, flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2]))
    if section not in sections:
        raise KeyError(f"{page} has no section `{section}`, but {sorted(sections)}")
    found = re.findall(r"^```sh\n(.*?)^```$", sections[section], flags=re.M | re.S)
    if not found:
        raise KeyError(f"section `{section}` of {page} has no commands")
    return found
