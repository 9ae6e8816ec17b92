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
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path)())
	for _, id := range []string{"damaged", "newer"} {
		expect.NoError(t, testhost.SetUp(t.Context(), r, id, s.Container(id))())
	}
	s.TakeCalls()
	s.SpoilBase("damaged", "{")
	s.SpoilBase("newer", `{"format": 99, "containerId": "newer"}`)
	all, err := r.Attachments()
	expect.NoError(t, err)
	for id, n := range map[string]int{"c1": 3, "damaged": 1, "newer": 1, "none": 0} {
		of, err := r.AttachmentsOf(id)
		expect.NoError(t, err)
		want := slices.DeleteFunc(slices.Clone(all), func(a cni.Attachment) bool { return a.ContainerID != id })
		if n > 0 {
			expect.Same(t, id, of, want)
		}
		expect.Same(t, id, []int{len(of), len(want)}, []int{n, n})
	}
	_, err = r.AttachmentsOf("../c1")
	expect.Is(t, err, cni.ErrInvalidArgument)
	for _, id := range []string{"damaged", "newer"} {
		expect.NoError(t, os.Remove(s.RecordFile(id)+".json"))
	}
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	s.TakeCalls()
}
