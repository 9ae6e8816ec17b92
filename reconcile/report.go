package reconcile

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/kernel/joined"
)

// Result is the outcome of Run.
type Result struct {
	Containers []Container // in the order of the call
	// Unexpected are the containers on record with attachments of this owner, and those
	// whose record names no owner, that the call has not named, in the order of their IDs.
	Unexpected []string
}

// Container is the outcome for one container.
type Container struct {
	Health   cni.Health // the verdict before anything was changed
	Decision Decision   // empty if the container is healthy

	Repair *cni.RepairReport // of a container that was repaired
	Result *cni.Result       // of one that was replaced
	// Lost are the addresses that the container had before it was replaced and does not
	// have now.
	Lost []netip.Addr

	// Err is nil if the container is healthy, or was repaired or replaced. Otherwise it is
	// why not: the verdict, if nothing was done; what Repair has left; or the error of the
	// replacement. After a Setup that failed the container is not attached; a namespace that an
	// earlier Setup made stays on record, see cni.WithNewNetNS.
	Err error

	named bool // by a text that names the container
}

// Err joins the errors of all containers. Unexpected ones are no error.
func (r *Result) Err() error {
	var errs []error
	for _, c := range r.Containers {
		err := c.Err
		if err != nil && !c.named {
			err = joined.Errorf("container %s: %w", c.Health.ContainerID, err)
		}
		errs = append(errs, err)
	}
	return joined.Errors(errs...)
}

// String has the verdict and the outcome for each container.
func (r *Result) String() string {
	var lines []string
	for _, c := range r.Containers {
		lines = append(lines, c.String())
	}
	for _, id := range r.Unexpected {
		lines = append(lines, id+": on record, and not expected")
	}
	return strings.Join(lines, "\n")
}

// String has the verdict, and a line about the outcome unless the container is healthy.
func (c Container) String() string {
	id := c.Health.ContainerID
	s := c.Health.String()
	switch {
	case c.Decision == "" || c.Decision == Report:
	case c.Err != nil:
		s += fmt.Sprintf("\n%s: %s: %v", id, c.Decision, c.Err)
	default:
		s += fmt.Sprintf("\n%s: %s: done", id, c.Decision)
	}
	if len(c.Lost) > 0 {
		s += fmt.Sprintf("\n%s: lost the addresses %v", id, c.Lost)
	}
	return s
}

// MarshalJSON encodes the outcome as an object with the names of its fields. Err becomes
// its text.
func (c Container) MarshalJSON() ([]byte, error) {
	type plain Container
	text := ""
	if c.Err != nil {
		text = c.Err.Error()
	}
	return json.Marshal(struct {
		plain
		Err string
	}{plain(c), text})
}
