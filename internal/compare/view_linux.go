package compare

import (
	"context"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/plugin"
)

// Comparer is a built-in plugin that can compare its part of an attachment.
type Comparer interface {
	// Compare returns the differences, in the order in which they have to be made
	// again. The request is one of CHECK. An error means that the comparison is
	// impossible: the configuration is invalid, or the kernel cannot be read.
	// The plugin to which it delegates, such as that of IPAM, is compared by
	// itself.
	Compare(ctx context.Context, r *plugin.Request, v *View) ([]Difference, error)
}

// View is a look at the kernel, for one attachment. It is not safe for concurrent use.
type View struct {
	Host, Container Net
	Rules           Rules
	Queues          Queues // of the host's interfaces
	VLANs           VLANs  // of the ports of the host's bridges
}

// Net is what a network namespace has. [links.Conn] is one.
type Net interface {
	// Link and LinkByIndex find an interface. If there is none, [links.NotFound] is
	// true of the error.
	Link(name string) (links.Link, error)
	LinkByIndex(index int) (links.Link, error)
	// Addresses returns the addresses of an interface.
	Addresses(index int) ([]links.Address, error)
	// Routes returns the routes through an interface, with 0 through all.
	Routes(index int) ([]links.Route, error)
}

// Rules are the rules of the host's packet filters.
type Rules interface {
	// Missing returns those of the rules that do not exist. An error means that the
	// rules cannot be read.
	Missing(ctx context.Context, rules ...netfilter.Rule) ([]netfilter.Missing, error)
}

// Queues are the queues of the interfaces of a network namespace. [links.Conn] has them.
type Queues interface {
	// Queues returns the queues of an interface. If there is no such interface,
	// [links.NotFound] is true of the error, or it has none.
	Queues(index int) (links.Queues, error)
}

// VLANs are the VLANs of the ports of a network namespace's bridges. [links.Conn] has them.
type VLANs interface {
	// VLANs returns the VLANs of a port. An interface that is no port has none.
	VLANs(index int) (links.VLANs, error)
}
