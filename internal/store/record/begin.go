package record

import (
	"fmt"
	"os"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// Survival is when a record survives a power cut.
type Survival int

const (
	// AtOnce: when it is written.
	AtOnce Survival = iota
	// Soon: when the Pending is over. Until then the caller may make only things that a
	// power cut destroys too, such as interfaces and rules.
	Soon
	// Never: a power cut leaves it whole, torn or not at all, and undoes all that is made.
	Never
)

// Begin writes the base of a record before its attachments are made. When it
// returns nil, the record survives a power cut. It replaces an earlier base of
// the container, so r must also contain everything in that base which is still
// true. Begin increments Generation.
func (s *Store) Begin(r *Record) error {
	_, err := s.BeginAs(r, AtOnce, nil)
	return err
}

// BeginAs is Begin for a record that may survive later. All processes see it when BeginAs
// returns. One that replaces another is durable by then: the other may be, and a power cut
// must not tear the new one. The file of a first record may have been prepared; see
// [Store.Prepare].
func (s *Store) BeginAs(r *Record, survives Survival, prepared *plainfile.Unnamed) (p *Pending, err error) {
	if r.Generation > 0 {
		survives = AtOnce
	}
	f, err := s.begin(r, survives == AtOnce, prepared)
	switch {
	case err != nil:
	case survives == AtOnce:
		err = joined.Errors(f.Close(), plainfile.SyncDir(s.dir))
	case survives == Never:
		err = f.Close()
	default:
		p = &Pending{done: make(chan struct{})}
		go func() {
			defer close(p.done)
			// One after the other: some file systems take twice as long for both at once.
			p.failed = r.inRecord(joined.Errors(s.Sync(f), f.Close(), plainfile.SyncDir(s.dir)))
		}()
	}
	return p, r.inRecord(err)
}

// inRecord completes an error about the file.
func (r *Record) inRecord(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("record of container %s: %w", r.ContainerID, err)
}

// Pending is a sync in progress, of a record.
type Pending struct {
	done   chan struct{}
	failed error // set when done
}

// Wait returns nil when the data survives a power cut, or the reason why it does
// not. A nil Pending has nothing to wait for.
func (p *Pending) Wait() error {
	if p == nil {
		return nil
	}
	<-p.done
	return p.failed
}

// Prepare begins to make the file of a container's first record, for [Store.BeginAs], while
// the caller works out the content. The caller discards it at the end.
func (s *Store) Prepare() *plainfile.Unnamed { return plainfile.Prepare(s.dir, 0o600) }

// begin puts the base in place and returns the open file, which the caller
// closes. If durably is set, it syncs the file first, so that a power cut leaves
// either the old content or the new. It does not sync the directory.
func (s *Store) begin(r *Record, durably bool, prepared *plainfile.Unnamed) (*os.File, error) {
	r.Generation++
	data, err := encodeBase(r)
	if err != nil {
		return nil, err
	}
	if !durably {
		// A file without a name cannot replace another, and some file systems (btrfs)
		// do not write it to the disk.
		if f, err := prepared.Publish(s.path(r.ContainerID), data); err == nil {
			return f, nil
		}
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	path := s.path(r.ContainerID)
	tmp := path + tmpExt
	f, err := plainfile.Open(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = f.Write(data); err == nil && durably {
		err = s.Sync(f)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return nil, joined.Errors(err, f.Close(), remove(tmp))
	}
	return f, nil
}
