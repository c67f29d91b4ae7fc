"""What MkDocs asks while it builds the site: notebooks and example files become pages, and links to them lead there.

In the repository a page links to ``../examples/notebooks/look_inside.ipynb``, which a reader of the files can open. On
the site the same link leads to the page that is made of it here.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from cli_reference import page as command_reference
from notebook_pages import as_page

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"\]\((?:\.\./)+examples/([\w/]+)\.(?:py|ipynb)((?:#[\w-]+)?)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every notebook, with its pictures, and for every example file."""
    for address, content in made_pages():
        files.append(File.generated(config, address, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to example files lead to their pages."""
    here = posixpath.dirname(page.file.src_uri) or "."
    return EXAMPLE.sub(
        lambda found: f"]({posixpath.relpath(f'examples/{found[1]}.md', here)}{found[2]})", markdown
    )


def made_pages() -> Iterator[tuple[str, str | bytes]]:
    """Addresses below the site's root, and their content."""
    yield "reference/commands.md", command_reference()
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        page = as_page(path)
        yield f"examples/notebooks/{path.stem}.md", page.text
        for name, content in page.pictures.items():
            yield f"examples/notebooks/{name}", content
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield (
            f"examples/{path.stem}.md",
            f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n",
        )
