package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
)

// livingCase is a line of M16: something goes wrong on a host with running
// containers, and the library is called.
type livingCase struct {
	fault, name string
	kinds       []string // of plugins; nil: all in turn
	run         func(l *living)
}

// The kinds of plugins that attach running containers: executables, or built-in
// ones with a packet filter backend.
const (
	executables = "executables"
	builtIn     = "built-in" // without a named backend
	ourIPTables = "built-in, iptables"
)

func livingCases() []livingCase {
	return []livingCase{
		// Recover once removed containers that could not be checked, or that were only different.
		{"F36", "firewall flushed, then a restart", nil, (*living).flushed},
		{"F37", "sniffers on bridge and in containers", nil, (*living).sniffed},
		{"F37", "an MTU by tuning, ip_forward is 0", nil, (*living).tuned},
		{"F37", "an administrator's bridge, an uplink", nil, (*living).uplinked},
		// Calls from another place than the container's ADD.
		{"F59", "path and pin not seen after a restart", nil, (*living).hidden},
		{"F61", "the named capabilities, no more", []string{builtIn}, (*living).ordinary},
		// Mistakes that kept an ID wedged after they were corrected (M17).
		{"F51", "a mistyped IPAM type, mended", nil, func(l *living) { l.mended(`"host-local"`, `"host-locl"`) }},
		{"F51", "a mistyped plugin type, mended", nil, func(l *living) { l.mended(`{"type": "portmap"`, `{"type": "portmaq"`) }},
		{"F51", "host-device without its device, mended", []string{executables, builtIn}, (*living).deviceless},
		// Several programs share a host.
		{"F41", "three owners killed in turn", []string{builtIn}, (*living).killedInTurn},
		// A runtime, or two, make the containers' namespaces.
		{"F59", "the state directory through a symlink", nil, (*living).symlinked},
		{"F59", "a damaged record in a pool", nil, (*living).damagedInPool},
		{"F59", "two daemons in two PID namespaces", nil, (*living).twoPIDNamespaces},
		// Importers only know go-cni's methods.
		{"F31", "a failed first ADD of another runtime", nil, (*living).takenBack},
		{"F33", "macvlan and host-device, path gone", []string{executables, builtIn}, (*living).endless},
		// Containers share a LAN or a firewalld with others.
		{"F53", "another machine wants its address", []string{builtIn, ourIPTables}, (*living).twoMachines},
		{"F54", "firewalld's zone, neighbours go", []string{builtIn}, (*living).zoned},
	}
}

// living is one round of a case.
type living struct {
	*host
	board  *board
	random *rand.Rand
	kind   string
	set    settings
	base   audit.Lines // the host without containers
	homes  []*home
	wrong  []string // faults other than harm: leaks, errors, slow calls
	mends  int      // IDs whose mistake is corrected (M17)
	wedged int      // those of them that cannot be used again
	took   map[string]time.Duration
	moves  bool // what rules did may be done by others since: Health and traffic judge them
}

// living is M16: no running container is harmed. It also counts M17: no ID
// stays wedged.
func (b *board) living(t *testing.T) {
	cases := livingCases()
	counts := make([]count, len(cases)+1) // and a total
	besideEachOther(t, cases, *livingRounds, func(t *testing.T, i, round int) {
		l := b.newLiving(t, 16<<32+uint64(i)<<16+uint64(round), func(*rand.Rand) string { return cases[i].kind(i + round) })
		l.round(cases[i].run, &counts[i], &counts[len(cases)])
	})
	harmed := func(what string, c *count) {
		t.Helper()
		figure := fmt.Sprintf("%d of %d harmed", c.get("harmed"), c.get("living"))
		if wrong := c.get("wrong"); wrong > 0 {
			figure += fmt.Sprintf(", %d other faults", wrong)
		}
		b.figure(t, "M16", what, figure, "0", c.get("harmed")+c.get("wrong") == 0 && c.get("rounds") > 0)
	}
	for i, c := range cases {
		if counts[i].get("rounds") > 0 { // with -run there may be only a few
			harmed(c.fault+" "+c.name, &counts[i])
		}
	}
	all := &counts[len(cases)]
	harmed("living containers, all cases", all)
	b.figure(t, "M17", "IDs wedged after the cause is mended", fmt.Sprintf("%d of %d", all.get("wedged"), all.get("mended")), "0", all.get("wedged") == 0)
}

// besideEachOther runs the rounds of each case in turn, and the cases beside each other.
func besideEachOther(t *testing.T, cases []livingCase, rounds int, run func(t *testing.T, i, round int)) {
	t.Run("cases", func(t *testing.T) {
		for i, c := range cases {
			t.Run(c.fault+" "+c.name, func(t *testing.T) {
				t.Parallel()
				for round := range rounds {
					// A host belongs to its goroutine's thread, and a thread has one host.
					t.Run(fmt.Sprint(round), func(t *testing.T) { run(t, i, round) })
				}
			})
		}
	})
}

// kind returns the kind of plugins for round n of the case.
func (c livingCase) kind(n int) string {
	kinds := c.kinds
	if kinds == nil {
		kinds = []string{executables, builtIn, ourIPTables}
	}
	return kinds[n%len(kinds)]
}

func (b *board) newLiving(t *testing.T, stream uint64, kind func(*rand.Rand) string) *living {
	l := &living{host: newHost(t), board: b, random: b.random(stream), took: make(map[string]time.Duration)}
	l.kind = kind(l.random)
	l.set = l.settingsOf(l.kind)
	l.base = l.audit()
	return l
}

// round runs a case once.
func (l *living) round(run func(*living), counts ...*count) {
	whole := false
	defer func() { // a round that ended early counts too
		if !whole {
			l.wrong = append(l.wrong, "it did not get to its end")
		}
		for _, add := range counts {
			add.add("rounds", 1)
			if l.harmed()+len(l.wrong) > 0 {
				add.add("failed", 1)
			}
			add.add("living", len(l.homes))
			add.add("harmed", l.harmed())
			add.add("wrong", len(l.wrong))
			add.add("wedged", l.wedged)
			add.add("mended", l.mends)
			for what, d := range l.took {
				add.took(what, d)
			}
		}
	}()
	run(l)
	l.end()
	whole = true
}

// settingsOf returns settings with that kind of plugins. Executables are always
// installed.
func (h *host) settingsOf(kind string) settings {
	if kind == executables {
		return h.settings(1)
	}
	s := h.inProcess(map[string]string{builtIn: "", ourIPTables: "iptables"}[kind])
	s.PluginDirs = []string{h.path("bin")}
	return s
}

// edit changes the configuration of the first network.
func (l *living) edit(old, new string) {
	l.t.Helper()
	conf := string(l.set.Confs[0])
	expect.Must(l.t, strings.Contains(conf, old), "no %q in %s", old, conf)
	l.set.Confs = append([][]byte{[]byte(strings.Replace(conf, old, new, 1))}, l.set.Confs[1:]...)
}

// say notes a failure that harmed no container.
func (l *living) say(format string, args ...any) {
	l.t.Helper()
	text := fmt.Sprintf(format, args...)
	l.wrong = append(l.wrong, text)
	l.t.Error(text)
}

// ok notes an error.
func (l *living) ok(what string, err error) {
	l.t.Helper()
	if err != nil {
		l.say("%s: %v", what, err)
	}
}

// restart runs Recover in another process, as a restarted runtime would.
func (l *living) restart(s settings) {
	l.t.Helper()
	l.ok("recover", elsewhere(l.t, job{Verb: "RESTART", Settings: s}))
}

// collect runs GC in another process, with the containers to keep.
func (l *living) collect(s settings, keep ...string) {
	l.t.Helper()
	l.ok("gc", elsewhere(l.t, job{Verb: "GC", Keep: keep, Settings: s}))
}

// remove removes the container in another process.
func (l *living) remove(s settings, id, path string) {
	l.t.Helper()
	l.ok("remove "+id, elsewhere(l.t, job{Verb: "DEL", ID: id, NetNS: path, Settings: s}))
}

// end checks the running containers once more and removes them. Then nothing
// may be left over.
func (l *living) end() {
	l.t.Helper()
	living := slices.DeleteFunc(slices.Clone(l.homes), func(h *home) bool { return h.left })
	for _, home := range living {
		home.look()
	}
	if l.t.Failed() {
		return // leftovers say nothing new
	}
	r := l.runtime(l.set)
	for _, home := range living {
		home.close()
		l.ok("remove "+home.id+" at last", r.Remove(context.Background(), home.id, ""))
	}
	// Leftovers of dead containers, and of no known owner.
	l.ok("recover at last", expect.Reported(r.Recover(context.Background())))
	if left := leftOf(l.base, l.audit()); len(left) > 0 {
		l.say("left:\n%s", strings.Join(left, "\n"))
	}
}

// leave checks a running container for the last time and removes it.
func (l *living) leave(h *home, s settings) {
	l.t.Helper()
	h.look()
	h.close()
	h.left = true
	l.remove(s, h.id, "")
}

func (l *living) harmed() (n int) {
	for _, home := range l.homes {
		if len(home.lost) > 0 {
			n++
		}
	}
	return n
}

// setup attaches a container that will die, or that the case has to inspect
// first.
func (l *living) setup(s settings, id string, opts ...cni.NamespaceOpts) (*cni.Result, error) {
	l.t.Helper()
	path := l.netns(id)
	if !slices.Contains(l.containers(), id) {
		path = l.container(id)
	}
	return l.runtime(s).Setup(context.Background(), id, path, opts...)
}
