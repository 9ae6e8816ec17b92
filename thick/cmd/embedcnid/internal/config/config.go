// Package config is the configuration of embedcnid: its keys, with a file and flags that set
// them.
package config

import (
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/server"
)

// Config has a field for each key. Keys lists them, with what they mean.
type Config struct {
	Socket        string
	UID           int
	QueueDir      string
	StateDir      string
	RecordDir     string
	Owner         string
	HostNetNS     string
	ReadinessFile string
	ShutdownGrace time.Duration
	// HealthInterval is the time between two looks at all containers; zero: there are none.
	HealthInterval time.Duration

	ConfDir        string
	Networks       string // First or All
	PluginDirs     []string
	PluginRoot     string
	BuiltinPlugins []string // AllTypes alone, or types
	PluginEnv      []string
	StrictPorts    bool
	InsecureFiles  []string
	GC             bool

	Timeouts   cni.Timeouts
	Retry      cni.Retry
	Limits     server.Limits
	Guard      Guard
	HTTP       HTTP
	Log        Log
	Kubernetes Kubernetes
}

// Values of Networks.
const (
	First = "first"
	All   = "all"
)

// AllTypes is the element of BuiltinPlugins that stands for every type that is built in.
const AllTypes = "all"

// Guard says what is repaired when others break it.
type Guard struct {
	Classes        []string // of classes; none: nothing is
	LegacyInterval time.Duration
}

// HTTP is the server of probes and metrics.
type HTTP struct {
	Address string // empty: there is none
}

// Log says what is logged, and how.
type Log struct {
	Level  string // debug, info, warn or error
	Format string // Text or JSON
}

// Values of Log.Format.
const (
	Text = "text"
	JSON = "json"
)

// Kubernetes is how the API server is asked.
type Kubernetes struct {
	Enabled    bool
	Node       string
	Kubeconfig string // empty: that of the pod's service account
	Isolated   bool
	Global     []string
	Events     bool
	Timeout    time.Duration
	QPS, Burst int
}

// Default returns the configuration of an empty file.
func Default() Config {
	return Config{
		Socket:        "/run/embedcni/multus.sock",
		QueueDir:      "/var/lib/embedcni/dels",
		StateDir:      "/var/lib/embedcni",
		Owner:         "embedcnid",
		ShutdownGrace: 20 * time.Second,
		ConfDir:       "/etc/embedcni/net.d",
		Networks:      First,
		PluginDirs:    []string{cni.DefaultCNIDir},
		Timeouts:      cni.Timeouts{Add: 3 * time.Minute, Del: 50 * time.Second, Check: time.Minute, Status: 10 * time.Second},
		Retry:         cni.Retry{Attempts: 1, Delay: 100 * time.Millisecond, MaxDelay: 5 * time.Second},
		Limits: server.Limits{
			Concurrent: 16, Queued: 1024, Request: 4 << 20, Requests: 32 << 20, Deadline: 4 * time.Minute, Transfer: 10 * time.Second,
		},
		Log:        Log{Level: "info", Format: Text},
		Kubernetes: Kubernetes{Events: true, Timeout: 10 * time.Second, QPS: 50, Burst: 100},
	}
}
