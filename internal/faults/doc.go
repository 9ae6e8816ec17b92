// Package faults holds no code but tests: they break what the library works
// with, again and again, and count what is left afterwards. Plugins and whole
// runtimes are killed at random moments, networks fail half way, namespaces
// vanish, the power goes. Each test is a line of a table with a target:
//
//	M1   runtime killed, recovered         leaks 0 of 1000 kills    target 0
//	M16  F36 firewall flushed, restarted   0 of 30 harmed           target 0
//	M21  F33 a caller that never removes   0 of 30 failed           target 0
//
// Those of M16 are about containers that live: each is photographed, with its
// traffic, then something goes wrong beside it, and nothing of it may be missing
// after the calls that follow. Those of M21 are programs that know go-cni's seven
// methods and do what it let them do, each with random kinds of plugins: a round
// fails if a call does, takes too long, or leaves something.
//
// As part of the ordinary tests the counts are small; make faults has the large
// ones and prints the table.
package faults
