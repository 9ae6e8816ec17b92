package cni

import (
	"fmt"

	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// SweepNetNS is netns.Sweep, and keeps the namespaces of containers on record too, of
// any owner, whether or not a process is in them. It removes nothing, and returns an
// error, while a record is damaged or cannot be read. It is for the start of a program
// that makes namespaces without WithNewNetNS.
func (r *Runtime) SweepNetNS(dir string, o netns.SweepOptions) (*netns.SweepReport, error) {
	s := r.current.Load()
	found, err := s.Records.List()
	if err != nil {
		return nil, fmt.Errorf("sweep network namespaces in %q: %w", dir, err)
	}
	byID, byPath := map[netns.ID]record.ID{}, map[string]record.ID{}
	for _, f := range found {
		if f.Err != nil {
			return nil, fmt.Errorf("sweep network namespaces in %q: %w", dir, recordError(s.Records, f.Record.ContainerID, f.File, f.Err))
		}
		if id := f.Record.NetNS.ID(); id != (netns.ID{}) {
			byID[id] = f.Record.ContainerID
		}
		byPath[f.Record.NetNS.Path] = f.Record.ContainerID
	}
	keep := o.Keep
	o.Keep = func(e netns.Entry) error {
		id, ok := byID[e.ID]
		if !ok {
			id, ok = byPath[e.Path]
		}
		if ok {
			return fmt.Errorf("container %s is on record: %w", id, netns.ErrBusy)
		}
		if keep == nil {
			return nil
		}
		return keep(e)
	}
	return netns.Sweep(dir, o)
}
