// Embedcni attaches containers to networks, and shows, checks and repairs what is attached.
// "embedcni help" has its commands, docs/command.md a session.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/embedcni/cni/cmd/embedcni/internal/cli"
)

func main() {
	// The first signal ends waits and undoes what is unfinished; a second one kills.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, os.Args[1:], cli.System()))
}
