// Man writes the man pages of embedcni into a directory, from the texts of its help:
//
//	go run ./internal/man DIR
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra/doc"

	"github.com/embedcni/cni/cmd/embedcni/internal/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: man DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

// write writes a page for each command. The pages have no date of their making and nothing of
// this machine's environment, so that they are the same whoever makes them.
func write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	streams := cli.System()
	streams.Getenv = func(string) string { return "" }
	root := cli.Root(streams)
	root.DisableAutoGenTag = true
	epoch := time.Unix(0, 0).UTC()
	header := &doc.GenManHeader{Section: "8", Source: "embedcni", Manual: "System administration", Date: &epoch}
	return doc.GenManTree(root, header, dir)
}
