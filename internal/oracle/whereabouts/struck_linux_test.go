package whereabouts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// strikes are what can befall a request of the plugin that works for a container, in order.
var strikes = []string{"cut before", "cut after", "killed before", "killed after", "hangs"}

// befalls returns a strike: the connection is cut, or the plugin killed, before or after the
// change; or the answer never comes, and the caller gives up.
func (a *attached) befalls(t *testing.T, name string, giveUp context.CancelFunc) strike {
	return func(r *http.Request, apply func()) {
		how, when, _ := strings.Cut(name, " ")
		if when == "after" {
			apply()
		}
		switch how {
		case "killed":
			expect.Succeeds(t, "kill the plugin", killPlugin(a.path))
		case "hangs":
			giveUp()
			<-r.Context().Done()
		}
		panic(http.ErrAbortHandler)
	}
}

// TestAStruckADD has requests of an ADD struck in each way. Setup attaches the container or
// leaves nothing of it on the host; what stays in the store is in the table.
func TestAStruckADD(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	h := c.a
	r := h.Runtime(h.on(macvlan, bothFamilies))
	h.setUp(r, "first").remove(t, r) // the store has the pools
	var rows []string
	for _, request := range []string{
		"GET ippools/", "PATCH ippools/10.1.0.0-24", "POST overlappingrangeipreservations/10.1.0.1", "PATCH ippools/fd00---64",
	} {
		for _, name := range strikes {
			c1 := container(t, "c1")
			ctx, cancel := context.WithCancel(t.Context())
			c.strikeAt(request, c1.befalls(t, name, cancel))
			outcome := "attached"
			if err := c1.attach(ctx, r); err != nil {
				expect.Says(t, request+" "+name, err, `IPAM plugin "whereabouts"`)
				outcome = "failed"
			} else {
				expect.Same(t, "verdicts", verdicts(t, r), []string{"c1: healthy [whereabouts]"})
				outcome += lacking(linesOf(c1), c.held(t, "c1"))
				c1.remove(t, r)
			}
			cancel()
			expect.Empty(t, request+" was not made", c.waiting())
			expect.Same(t, "on record", recorded(t, r), []string{})
			rows = append(rows, row(request, name, outcome, c.held(t)))
			c.lose("c1")
		}
	}
	same(t, rows, struckADDs)
}

// TestAStruckDEL has requests of a DEL struck. Remove succeeds, or fails and succeeds when
// it is repeated, and then the host has nothing of the container.
func TestAStruckDEL(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	h := c.a
	r := h.Runtime(h.on(macvlan, bothFamilies))
	h.setUp(r, "first").remove(t, r)
	var rows []string
	for _, request := range []string{
		"PATCH ippools/10.1.0.0-24", "DELETE overlappingrangeipreservations/10.1.0.1", "PATCH ippools/fd00---64",
	} {
		for _, name := range strikes[:len(strikes)-1] {
			c1 := h.setUp(r, "c1")
			c.strikeAt(request, c1.befalls(t, name, nil))
			outcome := "removed"
			if err := r.Remove(t.Context(), c1.id, c1.path); err != nil {
				expect.Says(t, request+" "+name, err, `IPAM plugin "whereabouts"`)
				expect.Same(t, "on record", recorded(t, r), []string{"c1 failed"})
				outcome = "failed"
				c1.remove(t, r)
			}
			expect.Empty(t, request+" was not made", c.waiting())
			expect.Same(t, "on record", recorded(t, r), []string{})
			rows = append(rows, row(request, name, outcome, c.held(t)))
			c.lose("c1")
		}
	}
	same(t, rows, struckDELs)
}

// lacking says which lines the store lacks.
func lacking(want, have []string) string {
	want = slices.DeleteFunc(want, func(line string) bool { return slices.Contains(have, line) })
	if len(want) == 0 {
		return ""
	}
	return " without " + strings.Join(want, ", ")
}

// row is a line of a table: the request, the strike, the outcome, and what stays in the store.
func row(request, name, outcome string, left []string) string {
	line := fmt.Sprintf("%s %s: %s", request, name, outcome)
	if len(left) > 0 {
		line += "; leaves " + strings.Join(left, ", ")
	}
	return line
}

// same compares a table with its text, a line for each row.
func same(t *testing.T, rows []string, table string) {
	t.Helper()
	if got, want := strings.Join(rows, "\n"), strings.TrimSpace(table); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}

// struckADDs is what whereabouts v0.9.2 does.
const struckADDs = `
GET ippools/ cut before: attached
GET ippools/ cut after: attached
GET ippools/ killed before: failed
GET ippools/ killed after: failed
GET ippools/ hangs: failed
PATCH ippools/10.1.0.0-24 cut before: attached without 10.1.0.1 of c1/eth0; leaves 10.1.0.1 reserved by default/c1, fd00::1 of c1/eth0, fd00::1 reserved by default/c1
PATCH ippools/10.1.0.0-24 cut after: attached
PATCH ippools/10.1.0.0-24 killed before: failed
PATCH ippools/10.1.0.0-24 killed after: failed
PATCH ippools/10.1.0.0-24 hangs: failed
POST overlappingrangeipreservations/10.1.0.1 cut before: failed
POST overlappingrangeipreservations/10.1.0.1 cut after: failed
POST overlappingrangeipreservations/10.1.0.1 killed before: failed
POST overlappingrangeipreservations/10.1.0.1 killed after: failed
POST overlappingrangeipreservations/10.1.0.1 hangs: failed
PATCH ippools/fd00---64 cut before: attached without fd00::1 of c1/eth0; leaves fd00::1 reserved by default/c1
PATCH ippools/fd00---64 cut after: attached
PATCH ippools/fd00---64 killed before: failed
PATCH ippools/fd00---64 killed after: failed
PATCH ippools/fd00---64 hangs: failed
`

// struckDELs is what whereabouts v0.9.2 does.
const struckDELs = `
PATCH ippools/10.1.0.0-24 cut before: removed; leaves 10.1.0.1 of c1/eth0
PATCH ippools/10.1.0.0-24 cut after: removed
PATCH ippools/10.1.0.0-24 killed before: failed
PATCH ippools/10.1.0.0-24 killed after: failed; leaves 10.1.0.1 reserved by default/c1, fd00::1 of c1/eth0, fd00::1 reserved by default/c1
DELETE overlappingrangeipreservations/10.1.0.1 cut before: removed; leaves 10.1.0.1 reserved by default/c1, fd00::1 of c1/eth0, fd00::1 reserved by default/c1
DELETE overlappingrangeipreservations/10.1.0.1 cut after: removed; leaves fd00::1 of c1/eth0, fd00::1 reserved by default/c1
DELETE overlappingrangeipreservations/10.1.0.1 killed before: failed; leaves 10.1.0.1 reserved by default/c1, fd00::1 of c1/eth0, fd00::1 reserved by default/c1
DELETE overlappingrangeipreservations/10.1.0.1 killed after: failed; leaves fd00::1 of c1/eth0, fd00::1 reserved by default/c1
PATCH ippools/fd00---64 cut before: removed; leaves fd00::1 of c1/eth0
PATCH ippools/fd00---64 cut after: removed
PATCH ippools/fd00---64 killed before: failed; leaves fd00::1 of c1/eth0, fd00::1 reserved by default/c1
PATCH ippools/fd00---64 killed after: failed; leaves fd00::1 reserved by default/c1
`

// killPlugin kills the plugin that works for the container in a namespace: a child of this
// process.
func killPlugin(path string) error {
	children, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return err
	}
	for _, file := range children {
		pids, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for pid := range strings.FieldsSeq(string(pids)) {
			environ, err := os.ReadFile("/proc/" + pid + "/environ")
			if err != nil || !bytes.Contains(environ, []byte("\x00CNI_NETNS="+path+"\x00")) {
				continue
			}
			var n int
			if _, err := fmt.Sscan(pid, &n); err != nil {
				return err
			}
			p, err := os.FindProcess(n)
			if err != nil {
				return err
			}
			return p.Kill()
		}
	}
	return errors.New("no plugin works for the container in " + path)
}
