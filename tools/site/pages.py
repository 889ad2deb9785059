"""Adapts the repository's Markdown to MkDocs.

The pages are written as CommonMark, for readers of the repository. Three things differ:
links may lead out of docs/, headings have the fragments that code hosts make, and lists
are indented by the width of their marker, not by four columns.
"""

import html
import os
import posixpath
import re

from mkdocs.structure.files import File

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = "https://github.com/wirefence/wirefence/blob/main/"

# Pages of the site that are not in docs/, by their place in the repository.
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "model/README.md": "model.md",
}

FENCE = re.compile(r"^( *)(`{3,}|~{3,})")
MARKER = re.compile(r"^( *)([-*+]|\d{1,9}[.)])( +)(?=\S)")
PROMPT = re.compile(r"^([A-Z](?:\$|=>) |> )(.*)$")
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def slug(text, separator):
    """Returns a heading's fragment as code hosts make it; internal/house expects the same."""
    return re.sub(r"[^a-z0-9 _-]", "", text.lower().strip()).replace(" ", separator)


def on_config(config):
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug
    config["mdx_configs"].setdefault("pymdownx.superfences", {})["custom_fences"] = [
        {"name": "console", "class": "highlight", "format": console},
    ]
    return config


def console(source, language, css_class, options, md, **kwargs):
    """Returns the HTML of commands with their output; internal/pages says what a prompt is.
    site.css has only the commands copied, so a line of output is in its span with its end."""
    lines = ""
    for line in source.split("\n"):
        prompt = PROMPT.match(line)
        if prompt:
            lines += f'<span class="gp">{html.escape(prompt[1])}</span><strong>{html.escape(prompt[2])}</strong>\n'
        else:
            lines += f'<span class="go">{html.escape(line)}\n</span>'
    return f'<div class="{css_class}"><pre><code>{lines}</code></pre></div>'


def on_files(files, config):
    for source, page in OUTSIDE.items():
        file = File(page, ROOT, config["site_dir"], config["use_directory_urls"])
        file.abs_src_path = os.path.join(ROOT, source)
        file.repository_path = source
        files.append(file)
    return files


def on_page_markdown(markdown, page, config, files):
    source = getattr(page.file, "repository_path", "docs/" + page.file.src_uri)
    return "\n".join(adapt(markdown.split("\n"), lambda target: resolve(target, source, page.file.src_uri)))


def resolve(target, source, page):
    """Returns what a link of the repository's file source leads to from a page of the site."""
    path, hash_mark, fragment = target.partition("#")
    if not path or re.match(r"[a-z][a-z0-9+.-]*:", target):
        return target
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not os.path.exists(os.path.join(ROOT, path)):
        return target  # which --strict, or check.py, reports
    if path in OUTSIDE:
        path = OUTSIDE[path]
    elif path == "README.md":
        path = "README.md" if not fragment else None
    elif path.startswith("docs/"):
        path = path[len("docs/"):]
    else:
        path = None
    if path is None:
        return SOURCE + posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return posixpath.relpath(path, posixpath.dirname(page) or ".") + hash_mark + fragment


def adapt(lines, link):
    """Yields the lines with lists indented by four columns, and with their links changed."""
    open_lists = []  # the columns at which the text of each open list item begins
    fence = None
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if fence:
            if line.strip().startswith(fence[1]) and not line.strip().strip(fence[1][0]):
                closed, fence = fence, None
                yield shift(line, closed[0], closed[2])
            else:
                yield shift(line, fence[0], fence[2])
            continue
        if not line.strip():
            yield line
            continue
        while open_lists and indent < open_lists[-1]:
            open_lists.pop()
        column, depth = (open_lists[-1] if open_lists else 0), len(open_lists)
        opened = FENCE.match(line)
        if opened and indent - column < 4:
            fence = (column, opened[2], depth)
            yield shift(line, column, depth)
            continue
        marker = MARKER.match(line)
        if marker and indent - column < 4:
            open_lists.append(len(marker[0]))
            text = line[len(marker[0]):]
            yield " " * 4 * depth + (marker[2] + " ").ljust(4) + LINK.sub(lambda m: m[1] + link(m[2]) + m[3], text)
            continue
        yield shift(LINK.sub(lambda m: m[1] + link(m[2]) + m[3], line), column, depth)


def shift(line, column, depth):
    """Returns a line of a list item, whose text begins at column, four columns in for each list."""
    if not line.strip():
        return line
    taken = min(column, len(line) - len(line.lstrip(" ")))
    return " " * 4 * depth + line[taken:]
