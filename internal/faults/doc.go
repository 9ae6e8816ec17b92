// Package faults holds no code but tests: they break what the library works
// with, again and again, and count what is left afterwards. Plugins and whole
// runtimes are killed at random moments, networks fail half way, namespaces
// vanish, the power goes. Each test is a line of a table with a target:
//
//	M1   runtime killed, recovered         leaks 0 of 1000 kills    target 0
//
// As part of the ordinary tests the counts are small; make faults has the large
// ones and prints the table.
package faults
