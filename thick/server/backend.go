// Package server answers CNI calls over a unix socket, as the daemon behind a shim: a tiny
// plugin that sends its environment and its configuration to the socket. Requests and
// answers have the form of Multus' thick plugin, so that its shim and this module's are
// interchangeable.
//
// A [Backend] attaches and detaches. This package checks what it is asked for, and
// by whom, before it asks the Backend.
package server

import (
	"context"
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"
)

// Backend carries out the calls of clients. Its methods are called concurrently, also for
// one container. They get checked requests. They return when the context ends, with
// everything undone that a failed call has to undo; the context ends at the deadline of
// the request, when the client has gone, and when a shutdown gives up.
//
// An error that is or wraps a [*types.Error] reaches the client with its code, message and
// details (CNI specification 1.1.0, section 5); the text of any other error reaches it as
// it is. Package backend gives the errors of a Runtime their codes.
type Backend interface {
	// Add attaches one interface. The result may be of any version.
	Add(context.Context, *Request) (types.Result, error)
	// Del detaches it. One that does not exist is detached: DEL is repeated until it
	// succeeds.
	Del(context.Context, *Request) error
	// Check returns nil if the interface is as Add left it.
	Check(context.Context, *Request) error
	// GC removes the attachments of the network Request.Network that are not in
	// Request.Valid. A pair names one interface: another interface of the same
	// container is not valid by it, nor does GC detach a valid one with it.
	GC(context.Context, *Request) error
	// Status returns nil if Add could succeed. Code 50 means that it could not, 51
	// that containers have limited connectivity.
	Status(context.Context, *Request) error
}

// Planner is a Backend that knows beforehand what a call will wait for. Then a slow network, or
// a plugin that hangs, holds up the calls that need it and no others. For another Backend each
// call is for the network Request.Network alone.
type Planner interface {
	Backend
	// Plan is called before each call, while it does not run yet: it may ask an API server,
	// but runs no plugin. What it leaves in Request.Plan is there in the call. Its error is
	// the answer to the call.
	Plan(ctx context.Context, verb string, r *Request) (Use, error)
}

// Use is what a call may have to wait for. Networks that all calls have in common, such as the
// cluster's, are not in it if a call has others: a pod with a network that is slow must not
// count as one of the cluster's network.
type Use struct {
	Networks []string
	Plugins  []string // types of their plugins
}

// Ledger is a Backend that remembers what it has attached: a DEL that was queued while
// there was no daemon must not end what has been attached since.
type Ledger interface {
	Backend
	// Attachments returns an element for each Add of these containers, or of all, whose Del
	// has not succeeded, also for one that has failed or did not end because the daemon was
	// killed.
	Attachments(ctx context.Context, ids ...string) ([]Attachment, error)
}

// Attachment is what a Ledger remembers of an Add.
type Attachment struct {
	// The next three are those of the Add's Request.
	ContainerID string
	IfName      string
	Network     string
	NetNS       string // where the namespace is; may be empty
	// Began is that of the Add's Request. Empty, it is not known when it was attached.
	Began string
}

// Request is a call with checked parameters (CNI specification 1.1.0, section 2). Requests
// of GC and STATUS have a configuration and PluginDirs alone.
type Request struct {
	ContainerID string
	NetNS       string            // an absolute path; may be empty for DEL
	IfName      string            // "eth0" if the client sent none
	Args        map[string]string // CNI_ARGS, with the keys of Pod
	Pod         Pod
	// PluginDirs are the directories of the client's CNI_PATH that are among the plugin
	// directories of the daemon, or below one, in the client's order.
	PluginDirs []string
	// Config is the configuration, to the byte as the client sent it. It has a valid name
	// and version.
	Config     json.RawMessage
	Network    string // its name
	CNIVersion string // its cniVersion; "0.1.0" if it has none
	// Began is when the daemon received an ADD: text that only this package reads. A
	// Ledger remembers it.
	Began string
	// Valid are the attachments that GC keeps. It may be empty: then none is valid.
	Valid []types.GCAttachment
	// Plan is the Planner's own.
	Plan any
}

// Pod is the pod that a Kubernetes runtime names in CNI_ARGS. Other runtimes leave it
// empty; in Kubernetes mode Namespace and Name are set and well-formed.
type Pod struct {
	Namespace        string // K8S_POD_NAMESPACE
	Name             string // K8S_POD_NAME
	InfraContainerID string // K8S_POD_INFRA_CONTAINER_ID
	// UID is K8S_POD_UID, or found by the daemon. DEL may lack it: the pod may be gone.
	UID string
}
