"""The start page of the site is the README, with its links seen from the docs folder."""

from pathlib import Path
from typing import Any


def on_page_read_source(page: Any, config: Any) -> str | None:
    """The text of the start page; None leaves every other page to mkdocs."""
    if page.file.src_uri != "index.md":
        return None
    readme = Path(config.config_file_path).with_name("README.md")
    return readme.read_text(encoding="utf-8").replace("](docs/", "](")
