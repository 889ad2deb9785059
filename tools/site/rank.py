"""Ranks pages in the site's search. Those on decisions come last: they use the words of every
other page, and a reader who looks for a setting wants the page that has it. Those on symptoms
come first: a reader who has one doesn't know our words yet."""

import glob
import json
import os

from mkdocs.exceptions import PluginError

BOOSTS = {"reference/decisions": 0.1, "symptoms/": 3}

# Where the theme's search adds a page to its index. Lunr takes a boost for each.
ADDS, ADDS_BOOSTED = "this.add(s)", "this.add(s,{boost:s.boost||1})"


def on_post_build(config):
    rank(config["site_dir"])


def rank(site):
    """Gives the pages of a site that was built their boost."""
    index = os.path.join(site, "search", "search_index.json")
    with open(index, encoding="utf-8") as file:
        search = json.load(file)
    for page in search["docs"]:
        for folder, boost in BOOSTS.items():
            if page["location"].startswith(folder):
                page["boost"] = boost
    with open(index, "w", encoding="utf-8") as file:
        json.dump(search, file, sort_keys=True, separators=(",", ":"))
    changed = 0
    for name in glob.glob(os.path.join(site, "assets", "javascripts", "workers", "search.*.js")):
        with open(name, encoding="utf-8") as file:
            worker = file.read()
        changed += worker.count(ADDS)
        with open(name, "w", encoding="utf-8") as file:
            file.write(worker.replace(ADDS, ADDS_BOOSTED))
    if changed != 1:
        raise PluginError(f"the theme's search adds pages in {changed} places, not in one: see tools/site/rank.py")
