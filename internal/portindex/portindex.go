// Package portindex finds who claims ports of the host: containers on record, and those
// of other programs that only libcni's cache has.
//
// The records alone decide who has a port. A process remembers which ports each record
// names, and reads a record again when its name has come to lead to another file: the
// first line of a record, which has the ports, is never changed. Whoever has written a
// record for a port while holding the port's lock is therefore seen by the next who gets
// that lock.
package portindex

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/shared"
)

// Index finds the records of a directory by the ports that they claim. It is safe for
// concurrent use.
type Index struct {
	records *record.Store
	logger  *slog.Logger
	*state
}

// state is what the process knows of a directory. Without it in common, a program with a
// Runtime for each container would have as many watches: the user may have 128, of which
// other programs need some.
type state struct {
	files *dirwatch.Files[[]slot]

	mu   sync.Mutex
	next int // where Free goes on, from the first port of the range
}

// slot is a port that a record names, at whatever address.
type slot struct {
	letter byte // the first of the protocol
	port   uint16
}

func slotOf(c ports.Claim) slot { return slot{c.Protocol[0], c.Port} }

var states shared.Values[string, state] // by the directory of the records

// Open returns the index of the records. It touches nothing. What is in memory is shared
// with the other Indexes of the directory.
func Open(records *record.Store, logger *slog.Logger) *Index {
	return &Index{records, logger, states.Get(records.Dir(), func() *state { return newState(records.Dir(), dirwatch.OpenNames) })}
}

func newState(dir string, watch func(dir string) (*dirwatch.Watch, error)) *state {
	return &state{files: dirwatch.NewFiles[[]slot](dir, record.FileExt, watch), next: rand.IntN(1 << 16)}
}

// Holder is an attachment on record that claims a port.
type Holder struct {
	Record     *record.Record
	Attachment *record.Attachment
	Claim      ports.Claim
}

// Capability is the name of the capability by which a caller asks for ports.
const Capability = "portMappings"

// Claims returns the ports that an attachment claims: those that its caller asked for,
// if a plugin of the network was told of them. Its configuration is parsed by configs,
// which may be nil.
func Claims(a *record.Attachment, configs *conflist.Cache) []ports.Claim {
	mappings, ok := a.Capabilities[Capability]
	if !ok {
		return nil
	}
	claims := ports.Of(mappings)
	if len(claims) == 0 {
		return nil
	}
	list, err := configs.Parse(a.Config)
	if err == nil && !conflist.Declares(list, Capability) {
		return nil
	}
	return claims
}

// Find returns the attachments, of all hosts and boots, whose claims overlap the
// wanted ones. Of a record that cannot be used, the legible part counts.
func (x *Index) Find(wanted []ports.Claim) (holders []Holder, err error) {
	names, err := having(x.files, wanted, x.read)
	if err != nil {
		return nil, fmt.Errorf("host ports on record: %w", err)
	}
	for _, name := range names {
		rec, err := x.records.LoadFile(name)
		if err != nil {
			x.logger.Warn("the ports of the host that a container has may be unknown: its record cannot be used", "record", name, "error", err)
		}
		if rec != nil { // else it was removed meanwhile
			holders = append(holders, holdersIn(rec, wanted)...)
		}
	}
	return holders, nil
}

func holdersIn(rec *record.Record, wanted []ports.Claim) (holders []Holder) {
	for a := range rec.Present() {
		for _, c := range Claims(a, nil) {
			if slices.ContainsFunc(wanted, c.Overlaps) {
				holders = append(holders, Holder{rec, a, c})
			}
		}
	}
	return holders
}

// having returns the names of the files that name one of the ports, in order.
func having(files *dirwatch.Files[[]slot], wanted []ports.Claim, read dirwatch.Reader[[]slot]) (names []string, err error) {
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
		x.logger.Warn("the ports of the host that a container has may be unknown: its record cannot be used", "record", name, "error", err)
		return nil, false
	}
	base, _, _ := bytes.Cut(data, []byte("\n"))
	return slotsIn(base), true
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
			for _, c := range ports.Of(mappings) {
				slots = append(slots, slotOf(c))
			}
		}
	}
}
