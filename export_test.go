package cni

import (
	"os"
	"time"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/plugin"
)

// SyncRecordsBy replaces the function that brings records to the disk.
func (r *Runtime) SyncRecordsBy(sync func(*os.File) error) {
	r.current.Load().eng.Store.Records.Sync = sync
}

// Patiently removes the time limits on first ADDs and on the calls that wait
// for them.
func (r *Runtime) Patiently() *Runtime {
	r.current.Load().eng.RunnerOf(&engine.Network{}).First.Within(time.Hour, time.Hour)
	return r
}

// WithBuiltins replaces the built-in plugins.
func WithBuiltins(plugins map[string]plugin.Plugin) Opt {
	return func(c *config) error {
		c.choosing.BuiltIn = func(typ string) plugin.Plugin { return plugins[typ] }
		return nil
	}
}
