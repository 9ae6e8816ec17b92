package cni

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/record"
)

// facts are the notes of built-in plugins about an attachment, for its DEL.
type facts struct {
	mu    sync.Mutex
	noted map[string]json.RawMessage
}

func (f *facts) all() map[string]json.RawMessage {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.noted)
}

func (f *facts) set(noted map[string]json.RawMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noted = maps.Clone(noted)
}

var _ caller.Caller = (*attachment)(nil)

// Fact implements [caller.Caller].
func (a *attachment) Fact(key string) json.RawMessage {
	a.facts.mu.Lock()
	defer a.facts.mu.Unlock()
	return a.facts.noted[key]
}

// Note implements [caller.Caller].
func (a *attachment) Note(key string, value any) error {
	data, err := json.Marshal(value)
	if err == nil {
		err = a.Append(record.Entry{Facts: map[string]json.RawMessage{key: data}})
	}
	if err != nil {
		return fmt.Errorf("note %s: %w", key, err)
	}
	a.facts.mu.Lock()
	defer a.facts.mu.Unlock()
	if a.facts.noted == nil {
		a.facts.noted = make(map[string]json.RawMessage)
	}
	a.facts.noted[key] = data
	return nil
}

// InUse implements [caller.Caller].
func (a *attachment) InUse() ([]netip.Addr, error) {
	others, err := a.op.others(a.IfName).InUse()
	if err != nil || a.op.Record == nil {
		return others, err
	}
	return append(others, footprint.AddressesOf(a.op.Record.Networks, map[string]bool{a.IfName: true})...), nil
}
