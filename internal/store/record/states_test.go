package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// line returns a line with its checksum.
func line(t testing.TB, data string) []byte {
	t.Helper()
	return expect.Value(EncodeLine(json.RawMessage(data)))(t)
}

// TestFault_F43_ARecordOfALaterFormatIsNotDamaged: its owner and its
// attachments are read, whatever else has changed.
func TestFault_F43_ARecordOfALaterFormatIsNotDamaged(t *testing.T) {
	whole := &Record{
		ContainerID: "c1", Owner: "tester", Host: "4:1", PluginID: "warm-1", NetNS: NetNS{Path: "/run/c1"}, Generation: 3,
		Attachments: []Attachment{{Network: "podnet", IfName: "eth0", State: Added}, {Network: "other", IfName: "eth1", Owner: "second"}},
	}
	const same = `"containerID":"c1","owner":"tester","host":"4:1","pluginID":"warm-1","generation":3,"netns":{"path":"/run/c1"},` +
		`"networks":[{"name":"podnet","ifName":"eth0","state":"added"},{"name":"other","ifName":"eth1","owner":"second"}]`
	for name, tt := range map[string]struct {
		line string
		want *Record
	}{
		"the same fields":                          {`{"format":3,"record":{` + same + `}}`, whole},
		"more fields":                              {`{"format":9,"record":{"more":{"x":1},` + same + `}}`, whole},
		"a field of another type":                  {`{"format":3,"record":{"boot":{"id":7},"since":"yesterday","warm":"no",` + same + `}}`, whole},
		"this format, and a field of another type": {`{"format":2,"record":{"since":7,` + same + `}}`, whole},
		"a format of another type":                 {`{"format":"3.1","record":{` + same + `}}`, whole},
		"networks of another type": {`{"format":3,"record":{"containerID":"c1","owner":"tester","networks":{"podnet":"eth0"}}}`,
			&Record{ContainerID: "c1", Owner: "tester"}},
		"an interface of another type": {`{"format":3,"record":{"containerID":"c1","networks":[{"name":"a","ifName":7},{"name":{},"ifName":"eth1","lastTry":0}]}}`,
			&Record{ContainerID: "c1", Attachments: []Attachment{{IfName: "eth1"}}}},
		"nothing that is legible":    {`{"format":3,"record":[]}`, &Record{}},
		"of a container without one": {`{"format":3,"record":{"containerID":"c2","owner":"tester"}}`, &Record{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := Open(t.TempDir())
			check(t, os.WriteFile(s.path("c1"), line(t, tt.line), 0o600))
			found := expect.Value(s.List())(t)
			expect.Must(t, len(found) == 1 && errors.Is(found[0].Err, ErrNewer) && !errors.Is(found[0].Err, ErrBad),
				"found %+v, want one that is newer", found)
			want(t, "record", found[0].Record, tt.want)
			want(t, "strays", expect.Value(s.Strays())(t), []string(nil))
		})
	}
}

// TestAnInvalidRecordIsDamaged: a valid checksum does not make a record of an
// older format, or of a line without a container.
func TestAnInvalidRecordIsDamaged(t *testing.T) {
	for _, data := range []string{`{"format":1,"record":{"containerID":"c1"}}`, `{"format":2,"record":{}}`} {
		r, err := decodeBase(line(t, data))
		expect.That(t, r == nil && errors.Is(err, ErrBad), "%s: %+v, %v, want ErrBad", data, r, err)
	}
}

// TestFault_F44_AnErrorOfReadingIsNotDamage: an unreadable record is listed
// with the error, and with a record that callers may inspect.
func TestFault_F44_AnErrorOfReadingIsNotDamage(t *testing.T) {
	for _, cause := range []error{
		syscall.EIO, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EACCES, syscall.ELOOP, syscall.EISDIR,
		syscall.ESTALE, io.ErrUnexpectedEOF,
	} {
		s := Open(t.TempDir())
		check(t, s.Begin(sample("c1")))
		check(t, s.Begin(sample("c2")))
		read := s.Read
		s.Read = func(path string) ([]byte, error) {
			if path == s.path("c1") {
				return nil, fmt.Errorf("read %s: %w", path, cause)
			}
			return read(path)
		}
		found := expect.Value(s.List())(t)
		want(t, "records", len(found), 2)
		for _, f := range found {
			if f.File == Name("c2") {
				check(t, f.Err)
				continue
			}
			want(t, "record", f.Record, &Record{})
			expect.That(t, errors.Is(f.Err, ErrUnread) && errors.Is(f.Err, cause) && !errors.Is(f.Err, ErrBad),
				"%v: %v, want that it cannot be read", cause, f.Err)
		}
		want(t, "strays", expect.Value(s.Strays())(t), []string(nil))
		r, err := s.Load("c1")
		want(t, "record", r, &Record{ContainerID: "c1"})
		expect.Is(t, err, ErrUnread)
	}
}

// TestALogWithoutABaseNamesItsOwner, even with more than one owner.
func TestALogWithoutABaseNamesItsOwner(t *testing.T) {
	s := Open(t.TempDir())
	r := sample("c1")
	r.Attachments[1].Owner = "second"
	check(t, s.Begin(r))
	for _, ifName := range []string{"eth1", "eth0"} {
		check(t, s.Append(r, Entry{IfName: ifName, State: Added}))
	}
	data := expect.Value(os.ReadFile(s.path("c1")))(t)
	data[0] ^= 1
	check(t, os.WriteFile(s.path("c1"), data, 0o600))
	got, err := s.Load("c1")
	expect.Must(t, errors.Is(err, ErrBad), "error %v, want ErrBad", err)
	want(t, "owner", got.Owner, "tester")
	want(t, "attachments", got.Attachments, []Attachment{{IfName: "eth1", Owner: "second", State: Added}, {IfName: "eth0", State: Added}})
	want(t, "is shared", got.Shared(), true)
}

func TestOwners(t *testing.T) {
	r := &Record{Owner: "a", Attachments: []Attachment{{IfName: "eth0"}, {IfName: "eth1", Owner: "b"}, {IfName: "eth2", Owner: "c", State: Deleted}}}
	owned := func() (owners []string) {
		for _, owner := range []string{"a", "b", "c"} {
			if r.Owned(owner) {
				owners = append(owners, owner)
			}
		}
		return owners
	}
	want(t, "owners", owned(), []string{"a", "b"})
	want(t, "shared", r.Shared(), true)
	r.Attachments[0].State = Deleted
	want(t, "owners without eth0", owned(), []string{"b"})
	r.Attachments[1].State = Deleted
	want(t, "owners without any", owned(), []string{"a"})
	want(t, "shared", r.Shared(), false)
}

// TestUnfinished: an attachment is unfinished with its whole Setup, or by a removal.
func TestUnfinished(t *testing.T) {
	r := &Record{Attachments: []Attachment{
		{IfName: "eth0", Call: 1, State: Added}, {IfName: "eth1", Call: 2, State: Added}, {IfName: "eth2", Call: 2},
		{IfName: "eth3", Call: 3, State: Deleting}, {IfName: "eth4", Call: 3, State: Added, Failures: 1}, {IfName: "eth5", Call: 4, State: Deleted},
	}}
	for i, want := range []bool{false, true, true, true, true, false} {
		n := &r.Attachments[i]
		expect.That(t, r.IsUnfinished(n) == want, "%s: unfinished is %v", n.IfName, !want)
	}
	all := map[string]bool{"eth0": true, "eth1": true, "eth2": true, "eth3": true}
	expect.That(t, r.WasAttached() && r.HasOthers(all), "eth0 was attached, and eth4 is another")
	all["eth4"] = true
	expect.That(t, !r.HasOthers(all), "a deleted attachment counts")
}

// TestRetryIn: the delay doubles with each failure, up to an hour.
func TestRetryIn(t *testing.T) {
	now := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		failures int
		since    time.Duration
		want     time.Duration
	}{
		{0, 0, 0}, {1, 0, time.Second}, {3, time.Second, 3 * time.Second}, {40, time.Minute, 59 * time.Minute}, {5, -time.Second, 0},
	} {
		a := &Attachment{Failures: tt.failures, LastTry: now.Add(-tt.since)}
		expect.Same(t, fmt.Sprint(tt.failures, " failures, the last ", tt.since, " ago"), a.RetryIn(now), tt.want)
	}
}
