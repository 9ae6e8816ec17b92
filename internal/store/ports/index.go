package ports

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// Index finds the attachments that claim ports of the host: those on record, and those of
// other programs that only libcni's cache has. It is safe for concurrent use.
//
// The records alone decide who has a port. A process remembers which ports each record
// names, and reads a record again when its name has come to lead to another file: the
// first line of a record, which has the ports, is never changed. Whoever has written a
// record for a port while holding the port's lock is therefore seen by the next who gets
// that lock.
type Index struct {
	records *record.Store
	results string // libcni's cache
	logger  *slog.Logger
	*state
}

// state is what the process knows of two directories. Without it in common, a program with a
// Runtime for each container would have as many watches: the user may have 128, of which
// other programs need some.
type state struct {
	recorded, cached *record.Files[[]slot]

	mu   sync.Mutex
	next int // where Free goes on, from the first port of the range
}

// slot is a port that a file names, at whatever address.
type slot struct {
	letter byte // the first of the protocol
	port   uint16
}

func slotOf(c Claim) slot { return slot{c.Protocol[0], c.Port} }

type dirs struct{ records, results string }

var states thread.Shared[dirs, state]

// Open returns the index of the records, and of libcni's cache in a directory. It touches
// nothing. What is in memory is shared with the other Indexes of the directories.
func Open(records *record.Store, cacheDir string, logger *slog.Logger) *Index {
	d := dirs{records.Dir(), filepath.Join(cacheDir, "results")}
	return &Index{records: records, results: d.results, logger: logger, state: states.Get(d, d.watched)}
}

// watched returns the state of a process that knows nothing yet.
func (d dirs) watched() *state {
	return &state{
		recorded: record.NewFiles[[]slot](d.records, record.FileExt, record.WatchNames),
		cached:   record.NewFiles[[]slot](d.results, "", record.WatchFiles),
		next:     rand.IntN(1 << 16),
	}
}

// Holder is an attachment that claims a port. For one that only libcni's cache has, the
// Record is made up of what the cache says.
type Holder struct {
	Record     *record.Record
	Attachment *record.Attachment
	Claim      Claim
}

// Conflict is a wanted port that another container has.
type Conflict struct {
	Wanted Claim
	Holder
	Lives bool // only of Unrecorded: certainly, on this host; else it may be gone
}

// Capability is the name of the capability by which a caller asks for ports.
const Capability = "portMappings"

// ClaimsOf returns the ports that an attachment claims: those that its caller asked for,
// if a plugin of the network was told of them.
func ClaimsOf(a *record.Attachment) []Claim {
	claims := Of(a.Capabilities[Capability])
	if len(claims) == 0 {
		return nil
	}
	if list, err := conflist.Parse(a.Config); err == nil && !conflist.Declares(list, Capability) {
		return nil
	}
	return claims
}

// Find returns the attachments on record, of all hosts and boots, whose claims overlap the
// wanted ones. Of a record that cannot be used, the legible part counts.
func (x *Index) Find(wanted []Claim) (holders []Holder, err error) {
	names, err := having(x.recorded, wanted, x.read)
	if err != nil {
		return nil, fmt.Errorf("host ports on record: %w", err)
	}
	for _, name := range names {
		rec, err := x.records.LoadFile(name)
		if err != nil {
			x.warn(name, err)
		}
		if rec != nil { // else it was removed meanwhile
			holders = append(holders, holdersIn(rec, wanted)...)
		}
	}
	return holders, nil
}

func (x *Index) warn(name string, err error) {
	x.logger.Warn("the ports of the host that a container has may be unknown: its record cannot be used", "record", name, "error", err)
}

func holdersIn(rec *record.Record, wanted []Claim) (holders []Holder) {
	for a := range rec.Present() {
		for _, c := range ClaimsOf(a) {
			if slices.ContainsFunc(wanted, c.Overlaps) {
				holders = append(holders, Holder{rec, a, c})
			}
		}
	}
	return holders
}

// Conflicts returns a Conflict for each wanted port that another container on record
// has, on the host of rec and since the host was booted. A container has its ports
// until it is removed, even if it is dead: its rules still forward them. Of the
// container's own attachments, the first forwards.
func (x *Index) Conflicts(rec *record.Record, wanted []Claim) (found []Conflict, err error) {
	holders, err := x.Find(wanted)
	if err != nil {
		return nil, err
	}
	return conflicts(rec, wanted, holders), nil
}

// conflicts is Conflicts for holders that were found.
func conflicts(rec *record.Record, wanted []Claim, holders []Holder) (found []Conflict) {
	others := slices.DeleteFunc(slices.Clone(holders), func(h Holder) bool {
		return h.Record.ContainerID == rec.ContainerID || !isOf(h.Record, rec)
	})
	for _, c := range wanted {
		if i := slices.IndexFunc(others, func(h Holder) bool { return h.Claim.Overlaps(c) }); i >= 0 {
			found = append(found, Conflict{Wanted: c, Holder: others[i]})
		}
	}
	return found
}

// isOf reports whether a record is of the same host, and of the same boot, as another.
func isOf(holder, rec *record.Record) bool {
	return holder.Boot == rec.Boot && (holder.Host == "" || holder.Host == rec.Host)
}

// Unrecorded returns a Conflict for each wanted port of each attachment that only libcni's
// cache has, by container and interface: programs that use libcni directly, such as those
// with go-cni, have attached them. Those of the container of rec do not count. endOf finds
// the end on the host of an interface in a namespace. With an error these are the ones that
// are known, and as far as is known.
func (x *Index) Unrecorded(rec *record.Record, wanted []Claim, endOf func(*netns.Handle, string) (int, error)) (found []Conflict, err error) {
	names, err := having(x.cached, wanted, func(name string) ([]slot, bool) { return slotsIn(x.readCached(name)), true })
	if len(names) == 0 || err != nil {
		return nil, err
	}
	onRecord, err := x.Find(wanted)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		c := parseCached(x.readCached(name))
		a := &c.Attachments[0]
		claims := ClaimsOf(a)
		if !Overlap(claims, wanted) || c.ContainerID == rec.ContainerID || c.Plugins() == rec.Plugins() || x.isRecorded(c, onRecord) {
			continue
		}
		lives, lerr := livesOn(endOf, c.NetNS.Path, a.IfName)
		err = joined.Errors(err, lerr)
		for _, w := range wanted {
			if i := slices.IndexFunc(claims, w.Overlaps); i >= 0 {
				found = append(found, Conflict{w, Holder{c, a, claims[i]}, lives})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Conflict) int {
		return cmp.Or(cmp.Compare(a.Record.ContainerID, b.Record.ContainerID), cmp.Compare(a.Attachment.IfName, b.Attachment.IfName))
	})
	return found, err
}

// isRecorded reports whether there is a record of a container in the cache, which has it
// by the ID that plugins know. Until its DEL has ended, a container is on record.
func (x *Index) isRecorded(cached *record.Record, holders []Holder) bool {
	has, err := x.records.Exists(record.Name(cached.ContainerID))
	return has || err != nil || slices.ContainsFunc(holders, func(h Holder) bool { return h.Record.Plugins() == cached.Plugins() })
}

// livesOn reports whether an attachment in libcni's cache certainly lives, and on this host:
// its path leads to a namespace in which its interface is one end of a pair, and the other
// end is here. The cache does not say from which namespace plugins ran.
func livesOn(endOf func(*netns.Handle, string) (int, error), path, ifName string) (bool, error) {
	if path == "" {
		return false, nil
	}
	ns, err := netns.Open(path)
	if err != nil {
		return false, nil // gone, or out of reach
	}
	end, err := endOf(ns, ifName)
	return end != 0, joined.Errors(err, ns.Close())
}

// Free returns n ports of the range, or fewer if there are no more, that no record claims
// and that are not to be avoided. Records of other hosts and boots count too. It goes on
// where it ended before, so that calls of one process choose different ports.
func (x *Index) Free(p *Picked, n int) (free []uint16, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	claimed := make(map[uint16]bool)
	err = x.recorded.Each(x.read, func(_ string, slots []slot) {
		for _, s := range slots {
			if slices.ContainsFunc(p.Protocols, func(p string) bool { return p[0] == s.letter }) {
				claimed[s.port] = true
			}
		}
	})
	if err != nil {
		return nil, err
	}
	size := int(p.Last) - int(p.First) + 1
	for i := range size {
		port := uint16(int(p.First) + (x.next+i)%size)
		if !p.avoid[port] && !claimed[port] {
			if free = append(free, port); len(free) == n {
				x.next = (x.next + i + 1) % size
				break
			}
		}
	}
	return free, nil
}

// Within returns the attachments that claim ports of the range, on the host of rec and
// since the host was booted, those of its container included.
func (x *Index) Within(rec *record.Record, p *Picked) ([]Holder, error) {
	var all []uint16
	for port := int(p.First); port <= int(p.Last); port++ {
		all = append(all, uint16(port))
	}
	holders, err := x.Find(p.Claims(all))
	return slices.DeleteFunc(holders, func(h Holder) bool { return !isOf(h.Record, rec) }), err
}

// having returns the names of the files that name one of the ports, in order.
func having(files *record.Files[[]slot], wanted []Claim, read record.Reader[[]slot]) (names []string, err error) {
	of := make(map[slot]bool, len(wanted))
	for _, c := range wanted {
		of[slotOf(c)] = true
	}
	err = files.Each(read, func(name string, slots []slot) {
		if slices.ContainsFunc(slots, func(s slot) bool { return of[s] }) {
			names = append(names, name)
		}
	})
	slices.Sort(names)
	return names, err
}

// read returns the ports in a record. They may be more than those that the record
// claims: those that no plugin forwards, and those of attachments that are gone.
func (x *Index) read(name string) (slots []slot, sure bool) {
	data, err := x.records.Read(x.records.Path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		x.warn(name, err)
		return nil, false
	}
	base, _, _ := bytes.Cut(data, []byte("\n"))
	return slotsIn(base), true
}

// readCached returns the content of a file of libcni's cache. Nobody may be refused a port
// because of one that cannot be read.
func (x *Index) readCached(name string) []byte {
	path := filepath.Join(x.results, name)
	data, err := plainfile.Read(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		x.logger.Debug("the ports of the host that a container in libcni's cache has are not known", "file", path, "error", err)
	}
	return data
}

// parseCached reads a file of libcni's cache, as a record of one attachment. That claims no
// port if the file is none of an attachment:
//
//	results/podnet-c1-eth0  {"containerId": "c1", "netns": …, "capabilityArgs": {"portMappings": […]}}
func parseCached(data []byte) *record.Record {
	var c struct {
		ContainerID    record.ID                  `json:"containerId"`
		NetworkName    string                     `json:"networkName"`
		IfName         string                     `json:"ifName"`
		NetNS          string                     `json:"netns"`
		Config         []byte                     `json:"config"`
		CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs"`
	}
	if json.Unmarshal(data, &c) != nil || c.ContainerID == "" {
		c.CapabilityArgs = nil
	}
	return &record.Record{ContainerID: c.ContainerID, NetNS: record.NetNS{Path: c.NetNS}, Attachments: []record.Attachment{
		{Network: c.NetworkName, IfName: c.IfName, Config: c.Config, Capabilities: c.CapabilityArgs},
	}}
}

// slotsIn returns the ports in a JSON text, wherever it has the capability. To decode all
// of it would take ten times as long.
func slotsIn(data []byte) (slots []slot) {
	key := []byte(`"` + Capability + `"`)
	for {
		_, rest, found := bytes.Cut(data, key)
		if !found {
			return slots
		}
		data = rest
		value, is := bytes.CutPrefix(bytes.TrimSpace(rest), []byte(":"))
		var mappings json.RawMessage
		if is && json.NewDecoder(bytes.NewReader(value)).Decode(&mappings) == nil {
			for _, c := range Of(mappings) {
				slots = append(slots, slotOf(c))
			}
		}
	}
}
