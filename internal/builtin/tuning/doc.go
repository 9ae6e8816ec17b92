// Package tuning changes sysctls of a container's namespace, and attributes of
// its interface, after another plugin has made it. It takes the configuration
// of the reference plugin tuning (v1.9.1), and keeps the attributes that it
// changes in the same file, so that the DEL of either puts them back.
//
// Sysctls are not put back: they end with the namespace.
package tuning
