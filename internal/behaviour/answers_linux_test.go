package behaviour_test

import (
	"fmt"
	"testing"

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
