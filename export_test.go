package cni

import (
	"os"

	"github.com/embedcni/cni/plugin"
)

// SyncRecordsBy has a test do what brings records to the disk.
func (r *Runtime) SyncRecordsBy(sync func(*os.File) error) { r.current.Load().records.Sync = sync }

// SyncLedgerBy has a test do what brings the ledger to the disk.
func (r *Runtime) SyncLedgerBy(sync func(*os.File) error) { r.current.Load().ledger().Fsync = sync }

// WithBuiltins has tests say what is built in.
func WithBuiltins(plugins map[string]plugin.Plugin) Opt {
	return func(c *config) error {
		c.choice.builtIn = func(typ string) plugin.Plugin { return plugins[typ] }
		return nil
	}
}
