"""Checks the built site: no page asks another host for anything, every link leads to a
file and a heading that are there, and every page stands in the navigation."""

import os
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

from mkdocs.exceptions import PluginError

# What a browser fetches by itself, by tag and attribute. A link with rel=canonical is
# not fetched.
LOADED = {
    ("script", "src"), ("img", "src"), ("img", "srcset"), ("source", "src"), ("source", "srcset"),
    ("iframe", "src"), ("object", "data"), ("embed", "src"), ("video", "src"), ("video", "poster"),
    ("audio", "src"), ("track", "src"), ("use", "href"), ("image", "href"), ("link", "href"),
    ("form", "action"),
}
STYLE_URL = re.compile(r"""(?:url\(\s*|@import\s+)["']?\s*((?:https?:)?//[^"')\s]+)""")


class Page(HTMLParser):
    """A page's fragments, its links, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)
        self.loads += STYLE_URL.findall(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        for name in ("id", "name"):
            if attributes.get(name) and tag != "meta":
                self.ids.add(attributes[name])
        if tag == "a" and attributes.get("href") is not None:
            self.links.append(attributes["href"])
        if "mermaid" in (attributes.get("class") or "").split():
            self.loads.append("mermaid, which the theme fetches from another host")
        for name, value in attributes.items():
            if (tag, name) in LOADED and value and attributes.get("rel") != "canonical":
                self.loads.append(value)


def on_nav(nav, config, files):
    listed = {page.file.src_uri for page in nav.pages}
    left = sorted(f.src_uri for f in files.documentation_pages() if f.src_uri not in listed)
    if left:
        raise PluginError("not in the nav of mkdocs.yml: " + ", ".join(left))


def on_post_build(config):
    wrong = problems(config["site_dir"])
    if wrong:
        raise PluginError("\n  ".join(["the site is wrong:"] + wrong))


def problems(site):
    """Returns what is wrong with the site in a folder, sorted."""
    pages, wrong = {}, []
    for folder, _, names in os.walk(site):
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(".html"):
                with open(path, encoding="utf-8") as file:
                    pages[path] = Page(file.read())
            elif name.endswith((".css", ".svg")):
                with open(path, encoding="utf-8") as file:
                    wrong += [f"{os.path.relpath(path, site)} loads {url}" for url in STYLE_URL.findall(file.read())]
    for path, page in pages.items():
        name = os.path.relpath(path, site)
        wrong += [f"{name} loads {url}" for url in page.loads if not is_local(url)]
        for link in page.links + [url for url in page.loads if is_local(url)]:
            if os.path.basename(path) != "404.html" and not leads_somewhere(link, path, pages):
                wrong.append(f"{name} links to {link}, which is not there")
    if not pages:
        wrong.append("no page was built")
    return sorted(set(wrong))


def is_local(url):
    parts = urlsplit(url)
    return parts.scheme in ("", "data") and not parts.netloc


def leads_somewhere(link, path, pages):
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    if parts.path:
        path = os.path.normpath(os.path.join(os.path.dirname(path), unquote(parts.path)))
        if os.path.isdir(path):
            path = os.path.join(path, "index.html")
    if not os.path.exists(path):
        return False
    return not parts.fragment or path not in pages or unquote(parts.fragment) in pages[path].ids
