package behaviour_test

import (
	"os"
	"slices"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestAttachmentsOfOneContainer: they are those of the list, whatever state the record is in.
func TestAttachmentsOfOneContainer(t *testing.T) {
	s, r, path := threeNetworks(t)
	testhost.MustSetUp(t, r, "c1", path)
	for _, id := range []string{"damaged", "newer"} {
		testhost.MustSetUp(t, r, id, s.Container(id))
	}
	s.TakeCalls()
	s.SpoilBase("damaged", "{")
	s.SpoilBase("newer", `{"format": 99, "containerId": "newer"}`)
	all := expect.Value(r.Attachments())(t)
	for id, n := range map[string]int{"c1": 3, "damaged": 1, "newer": 1, "none": 0} {
		of := expect.Value(r.AttachmentsOf(id))(t)
		want := slices.DeleteFunc(slices.Clone(all), func(a cni.Attachment) bool { return a.ContainerID != id })
		if n > 0 {
			expect.Same(t, id, of, want)
		}
		expect.Same(t, id, []int{len(of), len(want)}, []int{n, n})
	}
	expect.Is(t, errOf(r.AttachmentsOf("../c1")), cni.ErrInvalidArgument)
	for _, id := range []string{"damaged", "newer"} {
		expect.NoError(t, os.Remove(s.RecordFile(id)+".json"))
	}
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	s.TakeCalls()
}
