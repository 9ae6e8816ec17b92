package cni_test

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni"
)

// recorded renders what is on record: "c1/eth0 attached".
func recorded(t testing.TB, r *cni.Runtime) []string {
	t.Helper()
	all, err := r.Attachments()
	wantNil(t, err)
	lines := []string{}
	for _, a := range all {
		lines = append(lines, fmt.Sprintf("%s/%s %s", a.ContainerID, a.IfName, a.State))
	}
	return lines
}
