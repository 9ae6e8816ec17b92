package cni

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestAReportIsEncodedWithItsErrors(t *testing.T) {
	r := Report{
		Adopted: []string{"a", "b"}, Removed: []string{"c"},
		Kept: map[string]error{"b": errors.New("CHECK failed")}, Failed: map[string]error{"e": errors.New("stuck"), "d": errors.New("busy")},
		Reclaimed: []string{"address 10.1.0.2"}, Left: []string{"a file"},
	}
	data := expect.Value(json.Marshal(&r))(t)
	expect.Same(t, "JSON", string(data), `{"Adopted":["a","b"],"Removed":["c"],"Reclaimed":["address 10.1.0.2"],"Left":["a file"],`+
		`"Kept":{"b":"CHECK failed"},"Failed":{"d":"busy","e":"stuck"},"Skipped":null}`)
	expect.Same(t, "text", r.String(), `a: adopted
b: adopted, not known to be healthy: CHECK failed
c: removed
d: failed: busy
e: failed: stuck
reclaimed: address 10.1.0.2
left: a file`)
	expect.Same(t, "empty", Report{}.String(), "")
}

func TestTheErrorOfAReport(t *testing.T) {
	expect.NoError(t, (*Report)(nil).Err(), new(Report).Err(), (&Report{Kept: map[string]error{"a": errors.New("CHECK failed")}}).Err())
	r := &Report{Failed: map[string]error{"e": errors.New("stuck"), "d": errors.New("busy")}}
	expect.Same(t, "failures", r.Err().Error(), "container d: busy; container e: stuck")
}
