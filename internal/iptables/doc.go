// Package iptables runs the tools of iptables and reads their tables: both
// variants, nf_tables and legacy, of both families. It knows the format of
// iptables-save and iptables-restore, and the kernel's own tables where a question
// needs no process. It is Linux only, and knows nothing of containers.
//
// It starts the tools itself: go-iptables starts a process for each chain that it
// lists and each rule that it deletes, cannot be stopped by a context, and knows
// no iptables-restore.
package iptables
