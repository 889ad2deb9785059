// Package composetest follows docs/howto/compose.md on a Docker engine, then stalls, kills and
// restarts the containers, and runs the image of deploy/try. scripts/engine runs its tests.
package composetest
