//go:build unix

// Program plugin is the scripted plugin.
package main

import "github.com/embedcni/cni/internal/scripted"

func main() { scripted.Main() }
