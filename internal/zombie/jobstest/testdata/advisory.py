"""Runs a command while a session holds an advisory lock."""

import os
import subprocess
import sys

import psycopg2

db = psycopg2.connect("", options=os.environ.get("LOCK_OPTIONS", ""))
db.autocommit = True
sql = db.cursor()
sql.execute("SELECT pg_try_advisory_lock(7)")
if not sql.fetchone()[0]:
    sys.exit(75)
sys.exit(subprocess.call(sys.argv[1:]))
