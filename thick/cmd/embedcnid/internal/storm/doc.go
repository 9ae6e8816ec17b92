// Package storm has a test alone: Debian's containerd, unmodified, runs the sandboxes of pods
// with embedcni-shim as its only plugin, while embedcnid is killed, upgraded and reconfigured
// behind it, and the host rebooted.
package storm
