"""What `make docs` runs before it builds: the hooks on small inputs, and on broken sites."""

import json
import os
import re
import tempfile
import unittest

import check
import find
import pages
import rank


def adapted(text, link=lambda target: target):
    return "\n".join(pages.adapt(text.split("\n"), link))


class Pages(unittest.TestCase):
    def test_fragments_are_those_of_code_hosts(self):
        for heading, fragment in {
            "What isn't guaranteed": "what-isnt-guaranteed",
            "SELECT … FOR UPDATE": "select--for-update",
            "`wirefence lock`": "wirefence-lock",
            "WF001, stale_fencing_token": "wf001-stale_fencing_token",
        }.items():
            self.assertEqual(pages.slug(heading, "-"), fragment)

    def test_lists_are_indented_by_four(self):
        self.assertEqual(adapted("1. a\n   b\n\n   ```sh\n   c\n     d\n   ```\n2. e\n\nf"),
                         "1.  a\n    b\n\n    ```sh\n    c\n      d\n    ```\n2.  e\n\nf")
        self.assertEqual(adapted("- a\n  - b\n    c\n- d"), "-   a\n    -   b\n        c\n-   d")

    def test_code_is_left_alone(self):
        code = "```\n- a\n  - b ](c)\n```"
        self.assertEqual(adapted(code, lambda target: "x"), code)

    def test_links_lead_into_the_site_or_to_the_source(self):
        for target, want in {
            "https://example.com/a.md": "https://example.com/a.md",
            "#a": "#a",
            "guards.md#shadow-mode": "guards.md#shadow-mode",
            "../model/README.md#holds": "model.md#holds",
            "../README.md": "README.md",
            "../deploy/mixin": pages.SOURCE + "deploy/mixin",
            "../nothing": "../nothing",
        }.items():
            self.assertEqual(pages.resolve(target, "docs/api.md", "api.md"), want)
        self.assertEqual(pages.resolve("../tutorial.md", "docs/howto/go.md", "howto/go.md"), "../tutorial.md")
        self.assertEqual(pages.resolve("docs/reference/guards.md", "CONTRIBUTING.md", "contributing.md"), "reference/guards.md")

    def test_a_console_is_escaped(self):
        drawn = pages.console("A$ a <b>\n> c\n<d>", "console", "highlight", {}, None)
        for part in ("<strong>a &lt;b&gt;</strong>", "<strong>c</strong>", '<span class="go">&lt;d&gt;\n</span>'):
            self.assertIn(part, drawn)

    def test_only_commands_are_left_to_copy(self):
        drawn = pages.console("A$ a\n> b\n1\nA=> c\n2\n3", "console", "highlight", {}, None)
        drawn = re.sub(r'<span class="g[op]">[^<]*</span>', "", drawn)
        self.assertEqual(re.sub("<[^>]*>", "", drawn), "a\nb\nc\n")


class Rank(unittest.TestCase):
    def ranked(self, worker):
        with tempfile.TemporaryDirectory() as site:
            workers = os.path.join(site, "assets", "javascripts", "workers")
            os.makedirs(workers)
            os.mkdir(os.path.join(site, "search"))
            index, script = os.path.join(site, "search", "search_index.json"), os.path.join(workers, "search.0.min.js")
            with open(index, "w", encoding="utf-8") as file:
                json.dump({"docs": [{"location": "guards.html"}, {"location": "reference/decisions.html#why"}, {"location": "symptoms/a.html"}]}, file)
            with open(script, "w", encoding="utf-8") as file:
                file.write(worker)
            rank.rank(site)
            with open(index, encoding="utf-8") as file, open(script, encoding="utf-8") as adapted:
                return [page.get("boost") for page in json.load(file)["docs"]], adapted.read()

    def test_decisions_come_last_and_symptoms_first(self):
        boosts, worker = self.ranked("for(let s of r)this.add(s)")
        self.assertEqual(boosts, [None, 0.1, 3])
        self.assertEqual(worker, "for(let s of r)this.add(s,{boost:s.boost||1})")

    def test_another_search_is_noticed(self):
        for worker in ("", "this.add(a)", "this.add(s);this.add(s)"):
            with self.assertRaises(rank.PluginError):
                self.ranked(worker)


class Find(unittest.TestCase):
    def missed(self, first):
        with tempfile.TemporaryDirectory() as site:
            os.mkdir(os.path.join(site, "search"))
            with open(os.path.join(site, "search", "search_index.json"), "w", encoding="utf-8") as file:
                json.dump({"docs": [
                    {"location": "a.html", "title": "Two leaders", "text": "Both wrote."},
                    {"location": "b.html", "title": "Guards", "text": "Two leaders, and what refuses one."},
                    {"location": "c.html", "title": "Leaders", "text": "Nothing of them.", "boost": 0.001},
                ]}, file)
            return find.missed(site, first)

    def test_titles_are_found_first(self):
        self.assertEqual(self.missed({"two leaders": "a.html", "leaders": "a.html", "guard": "b.html"}), [])

    def test_another_page_is_noticed(self):
        self.assertEqual(self.missed({"two leaders": "b.html", "brain": "a.html"}),
                         ["'two leaders' finds a.html first, not b.html", "'brain' finds nothing first, not a.html"])


class Check(unittest.TestCase):
    def problems(self, **files):
        with tempfile.TemporaryDirectory() as site:
            for name, text in files.items():
                with open(os.path.join(site, name.replace("_", ".")), "w", encoding="utf-8") as file:
                    file.write(text)
            return check.problems(site)

    def test_a_good_site_passes(self):
        page = '<link rel="canonical" href="https://a/"><h1 id="x">a</h1><a href="https://b/">b</a><a href="a.html#x">c</a><img src="a.svg">'
        self.assertEqual(self.problems(a_html=page, a_svg="<svg/>"), [])

    def test_what_is_wrong_is_found(self):
        for page in (
            '<a href="b.html">a</a>', '<a href="#b">a</a>', '<a href="a.html#b">a</a>', '<img src="b.png">',
            '<img src="https://b/c.png">', '<script src="//b/c.js"></script>', '<link rel="stylesheet" href="http://b/c.css">',
            "<style>@import 'https://b/c.css';</style>", '<p style="background: url(https://b/c.png)">', '<pre class="mermaid">a</pre>',
        ):
            self.assertEqual(len(self.problems(a_html=page)), 1, page)
        self.assertEqual(len(self.problems(a_html="", a_css="a { src: url('https://b/c.woff') }")), 1)
        self.assertEqual(self.problems(a_css=""), ["no page was built"])


if __name__ == "__main__":
    unittest.main()
