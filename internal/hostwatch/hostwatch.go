// Package hostwatch reports changes in a host's network namespace, for package guard: it
// turns announcements of rtnetlink and of nf_tables into events, and reads the legacy
// tables of iptables, of which nobody announces anything.
package hostwatch

// Buffer is the size of each kernel buffer: more than the announcements of a bridge with
// a thousand ports that goes, and of a flush of ten thousand rules.
const Buffer = 8 << 20
