package cni

import (
	"fmt"

	"github.com/embedcni/cni/internal/orphan"
	"github.com/embedcni/cni/internal/record"
)

// runtimeAlive reports whether the process that last worked on the container
// still runs.
func (s *snapshot) runtimeAlive(rec *record.Record) (bool, error) {
	alive, err := orphan.Alive(rec.Runtime)
	if err != nil {
		return false, fmt.Errorf("the runtime of container %s: %w", rec.ContainerID, err)
	}
	return alive, nil
}
