//go:build !linux

package nft

// Pool keeps sockets open between calls; there are none off Linux.
type Pool struct{}
