// Package faults contains only tests. They break the library's environment
// repeatedly and count the leftovers. Plugins and whole runtimes are killed at
// random moments, networks fail half way, namespaces vanish, the power fails.
// Each test is a line of a table with a target:
//
//	M1   runtime killed, recovered         leaks 0 of 1000 kills    target 0
//	M16  F36 firewall flushed, restarted   0 of 30 harmed           target 0
//	M21  F33 a caller that never removes   0 of 30 failed           target 0
//
// The lines of M16 are about running containers. Each container and its traffic
// are photographed, then something goes wrong beside it. Nothing of it may be
// missing after the calls that follow. The lines of M21 are programs that only
// know go-cni's seven methods and use them as go-cni allowed, each with random
// kinds of plugins. A round fails if a call fails, takes too long, or leaves
// something behind.
//
// As part of the ordinary tests the counts are small. "make faults" uses the
// large ones and prints the table.
package faults
