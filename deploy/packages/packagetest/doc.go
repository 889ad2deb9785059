// Package packagetest tests the packages that `make snapshot` has left in dist/: what is in
// them, that they can be installed, upgraded and removed, and that the service which they
// bring restarts without a client being refused. It installs into an overlay of the running
// system, or of the one that -system names, in a mount namespace of its own, for which it
// must be root on Debian or Ubuntu.
package packagetest
