#!/bin/sh
# deb: configure [old version]; rpm: 1 for an installation, 2 for an upgrade.
set -e

# An operator's token, for root and the group wirefence.
tokens=/etc/wirefence/admin-tokens
if [ ! -e "$tokens" ]; then
  token=$(head -c 32 /dev/urandom | base64 | tr -d '\n=' | tr '+/' '-_')
  [ ${#token} -eq 43 ] # or there is no randomness
  (umask 077 && echo "operator operate $token" >"$tokens.new")
  chgrp wirefence "$tokens.new"
  chmod 640 "$tokens.new"
  mv "$tokens.new" "$tokens"
fi

if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # Does nothing where the service doesn't run. Clients wait meanwhile.
  systemctl try-restart wirefence.service || true
fi

if { [ "$1" = configure ] && [ -z "$2" ]; } || [ "$1" = 1 ]; then
  cat <<'EOF'
Wirefence is installed and not started yet:
  1. Name the PostgreSQL server in /etc/wirefence/wirefence.env
  2. systemctl enable --now wirefence
EOF
fi
