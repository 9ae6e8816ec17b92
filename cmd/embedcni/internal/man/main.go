// Man writes the man pages of embedcni into a directory, from the texts of its help:
//
//	go run ./internal/man DIR
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
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

// write writes a page for each command. It has nothing of this environment's but the date,
// which SOURCE_DATE_EPOCH sets (https://reproducible-builds.org/specs/source-date-epoch/).
func write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := root()
	prepare(root)
	return doc.GenManTree(root, &doc.GenManHeader{Section: "8", Source: "embedcni", Manual: "System administration"}, dir)
}

// root returns the command without the environment of this process.
func root() *cobra.Command {
	streams := cli.System()
	streams.Getenv = func(string) string { return "" }
	return cli.Root(streams)
}

// prepare gives the texts the form of man pages: a description after a name begins with a
// small letter and ends without a period.
func prepare(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	cmd.Short = strings.ToLower(cmd.Short[:1]) + strings.TrimSuffix(cmd.Short[1:], ".")
	for _, below := range cmd.Commands() {
		prepare(below)
	}
}
