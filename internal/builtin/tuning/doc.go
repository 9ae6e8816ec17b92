// Package tuning changes sysctls of a container's namespace, and attributes of
// an interface that another plugin has made. It takes the configuration of the
// reference plugin tuning (v1.9.1), and keeps the former attributes in the same
// file, so that the DEL of either restores them.
//
// Sysctls are not restored: they end with the namespace.
package tuning
