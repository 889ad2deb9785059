#!/bin/sh
# The account stays, as others' do: files may belong to it.
set -e

if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
if [ "$1" = purge ]; then
  # What dpkg doesn't know of: certificates that were put there stay.
  rm -f /etc/wirefence/admin-tokens
  rmdir --ignore-fail-on-non-empty /etc/wirefence 2>/dev/null || true
fi
