package server_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/internal/delqueue"
	"github.com/embedcni/cni/thick/server"
)

// TestDrainGivesUp: a DEL that is refused ten times, over a day of one boot, is reported
// once and kept, and its interface stays on record. One that has failed less often, or for
// less time, is tried again. A Drain that ends before it tries a DEL does not count.
func TestDrainGivesUp(t *testing.T) {
	l, q := newLedger(), newQueue(t)
	s := newServer(t, l, server.Options{})
	usual := l.Do
	refusal := errors.New("no")
	l.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		if verb == "DEL" {
			return nil, refusal
		}
		return usual(ctx, verb, r)
	}
	for id, tried := range map[string]func(*delqueue.Entry){
		"new":    func(*delqueue.Entry) {},
		"young":  func(e *delqueue.Entry) { e.Tries, e.FirstTry = 100, e.At },
		"seldom": func(e *delqueue.Entry) { e.Tries, e.FirstTry = 8, e.At; e.FirstTry.Nanos -= int64(24 * time.Hour) },
		"old":    func(e *delqueue.Entry) { e.Tries, e.FirstTry = 9, e.At; e.FirstTry.Nanos -= int64(24 * time.Hour) },
		"boot":   func(e *delqueue.Entry) { e.Tries, e.FirstTry = 9, delqueue.Moment{Boot: "earlier", Nanos: 1} },
	} {
		attach(t, s, id)
		q.put(t, id, tried)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r := expect.Value(s.Drain(ended, q.dir))(t)
	expect.Same(t, "not tried", []int{len(r.Failed), len(r.Refused), q.left(t)}, []int{5, 0, 5})
	names := func(dels []server.QueuedDel) map[string]bool {
		all := map[string]bool{}
		for _, d := range dels {
			expect.Is(t, d.Err, refusal)
			all[d.ContainerID] = true
		}
		return all
	}
	r = drain(t, s, q)
	expect.Same(t, "refused", names(r.Refused), map[string]bool{"old": true})
	expect.Same(t, "failed", names(r.Failed), map[string]bool{"new": true, "young": true, "seldom": true, "boot": true})
	expect.Same(t, "on record", len(holders(l)), 5)
	aside := expect.Value(filepath.Glob(filepath.Join(q.dir, "*.refused")))(t)
	expect.Same(t, "set aside", len(aside), 1)
	r = drain(t, s, q)
	expect.Same(t, "then", names(r.Refused), map[string]bool{"seldom": true})
	for _, e := range expect.Value(q.List())(t) {
		expect.Same(t, "tries of "+e.Env["CNI_CONTAINERID"], e.Tries, map[string]int{"new": 2, "young": 102, "boot": 11}[e.Env["CNI_CONTAINERID"]])
	}
	l.Do = usual
	r = drain(t, s, q)
	expect.Same(t, "ended", []int{len(r.Ended), len(r.Failed), q.left(t)}, []int{3, 0, 0})
	expect.Value(os.Stat(aside[0]))(t)
}
