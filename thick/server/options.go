package server

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/thick/internal/wire"
)

// Options configure a Server. The zero value serves root alone, with the limits that
// Limits documents.
type Options struct {
	// UID is the user that may call beside root.
	UID int
	// PluginDirs are the directories in which a client's CNI_PATH may choose: those of the
	// Backend's. Without any, a client's CNI_PATH does not count.
	PluginDirs []string
	// ReadinessFile holds ADDs back until a file exists, as the readinessIndicatorFile
	// of a client's configuration does for that client's: typically the configuration of
	// the cluster's default network. STATUS returns code 50 while it is missing.
	ReadinessFile string
	// Kubernetes requires of ADD, DEL and CHECK that CNI_ARGS names a pod, and that the
	// UID of the pod is known for ADD and CHECK.
	Kubernetes bool
	// PodUID finds the UID of a pod if an ADD or CHECK lacks it, in Kubernetes mode. Older
	// runtimes do not send it. An error that is no *types.Error gets code 11, "try again
	// later".
	PodUID func(context.Context, Pod) (string, error)
	// Observe is called after each request, by the goroutine that served it.
	Observe func(Observation)
	// Logger receives refused clients and panics of the Backend; nil is
	// slog.Default().
	Logger *slog.Logger
	Limits Limits
}

// Limits bound what clients can make a Server do. Zero is the default of each.
type Limits struct {
	// Concurrent is how many ADDs of one network run at once while no other network has any.
	// There are twice as many slots. A network gets another one only while it has fewer than
	// are free, and a quarter of all is kept for networks that have none. Networks that a
	// [Planner] names together count as one; each of them has at most three quarters of the
	// slots, and each plugin type seven eighths. Calls that wait are served network by network
	// in turn, in the order of their arrival.
	//
	// DELs have as many slots of their own, and so have CHECK, GC and STATUS together. A call
	// that has run for five seconds gives its slot to others and goes on, as long as fewer
	// than four times Concurrent do. Of executed plugins each call takes two processes and
	// 4 MB. The default is 16.
	Concurrent int
	// Queued is how many calls of one network wait for their turn, or for a readiness file,
	// while no others do; in the whole twice as many do. ADDs leave a quarter of the places
	// to other verbs. More calls are refused with code 11, "try again later". The default is
	// 1024.
	Queued int
	// Request is the size of the longest request in bytes. The default is 4 MiB.
	Request int64
	// Requests is the size of all requests that are read, wait or run, in bytes, as far as
	// they have come. More are refused with code 11. Requests of more than 64 KiB leave half
	// of what is free to others. The default is 32 MiB, and at least twice Request.
	Requests int64
	// Deadline is the time of one call, with its time in the queue. The default is four
	// minutes, as long as Kubernetes' kubelet waits for the sandbox of a pod.
	Deadline time.Duration
	// Transfer is the time that a client has to send its request, and again to take the
	// answer. The default is ten seconds.
	Transfer time.Duration
}

// Observation is a request that was answered. Its strings, but for ContainerID, IfName,
// Network and Pod, are of a few values each, so that they can be labels of metrics.
type Observation struct {
	Path   string // /cni, /healthz or /readyz; empty if it is none of these
	Method string // GET or POST; empty if it is neither
	Status int    // of HTTP
	// The rest is of /cni.
	Verb        string // ADD, DEL, CHECK, GC, STATUS or VERSION; empty if the request names none
	ContainerID string
	IfName      string
	Network     string
	Pod         Pod           // empty if the client names none
	Trace       trace.TraceID // not valid if the call has no trace
	Code        uint          // the code of the error that was answered; 0 if it has none
	Err         error         // nil if the call succeeded and was answered
	Queued      time.Duration // how long the call waited for its turn
	Duration    time.Duration // from the request's head to its answer
}

func (l Limits) withDefaults() (Limits, error) {
	for _, n := range []int64{int64(l.Concurrent), int64(l.Queued), l.Request, l.Requests, int64(l.Deadline), int64(l.Transfer)} {
		if n < 0 {
			return l, fmt.Errorf("negative limit in %+v", l)
		}
	}
	l.Concurrent = orDefault(l.Concurrent, 16)
	l.Queued = orDefault(l.Queued, 1024)
	l.Request = orDefault(l.Request, wire.MaxRequest)
	l.Requests = max(orDefault(l.Requests, 32<<20), 2*l.Request)
	l.Deadline = orDefault(l.Deadline, 4*time.Minute)
	l.Transfer = orDefault(l.Transfer, 10*time.Second)
	return l, nil
}

func orDefault[T comparable](value, otherwise T) T {
	if value == *new(T) {
		return otherwise
	}
	return value
}

// cleanDirs returns absolute directories in their shortest form.
func cleanDirs(dirs []string) ([]string, error) {
	var clean []string
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("plugin directory %q is not an absolute path", dir)
		}
		clean = append(clean, filepath.Clean(dir))
	}
	return clean, nil
}
