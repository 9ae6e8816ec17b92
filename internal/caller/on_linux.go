package caller

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// On calls do with a socket in a namespace, which is open until do returns. It changes
// settings there first.
func On(ctx context.Context, ns *netns.Handle, do func(*links.Conn) error, settings ...links.Sysctl) error {
	conn, err := From(ctx).Conns.Borrow(ns, settings...)
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close())
}
