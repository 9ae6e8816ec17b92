package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Key is a key of the file, and the flag of the same name.
type Key struct {
	Name string // a dot separates the section
	Live bool   // a change is in force without a restart
	Doc  string

	at func(*Config) any // the field, of a type that kindOf knows
}

// Keys returns all keys in the order of the documentation.
func Keys() []Key {
	return slices.Concat(daemonKeys(), networkKeys(), limitKeys(), clusterKeys())
}

func daemonKeys() []Key {
	return []Key{
		{"socket", false, "path of the unix socket that the shim asks", func(c *Config) any { return &c.Socket }},
		{"uid", false, "user that may call beside root", func(c *Config) any { return &c.UID }},
		{"queueDir", false, "directory of the DELs that the shim queues while no daemon runs; the shim must name the same", func(c *Config) any { return &c.QueueDir }},
		{"stateDir", false, "directory of records, results and locks; it must survive a reboot, and not be the runtime's /var/lib/cni", func(c *Config) any { return &c.StateDir }},
		{"recordDir", false, "directory of the records, if they are to be elsewhere", func(c *Config) any { return &c.RecordDir }},
		{"owner", false, "owner of the attachments on record; another name finds none of them", func(c *Config) any { return &c.Owner }},
		{"hostNetNS", false, "path of the network namespace in which plugins run, if it is not the daemon's", func(c *Config) any { return &c.HostNetNS }},
		{"readinessFile", false, "ADDs wait until this file exists", func(c *Config) any { return &c.ReadinessFile }},
		{"shutdownGrace", true, "how long a shutdown lets calls go on", func(c *Config) any { return &c.ShutdownGrace }},
		{"healthInterval", false, "how often all containers are compared with their records, for embedcni_containers in /metrics; installed plugins are asked for CHECK. 0s: never", func(c *Config) any { return &c.HealthInterval }},
		{"http.address", true, "TCP address of /healthz, /readyz and /metrics, such as 127.0.0.1:9418; empty: there is none", func(c *Config) any { return &c.HTTP.Address }},
		{"log.level", true, "debug (each plugin call and answer), info, warn (refused calls) or error", func(c *Config) any { return &c.Log.Level }},
		{"log.format", false, "text or json", func(c *Config) any { return &c.Log.Format }},
	}
}

func networkKeys() []Key {
	return []Key{
		{"confDir", true, "directory of conflists: those that every container gets, and those that a container names. It must not be the runtime's. Empty: there are none", func(c *Config) any { return &c.ConfDir }},
		{"networks", true, "which of them a container gets whose request has no plugins: first, in the order of the file names, or all", func(c *Config) any { return &c.Networks }},
		{"pluginDirs", true, "directories of installed plugins", func(c *Config) any { return &c.PluginDirs }},
		{"pluginRoot", true, "root directory of executed plugins, for a daemon in a container that has the host's at this path", func(c *Config) any { return &c.PluginRoot }},
		{"builtinPlugins", true, "types that run in process although they are installed, or [all]; types that are not installed run in process if they can", func(c *Config) any { return &c.BuiltinPlugins }},
		{"pluginEnv", false, "more variables of the environment that plugins get; an ending * stands for any rest", func(c *Config) any { return &c.PluginEnv }},
		{"strictPorts", false, "refuse to forward a port of the host that a process uses", func(c *Config) any { return &c.StrictPorts }},
		{"insecureFiles", false, "directories in which conflists and plugins are accepted that other users may write, such as a mounted ConfigMap", func(c *Config) any { return &c.InsecureFiles }},
		{"gc", true, "carry out GC calls; otherwise they succeed and do nothing. A runtime's GC ends what other runtimes attached to the same network", func(c *Config) any { return &c.GC }},
		{"guard.classes", true, "what is put back when others remove it: rules, links, routes", func(c *Config) any { return &c.Guard.Classes }},
		{"guard.legacyInterval", true, "how often rules in the legacy tables of iptables are looked at; 0s: never", func(c *Config) any { return &c.Guard.LegacyInterval }},
	}
}

func limitKeys() []Key {
	return []Key{
		{"timeouts.add", true, "time of one plugin for ADD", func(c *Config) any { return &c.Timeouts.Add }},
		{"timeouts.del", true, "time of one plugin for DEL and GC", func(c *Config) any { return &c.Timeouts.Del }},
		{"timeouts.check", true, "time of one plugin for CHECK", func(c *Config) any { return &c.Timeouts.Check }},
		{"timeouts.status", true, "time of one plugin for STATUS", func(c *Config) any { return &c.Timeouts.Status }},
		{"retry.attempts", true, "attempts of an ADD whose plugin asks to try again later", func(c *Config) any { return &c.Retry.Attempts }},
		{"retry.delay", true, "time before the second attempt; it doubles from then on", func(c *Config) any { return &c.Retry.Delay }},
		{"retry.maxDelay", true, "longest time between two attempts", func(c *Config) any { return &c.Retry.MaxDelay }},
		{"limits.concurrent", false, "ADDs that run at once, and again as many other calls", func(c *Config) any { return &c.Limits.Concurrent }},
		{"limits.queued", false, "calls that wait; more are refused with code 11", func(c *Config) any { return &c.Limits.Queued }},
		{"limits.request", false, "bytes of the longest request", func(c *Config) any { return &c.Limits.Request }},
		{"limits.requests", false, "bytes of all requests at a time", func(c *Config) any { return &c.Limits.Requests }},
		{"limits.deadline", false, "time of one call, with its time in the queue", func(c *Config) any { return &c.Limits.Deadline }},
		{"limits.transfer", false, "time that a client has to send its request, and again to take the answer", func(c *Config) any { return &c.Limits.Transfer }},
	}
}

func clusterKeys() []Key {
	return []Key{
		{"kubernetes.enabled", false, "look up pods, their networks and NetworkAttachmentDefinitions, and write the network status", func(c *Config) any { return &c.Kubernetes.Enabled }},
		{"kubernetes.node", false, "name of this node, as spec.nodeName of its pods has it", func(c *Config) any { return &c.Kubernetes.Node }},
		{"kubernetes.kubeconfig", false, "file that names the API server; empty: the service account of the daemon's pod", func(c *Config) any { return &c.Kubernetes.Kubeconfig }},
		{"kubernetes.isolated", false, "refuse pods the networks of other namespaces", func(c *Config) any { return &c.Kubernetes.Isolated }},
		{"kubernetes.global", false, "namespaces whose networks all pods may use nevertheless", func(c *Config) any { return &c.Kubernetes.Global }},
		{"kubernetes.events", false, "write an Event to a pod whose ADD fails", func(c *Config) any { return &c.Kubernetes.Events }},
		{"kubernetes.timeout", false, "time of one lookup, or of writing one status", func(c *Config) any { return &c.Kubernetes.Timeout }},
		{"kubernetes.qps", false, "requests to the API server each second", func(c *Config) any { return &c.Kubernetes.QPS }},
		{"kubernetes.burst", false, "requests at once beyond that", func(c *Config) any { return &c.Kubernetes.Burst }},
	}
}

// find returns the key of a name.
func find(name string) (Key, bool) {
	all := Keys()
	i := slices.IndexFunc(all, func(k Key) bool { return k.Name == name })
	if i < 0 {
		return Key{}, false
	}
	return all[i], true
}

// Value returns the key's value as a file has it.
func (k Key) Value(c *Config) string {
	switch v := k.at(c).(type) {
	case *[]string:
		return "[" + strings.Join(*v, ", ") + "]"
	case *time.Duration:
		return short(*v)
	default:
		return fmt.Sprint(reflect.ValueOf(v).Elem())
	}
}

// short returns a time as people write it: 4m instead of 4m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// Merge returns the configuration that is in force after a change from c to next without a
// restart, with the names of the keys that are in force, and of those that wait for one.
func (c Config) Merge(next Config) (merged Config, changed, restart []string) {
	merged = c
	for _, k := range Keys() {
		to, from := reflect.ValueOf(k.at(&merged)).Elem(), reflect.ValueOf(k.at(&next)).Elem()
		switch {
		case k.Value(&merged) == k.Value(&next):
		case k.Live:
			to.Set(from)
			changed = append(changed, k.Name)
		default:
			restart = append(restart, k.Name)
		}
	}
	return merged, changed, restart
}
