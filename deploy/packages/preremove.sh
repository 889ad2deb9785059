#!/bin/sh
# deb: remove, upgrade, deconfigure; rpm: 0 for a removal, 1 for an upgrade. An upgrade leaves
# the service running, which is restarted behind it.
set -e

if { [ "$1" = remove ] || [ "$1" = 0 ]; } && [ -d /run/systemd/system ]; then
  systemctl --no-reload disable --now wirefence.socket wirefence.service || true
fi
