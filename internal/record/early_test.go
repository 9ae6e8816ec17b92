package record

import (
	"os"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestALateLoadSeesEveryChange(t *testing.T) {
	s := Open(t.TempDir())
	early := expect.Value(s.LoadEarly("c1"))(t)
	expect.Same(t, "a record", early.Record == nil, true)
	r := &Record{ContainerID: "c1", Attachments: []Attachment{{IfName: "eth0", Network: "one"}}}
	expect.NoError(t, s.Begin(r))
	late := expect.Value(s.LoadLate("c1", early))(t)
	expect.Same(t, "attachments of a new record", len(late.Attachments), 1)

	early = expect.Value(s.LoadEarly("c1"))(t)
	late = expect.Value(s.LoadLate("c1", early))(t)
	expect.Same(t, "the same record", late == early.Record, true)

	expect.NoError(t, s.Append(r, Entry{IfName: "eth0", State: Deleted}))
	late = expect.Value(s.LoadLate("c1", early))(t)
	expect.Same(t, "state after another entry", late.Attachments[0].State, Deleted)

	early = expect.Value(s.LoadEarly("c1"))(t)
	other := &Record{ContainerID: "c2"}
	expect.NoError(t, s.Begin(other))
	late = expect.Value(s.LoadLate("c2", early))(t)
	expect.Same(t, "container", late.ContainerID, "c2")

	expect.NoError(t, os.WriteFile(s.Path(Name("c1")), []byte("damaged"), 0o600))
	_, err := s.LoadLate("c1", early)
	expect.Is(t, err, ErrBad)
	early, err = s.LoadEarly("c1")
	expect.Is(t, err, ErrBad)
	_, err = s.LoadLate("c1", early)
	expect.Is(t, err, ErrBad)

	expect.NoError(t, os.Remove(s.Path(Name("c1"))))
	late = expect.Value(s.LoadLate("c1", early))(t)
	expect.Same(t, "a deleted record", late == nil, true)
}
