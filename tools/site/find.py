"""Checks that the words of people who don't know ours find their page first in the site's search.

The index is that of the theme's search: the same fields and boosts, the filters of its English
translation, and a wildcard behind the last word. The theme's own code runs in a browser only."""

import json
import os

from lunr.builder import Builder
from lunr.stop_word_filter import stop_word_filter
from lunr.trimmer import trimmer
from mkdocs.exceptions import PluginError

FIRST = {
    "job ran twice": "symptoms/job-ran-twice.html",
    "cron ran twice": "symptoms/job-ran-twice.html",
    "double execution": "symptoms/job-ran-twice.html",
    "two leaders": "symptoms/two-leaders.html",
    "two schedulers": "symptoms/two-leaders.html",
    "split brain": "symptoms/split-brain.html",
    "charged twice": "symptoms/charged-twice.html",
    "idempotency key": "symptoms/charged-twice.html",
    "lost update": "symptoms/lost-update.html",
    "zombie worker": "symptoms/zombie-worker.html",
    "zombie": "symptoms/zombie-worker.html",
    "advisory lock": "symptoms/advisory-lock-pgbouncer.html",
    "advisory lock pgbouncer": "symptoms/advisory-lock-pgbouncer.html",
    "terraform": "howto/migrations.html",
    "alembic": "howto/migrations.html",
    "django": "howto/django.html",
    "celery beat": "howto/django.html",
    "sqlalchemy": "howto/django.html",
    "rails": "howto/rails.html",
    "spring": "howto/spring.html",
    "shedlock": "howto/spring.html",
    "leader go": "howto/go.html",
    "liquibase": "howto/migrations.html",
    "uninstall": "howto/uninstall.html",
    "neon": "howto/managed-poolers.html",
    "supabase": "howto/managed-poolers.html",
    "rds proxy": "howto/managed-poolers.html",
}


def on_post_build(config):
    wrong = missed(config["site_dir"], FIRST)
    if wrong:
        raise PluginError("\n  ".join(["the site's search misleads:"] + wrong))


def missed(site, first):
    """Returns a line for each query whose first page isn't the one that it should be."""
    with open(os.path.join(site, "search", "search_index.json"), encoding="utf-8") as file:
        pages = json.load(file)["docs"]
    builder = Builder()
    builder.pipeline.add(trimmer, stop_word_filter)
    builder.ref("location")
    builder.field("title", boost=1000)
    builder.field("text")
    titles = {}
    for page in pages:
        titles[page["location"]] = page["title"].lower()
        builder.add(page, {"boost": page.get("boost", 1)})
    index, wrong = builder.build(), []
    for query, page in first.items():
        # A page goes before its sections where all words are found in it.
        found = sorted(index.search(query + "*"), key=lambda hit: -hit["score"] * (1 + whole(hit, query)))
        if not found or found[0]["ref"].partition("#")[0] != page:
            wrong.append(f"{query!r} finds {found[0]['ref'] if found else 'nothing'} first, not {page}")
    return wrong


def whole(hit, query):
    """Reports whether a page, not a section, has all words of a query."""
    words = hit["match_data"].metadata
    return "#" not in hit["ref"] and all(any(found.startswith(word) for found in words) for word in query.split())
