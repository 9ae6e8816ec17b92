// Package iptables runs the iptables tools and reads their tables, for both
// variants, nf_tables and legacy, and both families. It knows the format of
// iptables-save and iptables-restore, and reads the kernel's own tables where
// that saves a process. It is Linux only, and has no notion of containers.
//
// It starts iptables-save and iptables-restore itself. go-iptables starts a process for
// each chain that it lists and each rule that it deletes, and cannot be stopped by a
// context.
package iptables
