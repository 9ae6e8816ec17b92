// Daemon is the thick example's daemon: it attaches containers for the shim that a runtime
// executes, to the networks of a directory. A shim's configuration has the name of one of
// them.
//
//	daemon -networks /etc/thick -socket /run/thick/multus.sock -queue /var/lib/thick/dels
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/server"
)

func main() {
	networksDir := flag.String("networks", "/etc/thick", "the `directory` of the networks' conflists")
	socket := flag.String("socket", "/run/thick/multus.sock", "the `path` of the socket")
	queue := flag.String("queue", "/var/lib/thick/dels", "the `directory` of DELs that came while no daemon ran")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *networksDir, *socket, *queue); err != nil {
		slog.Error("daemon", "error", err)
		os.Exit(1)
	}
}

// grace is how long a shutdown lets calls go on.
const grace = 20 * time.Second

func serve(ctx context.Context, networksDir, socket, queue string) error {
	rt, err := cni.New(cni.WithOwner("thick"), cni.WithPluginConfDir(networksDir))
	if err != nil {
		return err
	}
	if err := rt.Load(cni.WithAllConf); err != nil {
		return err
	}
	s, err := server.New(&networks{rt}, server.Options{PluginDirs: rt.GetConfig().PluginDirs})
	if err != nil {
		return err
	}
	l, err := s.Listen(socket)
	if err != nil {
		return err
	}
	if err := cleanUp(ctx, rt, s, queue); err != nil {
		return errors.Join(err, l.Close())
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	slog.Info("serving", "socket", socket)
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err = s.Shutdown(late)
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// cleanUp does what came due while no daemon ran: the DELs that shims have queued, and the
// removal of containers that are dead.
func cleanUp(ctx context.Context, rt *cni.Runtime, s *server.Server, queue string) error {
	drained, err := s.Drain(ctx, queue)
	if err != nil {
		return err
	}
	for outcome, dels := range map[string][]server.QueuedDel{"ended": drained.Ended, "dropped": drained.Dropped, "failed": drained.Failed} {
		for _, d := range dels {
			slog.Info("queued DEL", "outcome", outcome, "container", d.ContainerID, "interface", d.IfName, "network", d.Network, "error", d.Err)
		}
	}
	if drained.Unreadable != nil {
		slog.Error("queued DELs", "error", drained.Unreadable)
	}
	recovered, err := rt.Recover(ctx)
	if err != nil {
		return err
	}
	slog.Info("recovered", "adopted", len(recovered.Adopted), "removed", len(recovered.Removed), "error", recovered.Err())
	return nil
}
