package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/server"
)

// networks is the Backend: it attaches interfaces to the loaded networks. An interface is
// named by its container, its network and its name, so it remembers nothing beside the
// runtime's records.
type networks struct{ *cni.Runtime }

// began is the metadata with Request.Began.
const began = "began"

// of selects the attachment of a request.
func of(r *server.Request, more ...cni.NamespaceOpts) cni.NamespaceOpts {
	return cni.WithNetwork(r.Network, append(more, cni.WithInterfaceName(r.IfName))...)
}

// asCNI gives an error its code.
func asCNI(err error) error {
	if err == nil {
		return nil
	}
	return cni.AsCNIError(err)
}

func (n *networks) Add(ctx context.Context, r *server.Request) (types.Result, error) {
	opts, err := parameters(r)
	if err != nil {
		return nil, err
	}
	opts = append(opts, cni.WithMetadata(map[string]string{began: r.Began}))
	result, err := n.Setup(ctx, r.ContainerID, r.NetNS, of(r, opts...))
	if err != nil {
		return nil, asCNI(err)
	}
	return result.Raw()[0], nil
}

// parameters returns the runtime's own for the plugins: CNI_ARGS, and the values for the
// capabilities that the shim's configuration declares.
func parameters(r *server.Request) (opts []cni.NamespaceOpts, err error) {
	var config struct {
		Runtime map[string]json.RawMessage `json:"runtimeConfig"`
	}
	if err := json.Unmarshal(r.Config, &config); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "runtimeConfig: "+err.Error(), "")
	}
	for name, value := range config.Runtime {
		opts = append(opts, cni.WithCapability(name, value))
	}
	for key, value := range r.Args {
		opts = append(opts, cni.WithArgs(key, value))
	}
	return opts, nil
}

func (n *networks) Del(ctx context.Context, r *server.Request) error {
	return asCNI(n.Remove(ctx, r.ContainerID, r.NetNS, of(r)))
}

func (n *networks) Check(ctx context.Context, r *server.Request) error {
	return asCNI(n.Runtime.Check(ctx, r.ContainerID, r.NetNS, of(r)))
}

// GC removes the interfaces of the network that are not valid. Others of their containers
// stay.
func (n *networks) GC(ctx context.Context, r *server.Request) error {
	all, err := n.Attachments(ctx)
	if err != nil {
		return asCNI(err)
	}
	var errs []error
	for _, a := range all {
		if a.Network == r.Network && !slices.Contains(r.Valid, types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName}) {
			gone := &server.Request{ContainerID: a.ContainerID, IfName: a.IfName, Network: a.Network}
			errs = append(errs, n.Remove(ctx, a.ContainerID, a.NetNS, of(gone)))
		}
	}
	return asCNI(errors.Join(errs...))
}

func (n *networks) Status(ctx context.Context, r *server.Request) error {
	return asCNI(n.StatusContext(ctx))
}

// Attachments makes it a server.Ledger.
func (n *networks) Attachments(context.Context) ([]server.Attachment, error) {
	recorded, err := n.Runtime.Attachments()
	if err != nil {
		return nil, err
	}
	var all []server.Attachment
	for _, a := range recorded {
		if a.Owner == "thick" && a.State != cni.Unknown {
			all = append(all, server.Attachment{
				ContainerID: a.ContainerID, IfName: a.IfName, Network: a.Network, NetNS: a.NetNS, Began: a.Metadata[began],
			})
		}
	}
	return all, nil
}
