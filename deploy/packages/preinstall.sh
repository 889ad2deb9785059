#!/bin/sh
# Makes the account before the files are there that belong to its group. Of a package of
# either kind, before an installation and an upgrade.
set -e

if ! getent group wirefence >/dev/null; then
  groupadd --system wirefence
fi
if ! getent passwd wirefence >/dev/null; then
  useradd --system --gid wirefence --no-create-home --home-dir /nonexistent \
    --shell /usr/sbin/nologin --comment "Wirefence" wirefence
fi
