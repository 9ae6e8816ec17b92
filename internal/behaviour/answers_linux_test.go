package behaviour_test

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

// TestAttachmentsAreInTheOrderOfIDs, whatever the order of their files.
func TestAttachmentsAreInTheOrderOfIDs(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(s.declaring("net", "p"))
	var got, want []string
	for i := range 12 {
		id := fmt.Sprintf("c%02d", (i*7)%12)
		expect.Value(r.Setup(t.Context(), id, s.Container(id)))(t)
		want = append(want, fmt.Sprintf("c%02d", i))
	}
	for _, a := range expect.Value(r.Attachments())(t) {
		got = append(got, a.ContainerID)
	}
	expect.Same(t, "IDs", got, want)
}

// TestGCAdoptsOnlyWhatIsAttached: a list of containers to keep may have some that were never
// attached, or no longer.
func TestGCAdoptsOnlyWhatIsAttached(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(s.declaring("net", "p"))
	for _, id := range []string{"c1", "c2"} {
		expect.Value(r.Setup(t.Context(), id, s.Container(id)))(t)
	}
	report := expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"none", "c1"}}))(t)
	expect.Same(t, "adopted", report.Adopted, []string{"c1"})
	expect.Same(t, "removed", report.Removed, []string{"c2"})
}
