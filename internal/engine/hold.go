package engine

import "github.com/embedcni/cni/internal/record"

func (eng *Engine) holds() record.Holds { return record.HoldsIn(eng.opts.StateDir) }

// forgetHolds deletes the holds of a container that is gone. If that fails, a later
// container of the same ID is not held.
func (eng *Engine) forgetHolds(id record.ID, gone attachments) {
	var networks []string
	for _, a := range gone {
		networks = append(networks, a.plan.Network.Config.Name)
	}
	if err := eng.holds().Forget(id, networks...); err != nil {
		eng.opts.Logger.Warn("delete the holds of a removed container", "container", id, "error", err)
	}
}
