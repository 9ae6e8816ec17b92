// Package record keeps attachments on disk, from before they are made until they
// are gone. After a runtime was killed or a machine rebooted, a record lists the
// attachments to remove, with everything that a DEL needs.
//
// Each container has one file of lines. The first line, the base, names the
// attachments. It is written once, before the first plugin runs, and synced
// before a plugin may make anything that survives a power cut. The other lines
// are the log, one for each event. The log is not synced: a write survives the
// process, and after a power cut the namespaces are gone, so only the base still
// matters. Each line has a checksum. File names are hashes, so no container ID
// becomes a path.
package record

import (
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/embedcni/cni/netns"
)

// format is the version of the files. Format 1 kept the log in a file of its
// own. A new optional field needs no new format, because programs keep fields
// that they do not know; see [Record.Inherit].
const format = 2

// Reasons why a record cannot be used. The legible part of the record comes with
// each of them. Only ErrBad means damage: the others may concern live
// containers.
var (
	// ErrBad: the file was read to its end and is not a record.
	ErrBad = errors.New("damaged attachment record")
	// ErrNewer: the checksum is right, and a newer version wrote the record. The
	// fields that this version knows are set.
	ErrNewer = errors.New("attachment record of a newer version")
	// ErrUnread: the file could not be opened or read, for example for lack of
	// descriptors or on a failing disk. Only the file's name is known.
	ErrUnread = errors.New("attachment record cannot be read")
)

// Record is a container's attachments.
type Record struct {
	ContainerID ID        `json:"containerID"`
	Owner       string    `json:"owner,omitempty"` // the first to ask; see OwnerOf
	Boot        string    `json:"boot"`            // boot id of the machine
	Host        string    `json:"host"`            // identity of the namespace the plugins run in
	Since       time.Time `json:"since"`
	NetNS       NetNS     `json:"netns"`
	Generation  int       `json:"generation"` // counts the bases of this container
	Runtime     string    `json:"runtime"`    // identity of the process working on it, or the last that did
	// Life names the byte that this process keeps locked while it lives. PIDNS is
	// the PID namespace of the numbers in Runtime. Both are empty in records of
	// earlier versions.
	Life  string `json:"life,omitempty"`
	PIDNS uint64 `json:"pidNS,omitempty"`
	// HostPath led to Host when the record was written; empty if no path did.
	HostPath    string       `json:"hostPath,omitempty"`
	Attachments []Attachment `json:"networks"`

	// PluginID is the container ID that plugins know, if it differs: the one
	// under which the pool made the container ahead of time.
	PluginID PluginID `json:"pluginID,omitempty"`
	// Warm means that the container belongs to nobody yet: Runtime made it ahead
	// of time.
	Warm bool `json:"warm,omitempty"`

	// LetGo is set when an abandoned container's namespace is no longer kept
	// alive although the container is still attached.
	LetGo *LetGo `json:"letGo,omitempty"`

	unknown members
	later   bool // a later version wrote it: some part of it may have unknown members
}

// LetGo holds the means to find out whether a namespace that is no longer kept
// alive has ended. Ends are interface indexes in the namespace Host: the other
// ends of the interfaces in the container's namespace, which disappear with it.
type LetGo struct {
	Ends []int `json:"ends,omitempty"`
}

// ID is a container's ID as the caller of the library knows it: the name of its
// record, its lock and its pin.
type ID string

// LogValue makes the ID a string in logs.
func (id ID) LogValue() slog.Value { return slog.StringValue(string(id)) }

// PluginID is a container's ID as its plugins know it: in their configuration,
// rules, files and environment, in libcni's cache and in the ledger. It equals the
// ID, unless a pool made the container under an ID of its own. The two types keep
// them apart; a conversion marks each place where they are compared.
type PluginID string

// Plugins returns the container ID that plugins know.
func (r *Record) Plugins() PluginID {
	if r.PluginID != "" {
		return r.PluginID
	}
	return PluginID(r.ContainerID)
}

// NetNS identifies the container's network namespace, because a path may lead to
// another one later.
type NetNS struct {
	Path string `json:"path"`
	Dev  uint64 `json:"dev,omitempty"`
	Ino  uint64 `json:"ino,omitempty"`
	Pin  string `json:"pin,omitempty"` // where the namespace is pinned; empty if it is not
	// Ours means that the namespace was made for the container, at Path, and is
	// deleted with it. It needs no pin.
	Ours bool `json:"ours,omitempty"`
	// InUse means that a caller has given the path of a namespace that is Ours, to attach
	// the container in it again: its processes may be in it. A Setup that fails, or is
	// killed, does not delete it then.
	InUse bool `json:"inUse,omitempty"`
	// View identifies the view in which Path leads to the namespace: the mount
	// and PID namespaces and the root directory of the process that opened it. In
	// another view, Path means nothing. View is empty in records of earlier
	// versions.
	View string `json:"view,omitempty"`
	// File is the file at Path, on which the namespace is mounted, if Path is the
	// caller's choice: another program may have files there. It is nil if Path is in
	// this library's directory, or if the file system makes no file without a name.
	File *File `json:"file,omitempty"`

	unknown members
}

// File identifies an empty file. Its inode alone may be another file's later.
type File struct {
	Ino     uint64    `json:"ino"`
	ModTime time.Time `json:"modTime"`
}

// ID returns the identity of the namespace.
func (n NetNS) ID() netns.ID { return netns.ID{Dev: n.Dev, Ino: n.Ino} }

// Attachment records one attachment: the parameters and results of its plugins.
type Attachment struct {
	Network      string                     `json:"name"`
	IfName       string                     `json:"ifName"`
	Config       []byte                     `json:"config"` // the whole list with every plugin, to the byte
	Args         [][2]string                `json:"args,omitempty"`
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
	ConfigArgs   map[string]json.RawMessage `json:"configArgs,omitempty"`
	Metadata     map[string]string          `json:"metadata,omitempty"` // of the caller's
	// PluginDirs are the plugin directories that the call wanted to come first.
	PluginDirs []string `json:"pluginDirs,omitempty"`
	// OwnConfig means that Config was given with the call, rather than loaded.
	OwnConfig bool `json:"ownConfig,omitempty"`
	// PrevResult was given with the call to the first plugin. Its interfaces are not the
	// attachment's.
	PrevResult json.RawMessage `json:"prevResult,omitempty"`
	Ports      []Port          `json:"ports,omitempty"` // by WithPorts; Capabilities has them too

	// Owner asked for this attachment, if the record's owner did not; see
	// OwnerOf.
	Owner string `json:"owner,omitempty"`
	// Plugins are the plugins that the ADD runs, one for each type, with the ones
	// to which in-process plugins delegate. Empty in records of earlier versions.
	Plugins []Plugin `json:"plugins,omitempty"`
	// NeverRan are types of plugins, delegated ones included, whose ADD is known
	// never to have started: their DEL has nothing to undo.
	NeverRan []string `json:"neverRan,omitempty"`
	// Facts are notes that built-in plugins made for their DEL; see package
	// caller.
	Facts map[string]json.RawMessage `json:"facts,omitempty"`

	// Call groups the attachments of one Setup: it is the generation of the base
	// that introduced them.
	Call int `json:"call,omitempty"`
	// Since is not later than any file that the ADD made, by the clock that stamps
	// files. It is zero for lo, for a pool's attachments and in records of earlier
	// versions.
	Since time.Time `json:"since,omitzero"`

	State  State           `json:"state,omitempty"`
	Result json.RawMessage `json:"result,omitempty"` // of the last plugin that answered

	// The failed attempts to detach it: their number, and the reason and time of
	// the last.
	Failures  int       `json:"failures,omitempty"`
	LastError string    `json:"lastError,omitempty"`
	LastTry   time.Time `json:"lastTry,omitzero"`

	unknown members
}

// Port is a port that the caller asked for by name, with the host port that it got.
type Port struct {
	Label         string   `json:"label,omitempty"`
	HostIP        string   `json:"hostIP,omitempty"`
	HostPort      int32    `json:"hostPort"`
	ContainerPort int32    `json:"containerPort"`
	Protocols     []string `json:"protocols,omitempty"`
}

// Plugin records which plugin ran for a type.
type Plugin struct {
	Type    string `json:"type"`
	Kind    string `json:"kind"`              // one of the following; empty: there was no plugin, so no ADD ran
	Path    string `json:"path,omitempty"`    // of an executable
	Backend string `json:"backend,omitempty"` // packet filter backend, if the configuration names none

	unknown members
}

// Kinds of plugins.
const (
	KindExecutable = "executable"
	KindBuiltIn    = "built in"
	KindRegistered = "registered" // by the caller
)

// State is the progress of an attachment.
type State string

const (
	Planned  State = ""         // recorded; a plugin may have begun
	Added    State = "added"    // every plugin has answered
	Deleting State = "deleting" // was added and is being removed; a plugin may have begun to delete
	Deleted  State = "deleted"  // every plugin has deleted; the rest of the record has not been removed
)

// Answered reports whether every plugin has answered the ADD, so that the result
// is complete.
func (a *Attachment) Answered() bool { return a.State == Added || a.State == Deleting }

// RetryIn returns the time until a failed removal is to be repeated. The delay doubles
// from a second, to at most an hour. It is not positive if there is none.
func (a *Attachment) RetryIn(now time.Time) time.Duration {
	if a.Failures == 0 || a.LastTry.After(now) {
		return 0 // the clock was ahead: the time of the failure is unknown
	}
	return min(time.Second<<min(a.Failures-1, 12), time.Hour) - now.Sub(a.LastTry)
}

// WasAttached reports whether an attachment is complete, and no removal of it has begun.
func (r *Record) WasAttached() bool {
	return slices.ContainsFunc(r.Attachments, func(n Attachment) bool { return n.State == Added && n.Failures == 0 })
}

// IsUnfinished reports whether a removal of one of the attachments has begun, or the
// Setup that it belongs to has not ended.
func (r *Record) IsUnfinished(n *Attachment) bool {
	return n.State == Deleting || n.Failures > 0 ||
		slices.ContainsFunc(r.Attachments, func(o Attachment) bool { return o.State == Planned && o.Call == n.Call })
}

// HasOthers reports whether attachments are in the record under other interface names
// than these.
func (r *Record) HasOthers(names map[string]bool) bool {
	return r.Has(func(n *Attachment) bool { return !names[n.IfName] })
}

// Present returns the attachments that were not removed.
func (r *Record) Present() iter.Seq[*Attachment] {
	return func(yield func(*Attachment) bool) {
		for i := range r.Attachments {
			if n := &r.Attachments[i]; n.State != Deleted && !yield(n) {
				return
			}
		}
	}
}

// Has reports whether is returns true for an attachment that was not removed.
func (r *Record) Has(is func(*Attachment) bool) bool {
	for n := range r.Present() {
		if is(n) {
			return true
		}
	}
	return false
}

// Find returns the attachment with that interface name, or nil.
func (r *Record) Find(ifName string) *Attachment {
	i := slices.IndexFunc(r.Attachments, func(n Attachment) bool { return n.IfName == ifName })
	if i < 0 {
		return nil
	}
	return &r.Attachments[i]
}

// Entry is a line of the log.
type Entry struct {
	Generation  int             `json:"generation"`
	ContainerID ID              `json:"containerID,omitempty"` // this and the owners are for the case that the base is lost
	Owner       string          `json:"owner,omitempty"`
	IfOwner     string          `json:"ifOwner,omitempty"` // owner of the attachment, if the record has another
	PluginID    PluginID        `json:"pluginID,omitempty"`
	Time        time.Time       `json:"time"`
	Runtime     string          `json:"runtime,omitempty"` // that works on it from here on
	IfName      string          `json:"ifName,omitempty"`
	State       State           `json:"state,omitempty"`
	Result      json.RawMessage `json:"result,omitempty"`
	Error       string          `json:"error,omitempty"`

	Metadata map[string]string `json:"metadata,omitempty"` // added to the attachment's

	Life  string `json:"life,omitempty"` // of Runtime
	PIDNS uint64 `json:"pidNS,omitempty"`

	Facts  map[string]json.RawMessage `json:"facts,omitempty"`  // added to the attachment's
	Plugin *Plugin                    `json:"plugin,omitempty"` // to which the ADD has delegated

	NeverRan []string `json:"neverRan,omitempty"`

	LetGo *LetGo `json:"letGo,omitempty"` // about the namespace
	InUse *bool  `json:"inUse,omitempty"` // as well; see NetNS
}

// apply applies the entry to the record. An entry of another container or
// generation was in the file before the file became this record's.
func (r *Record) apply(e Entry) {
	if e.Generation != r.Generation || e.ContainerID != r.ContainerID {
		return
	}
	if e.Runtime != "" {
		r.Runtime, r.Life, r.PIDNS = e.Runtime, e.Life, e.PIDNS
	}
	if e.LetGo != nil {
		r.LetGo = e.LetGo
	}
	if e.InUse != nil {
		r.NetNS.InUse = *e.InUse
	}
	n := r.Find(e.IfName)
	if n == nil {
		return
	}
	if e.Error != "" {
		n.Failures++
		n.LastError, n.LastTry = e.Error, e.Time
	}
	if e.Result != nil {
		n.Result = e.Result
	}
	if e.NeverRan != nil {
		n.NeverRan = e.NeverRan
	}
	n.Metadata, n.Facts = merge(n.Metadata, e.Metadata), merge(n.Facts, e.Facts)
	if e.Plugin != nil && !slices.ContainsFunc(n.Plugins, func(p Plugin) bool { return p.Type == e.Plugin.Type }) {
		n.Plugins = append(n.Plugins, *e.Plugin)
	}
	if e.State != Planned && (e.State != Deleting || n.State == Added) {
		n.State = e.State
	}
}
