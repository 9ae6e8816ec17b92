package abandoned

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/shared"
)

// Search looks for the abandoned containers of one directory of records.
type Search struct {
	*rounds
	ref *shared.Ref[rounds] // of the process's rounds; nil if they are the Search's own
}

var allRounds shared.Values[Alike, rounds]

// Open returns a Search that shares its rounds with those of all Runtimes that are alike.
// Each round reads all records, and a program may have a Runtime for each container.
func Open(a Alike) *Search {
	ref := allRounds.Get(a, func() *rounds { return &rounds{} })
	return &Search{ref.Value, ref}
}

// New returns a Search that shares nothing.
func New() *Search { return &Search{rounds: &rounds{}} }

// Request asks for a scan of all records in the background; setup says that Setup
// asks, before which no scan begins. It does not wait. Plugins run in the recorded
// host namespace, or else in host, which the Search opens once more.
func (s *Search) Request(r Runtime, host *hostns.NetNS, setup bool) {
	wait, yes := s.rounds.want(r, setup)
	if !yes {
		return
	}
	own, err := host.Dup()
	if err != nil {
		s.rounds.more(true)
		r.Logger.Warn("look for abandoned containers", "error", err)
		return
	}
	s.passAfter(wait, own)
}

// Round makes a round in the foreground, without pauses, after the one that is under
// way. It returns the number of its passes.
func (s *Search) Round(ctx context.Context, r Runtime, host *hostns.NetNS) (passes int, err error) {
	for started := false; !started; {
		if s.rounds.idle() { // otherwise want would request another round behind it
			_, started = s.rounds.want(r, true)
			continue
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	for more := true; more; passes++ {
		err = s.pass(host)
		_, more = s.rounds.more(err != nil)
	}
	return passes, err
}

// passAfter makes a pass after a time, and further passes while more reports true.
func (s *Search) passAfter(wait time.Duration, host *hostns.NetNS) {
	time.AfterFunc(wait, func() {
		logger := s.rounds.last().Logger
		err := s.pass(host)
		if err != nil {
			logger.Warn("look for abandoned containers", "error", err)
		}
		if wait, yes := s.rounds.more(err != nil); yes {
			s.passAfter(wait, host)
			return
		}
		if err := host.Close(); err != nil {
			logger.Error("close network namespace", "error", err)
		}
	})
}

// pass makes one pass, for the runtime that requested a round last.
func (s *Search) pass(host *hostns.NetNS) error {
	own, err := host.Dup() // for its sockets
	if err != nil {
		return err
	}
	p := &pass{Runtime: s.rounds.last(), rounds: s.rounds, host: own}
	return errors.Join(guarded(p.run), p.close())
}

// guarded calls f and returns a panic of it as an error. f runs on a goroutine of the
// library, where the program could not recover from the panic.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f()
}

// pass is one pass.
type pass struct {
	Runtime
	rounds *rounds
	host   *hostns.NetNS
	watch  *links.Listener // nil until the pass finds work
}

func (p *pass) close() error {
	err := p.host.Close()
	if p.watch != nil {
		err = errors.Join(err, p.watch.Close())
	}
	return err
}

// candidate is a container that needs work, as a look at its record found it.
type candidate struct {
	file string
	rec  *record.Record
	by   Containers // the Runtime that tends it
}

// run looks at some records, lets go of the namespaces of abandoned containers, and
// removes the containers whose namespaces end in time.
func (p *pass) run() (err error) {
	found, err := p.look()
	if err != nil || len(found) == 0 {
		return err
	}
	if p.watch, err = links.WatchAddresses(p.host.Handle); err != nil {
		return err
	}
	ending := map[*candidate][]int{}
	end := time.Now().Add(workFor)
	for i, c := range found {
		if time.Now().After(end) || p.rounds.clogged() {
			for _, c := range found[i:] {
				p.rounds.later(c.file)
			}
			break
		}
		if step := p.tend(c); step.Again {
			ending[c] = step.Ends
		}
	}
	return p.await(ending)
}

// await removes containers as their namespaces end. It leaves those that do not end
// in time to the next pass.
func (p *pass) await(ending map[*candidate][]int) error {
	defer func() {
		for c := range ending {
			p.rounds.later(c.file)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), endsFor)
	defer cancel()
	for {
		for c, ends := range ending {
			left, err := p.host.Lasting(ends)
			if err != nil {
				return err
			}
			if len(left) == 0 && !p.rounds.clogged() {
				delete(ending, c)
				p.tend(c) // if that is not the end, a later round continues
			}
		}
		if len(ending) == 0 {
			return nil
		}
		if err := p.watch.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// look reads records for lookFor, and returns those whose containers need work.
func (p *pass) look() (found []*candidate, err error) {
	start := time.Now()
	files, err := p.rounds.files(p.Records.Files)
	if err != nil {
		return nil, err
	}
	looked, view := 0, nsfind.View() // of any thread: Tend judges each container again
	for _, file := range files {
		looked++
		if rec, by := p.needsWork(file, view); rec != nil {
			found = append(found, &candidate{file, rec, by})
		}
		if time.Since(start) > lookFor {
			break
		}
	}
	p.rounds.looked(files[looked:], time.Since(start))
	return found, nil
}

// needsWork returns the record of a container that needs work: it is abandoned, and
// either its namespace has not been let go, or the namespace has ended or may have. The
// work is for the Runtime of the last request, unless another still keeps the namespace.
func (p *pass) needsWork(file, view string) (*record.Record, Containers) {
	rec, err := p.Records.LoadFile(file)
	if err != nil || rec == nil || !isFrom(view, rec, p.Owner, p.Boot) || p.rounds.isReported(file, rec.Generation) {
		return nil, nil
	}
	if rec.LetGo == nil || rec.Host != p.host.String() || p.Keeps(rec.ContainerID) {
		return rec, p.Containers
	}
	if by := p.rounds.keeper(rec.ContainerID); by != nil {
		return rec, by
	}
	if left, err := p.host.Lasting(rec.LetGo.Ends); len(left) > 0 || err != nil {
		return nil, nil
	}
	return rec, p.Containers
}

// tend calls Tend on another goroutine. It logs the error, and stops waiting after
// stuckFor.
func (p *pass) tend(c *candidate) Step {
	defer p.rounds.worked(time.Now())
	done := make(chan Step, 1)
	go func() {
		var step Step
		err := guarded(func() (err error) {
			step, err = c.by.Tend(c.file, p.host)
			return err
		})
		p.log(c, err)
		done <- step
	}()
	late := time.NewTimer(stuckFor)
	defer late.Stop()
	select {
	case step := <-done:
		return step
	case <-late.C:
		p.rounds.addStuck(1)
		go func() {
			<-done
			p.rounds.addStuck(-1)
		}()
		return Step{}
	}
}

// log reports that a container stays, or is left for later.
func (p *pass) log(c *candidate, err error) {
	var none *NoEndError
	switch {
	case err == nil:
	case !errors.As(err, &none):
		p.Logger.Warn("an abandoned container is left for later", "record", c.file, "error", err)
	case p.rounds.report(c.file, c.rec.Generation):
		p.Logger.Warn("a container is abandoned, and stays as it is",
			"container", c.rec.ContainerID, "path", c.rec.NetNS.Path, "reason", none)
	}
}

// Is reports whether a record describes an abandoned container: all its attachments
// are the owner's, and its path certainly no longer leads to its namespace.
func Is(rec *record.Record, owner, boot string) (is bool) {
	nsfind.WithView(func(view string) { is = isFrom(view, rec, owner, boot) })
	return is
}

// isFrom is Is for a caller with this view. It is false unless the path was recorded
// in the same view.
func isFrom(view string, rec *record.Record, owner, boot string) bool {
	if rec.Boot != boot || boot == "" || view == "" || rec.NetNS.View != view ||
		rec.Warm || rec.NetNS.Ours || rec.NetNS.Ino == 0 {
		return false
	}
	attached := false
	for i := range rec.Attachments {
		if rec.Attachments[i].State == record.Deleted {
			continue
		}
		if rec.OwnerOf(&rec.Attachments[i]) != owner {
			return false
		}
		attached = true
	}
	return attached && nsfind.LeadsAway(rec.NetNS.Path, rec.NetNS.ID())
}
