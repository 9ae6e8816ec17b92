package cni

import "github.com/embedcni/cni/internal/record"

func (s *snapshot) holds() record.Holds { return record.HoldsIn(s.opts.stateDir) }

// forgetHolds deletes the holds of a container that is gone. If that fails, a later
// container of the same ID is not held.
func (s *snapshot) forgetHolds(id record.ID, gone attachments) {
	var networks []string
	for _, a := range gone {
		networks = append(networks, a.network.config.Name)
	}
	if err := s.holds().Forget(id, networks...); err != nil {
		s.opts.logger.Warn("delete the holds of a removed container", "container", id, "error", err)
	}
}
