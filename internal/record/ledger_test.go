package record

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func adds(t testing.TB, l *Ledger, gone bool, keys ...Key) {
	t.Helper()
	for _, k := range keys {
		check(t, l.Add(Line{Key: k, Gone: gone}))
	}
}

func readLedger(t testing.TB, l *Ledger) map[Key]Known {
	t.Helper()
	known, err := l.Read()
	check(t, err)
	return known
}

func gone(t testing.TB, l *Ledger) map[Key]bool {
	t.Helper()
	all := map[Key]bool{}
	for key, k := range readLedger(t, l) {
		all[key] = k.Gone
	}
	return all
}

func TestLedgerSaysTheLastOfEachAttachment(t *testing.T) {
	s := Open(t.TempDir())
	a, b, c := Key{"c1", "net", "eth0"}, Key{"c1", "net", "eth1"}, Key{"c1", "other", "eth0"}
	l := s.Ledger("me")
	want(t, "an empty ledger", gone(t, l), map[Key]bool{})
	adds(t, l, false, a, b, c)
	adds(t, l, true, a, c)
	adds(t, l, false, c)
	check(t, l.Add())
	want(t, "ledger", gone(t, l), map[Key]bool{a: true, b: false, c: false})
	want(t, "another owner's", gone(t, s.Ledger("other")), map[Key]bool{})

	check(t, l.Settle([]Key{a, c}))
	want(t, "settled", gone(t, l), map[Key]bool{b: false})
	check(t, l.Settle([]Key{b}))
	want(t, "settled with nothing", gone(t, l), map[Key]bool{})
}

// TestLedgerNamesAddresses: the lines of an attachment add up, and compaction
// does not change their sum.
func TestLedgerNamesAddresses(t *testing.T) {
	l := Open(t.TempDir()).Ledger("me")
	a, b := Key{"c1", "net", "eth0"}, Key{"c2", "net", "eth0"}
	first, second, third := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("10.1.0.3")
	began, ended, again := time.Unix(1, 2).UTC(), time.Unix(3, 4).UTC(), time.Unix(5, 6).UTC()
	check(t, l.Add(Line{Key: a, Dirs: []string{"/d"}, Time: began}, Line{Key: b, Dirs: []string{"/d"}, Addresses: []netip.Addr{second}, Time: began}))
	check(t, l.Add(Line{Key: a, Dirs: []string{"/d"}, Addresses: []netip.Addr{first}}))
	check(t, l.Add(Line{Key: a, Dirs: []string{"/e"}, Addresses: []netip.Addr{second, first}}))
	check(t, l.Add(Line{Key: b, Gone: true, Time: ended}))
	check(t, l.Add(Line{Key: b, Time: again}, Line{Key: b, Addresses: []netip.Addr{third}, Doubtful: []netip.Addr{first}}))
	wanted := map[Key]Known{
		a: {Dirs: []string{"/d", "/e"}, Addresses: []netip.Addr{first, second}, Latest: []netip.Addr{first, second}, Since: began},
		b: {
			Dirs: []string{"/d"}, Addresses: []netip.Addr{second, third}, Latest: []netip.Addr{third}, Doubtful: []netip.Addr{first},
			Since: again, Until: ended,
		},
	}
	want(t, "ledger", readLedger(t, l), wanted)
	check(t, l.Compact(func(map[Key]Known) []Key { return nil }))
	want(t, "compacted", readLedger(t, l), wanted)
	want(t, "names", []bool{wanted[a].Names(first), wanted[a].Names(third), Known{}.Names(third)}, []bool{true, false, true})
}

func TestLedgerLinesThatAreTornAreNoOthers(t *testing.T) {
	s := Open(t.TempDir())
	l := s.Ledger("")
	a, b := Key{"c1", "net", "eth0"}, Key{"c2", "net", "eth0"}
	adds(t, l, false, a)
	info, err := os.Stat(l.path)
	check(t, err)
	for cut := range info.Size() {
		check(t, l.Settle([]Key{a, b}))
		adds(t, l, false, a)
		check(t, os.Truncate(l.path, cut))
		adds(t, l, true, b)
		wanted := map[Key]bool{b: true}
		if cut == info.Size()-1 { // only the newline is lost
			wanted[a] = false
		}
		want(t, fmt.Sprint("cut at ", cut), gone(t, l), wanted)
	}
}

// TestFault_F39_TheLedgerForgetsNothingThatIsNotSettled: each of six thousand
// attachments stays until it is settled. An earlier version kept fewer.
func TestFault_F39_TheLedgerForgetsNothingThatIsNotSettled(t *testing.T) {
	l := Open(t.TempDir()).Ledger("")
	key := func(i int) Key { return Key{PluginID(fmt.Sprintf("%064d", i)), "net", "eth0"} }
	const count = 12000
	for i := range count {
		adds(t, l, false, key(i))
		if i%2 == 0 {
			adds(t, l, true, key(i))
		}
		if l.Long() {
			check(t, l.Compact(func(gone map[Key]Known) []Key {
				delete(gone, key(0)) // its reservation has come back
				return slices.Collect(maps.Keys(gone))
			}))
		}
	}
	known := gone(t, l)
	for i := range count {
		if isGone, ok := known[key(i)]; i%2 == 1 && (!ok || isGone) {
			t.Fatalf("attachment %d is known: %v, gone: %v", i, ok, isGone)
		}
	}
	want(t, "one that is gone and not settled", known[key(0)], true)
	if len(known) > count*3/4 {
		t.Errorf("%d are known: nothing was left out", len(known))
	}
}

// TestFault_F39_CompactingLosesNoLineOfOthers: several write while several
// compact, in processes that do not know of each other.
func TestFault_F39_CompactingLosesNoLineOfOthers(t *testing.T) {
	const writers, each = 4, 300
	dir := t.TempDir()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	key := func(w, i int) Key { return Key{PluginID(fmt.Sprintf("%d-%d", w, i)), "net", "eth0"} }
	stop := make(chan struct{})
	var compacting, writing sync.WaitGroup
	for range 2 {
		compacting.Add(1)
		go func() {
			defer compacting.Done()
			l := Open(dir).Ledger("me")
			for {
				if err := l.Compact(func(gone map[Key]Known) []Key { return slices.Collect(maps.Keys(gone)) }); err != nil {
					t.Error(err)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	for w := range writers {
		writing.Add(1)
		go func() {
			defer writing.Done()
			random := rand.New(rand.NewPCG(seed, uint64(w)))
			l := Open(dir).Ledger("me")
			for i := range each {
				if err := l.Add(Line{Key: key(w, i)}); err != nil {
					t.Error(err)
				}
				if i%3 == 0 {
					if err := l.Add(Line{Key: key(w, i), Gone: true}); err != nil {
						t.Error(err)
					}
				}
				if random.IntN(20) == 0 {
					if err := l.Sync().Wait(); err != nil {
						t.Error(err)
					}
				}
			}
		}()
	}
	writing.Wait()
	close(stop)
	compacting.Wait()
	l := Open(dir).Ledger("me")
	want(t, "files", filesOf(t, l), []string{l.path})
	known := gone(t, l)
	for w := range writers {
		for i := range each {
			isGone, ok := known[key(w, i)]
			if i%3 != 0 && (!ok || isGone) || i%3 == 0 && ok && !isGone {
				t.Fatalf("%v is known: %v, gone: %v", key(w, i), ok, isGone)
			}
		}
	}
}

// TestFault_F39_ACrashWhileCompactingLosesNothing: it checks the files after
// each step.
func TestFault_F39_ACrashWhileCompactingLosesNothing(t *testing.T) {
	a, b, c := Key{"c1", "net", "eth0"}, Key{"c2", "net", "eth0"}, Key{"c3", "net", "eth0"}
	for name, steps := range map[string]func(l *Ledger){
		"second name": func(l *Ledger) { secondName(t, l) },
		"new file begun": func(l *Ledger) {
			secondName(t, l)
			check(t, os.WriteFile(l.path+tmpExt, []byte("half"), 0o600))
		},
		"new file in place": func(l *Ledger) {
			secondName(t, l)
			next, err := l.replace(map[Key]Known{a: {}, b: {}})
			check(t, err)
			check(t, next.Close())
		},
		"a line too late": func(l *Ledger) {
			_, next, _ := compactUntilInPlace(t, l, Line{Key: c})
			check(t, next.Close())
		},
		"half of a late line taken over": func(l *Ledger) {
			_, next, _ := compactUntilInPlace(t, l, Line{Key: c})
			line, err := encodeLines([]Line{{Key: c, Sum: true}})
			check(t, err)
			_, err = next.Write(append([]byte("\n"), line[:len(line)/2]...))
			check(t, errors.Join(err, next.Close()))
		},
		"a late line taken over": func(l *Ledger) {
			old, next, sources := compactUntilInPlace(t, l, Line{Key: c})
			late, err := l.late(old, sources)
			check(t, err)
			check(t, errors.Join(l.takeOver(next, late), next.Close()))
		},
		"the earliest file deleted": func(l *Ledger) {
			secondName(t, l) // of a compaction that was killed
			old, next, sources := compactUntilInPlace(t, l, Line{Key: c})
			late, err := l.late(old, sources)
			check(t, err)
			check(t, errors.Join(l.takeOver(next, late), next.Close(), os.Remove(l.path+prevExt+"0")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := Open(t.TempDir()).Ledger("me")
			adds(t, l, false, a, b)
			steps(l)
			if _, ok := gone(t, l)[c]; !ok {
				adds(t, l, false, c)
			}
			want(t, "after the crash", gone(t, l), map[Key]bool{a: false, b: false, c: false})
			for range 2 {
				check(t, l.Compact(func(map[Key]Known) []Key { return nil }))
				want(t, "compacted", gone(t, l), map[Key]bool{a: false, b: false, c: false})
			}
			want(t, "files", filesOf(t, l), []string{l.path})
		})
	}
}

func secondName(t testing.TB, l *Ledger) {
	t.Helper()
	_, err := l.keepPrevious()
	check(t, err)
}

// compactUntilInPlace does what compacting does until the new file is in place.
// The late lines come after the ledger was read.
func compactUntilInPlace(t testing.TB, l *Ledger, late ...Line) (old, next *os.File, sources []source) {
	t.Helper()
	old, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND, 0)
	check(t, err)
	t.Cleanup(func() { check(t, old.Close()) })
	secondName(t, l)
	known, sources, err := l.read(false)
	check(t, err)
	check(t, l.Add(late...))
	next, err = l.replace(known)
	check(t, err)
	return old, next, sources
}

func filesOf(t testing.TB, l *Ledger) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(l.path), "*"))
	check(t, err)
	return files
}

// TestFault_F39_AnEarlierVersionBesideUsDropsNoLineOfOurs: it appends to the
// file that it knows and renames it when it is long, replacing the previous
// one.
func TestFault_F39_AnEarlierVersionBesideUsDropsNoLineOfOurs(t *testing.T) {
	l := Open(t.TempDir()).Ledger("me")
	ours, its, old, late := Key{"c1", "net", "eth0"}, Key{"c2", "net", "eth0"}, Key{"c3", "net", "eth0"}, Key{"c4", "net", "eth0"}
	appends := func(path string, lines ...Line) {
		data, err := encodeLines(lines)
		check(t, err)
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		check(t, err)
		_, err = f.Write(append([]byte("\n"), data...))
		check(t, err)
		check(t, f.Close())
	}
	appends(l.legacy, Line{Key: old})
	check(t, l.Add(Line{Key: ours}))
	check(t, os.Rename(l.legacy, l.legacy+".old"))
	appends(l.legacy, Line{Key: its}, Line{Key: old, Gone: true})
	want(t, "both", gone(t, l), map[Key]bool{ours: false, its: false, old: true})
	check(t, l.Compact(func(gone map[Key]Known) []Key { return slices.Collect(maps.Keys(gone)) }))
	appends(l.legacy, Line{Key: its, Gone: true})
	want(t, "compacted, and gone since", gone(t, l), map[Key]bool{ours: false, its: true, old: true})
	check(t, os.Rename(l.legacy, l.legacy+".old")) // its lines are lost
	appends(l.legacy, Line{Key: late})
	want(t, "its own lines dropped", gone(t, l), map[Key]bool{ours: false, its: true, old: true, late: false})

	check(t, l.Settle([]Key{its, old}))
	want(t, "settled", gone(t, l), map[Key]bool{ours: false, late: false})
	files, err := filepath.Glob(filepath.Join(filepath.Dir(l.path), "*"))
	check(t, err)
	if len(files) != 1 || !strings.HasSuffix(files[0], claimsExt) {
		t.Errorf("there are %v, want our file alone", files)
	}
}

// TestFault_F34_AReleasedAttachmentIsInNoLedger: it belongs to another program
// until it is recorded again, even after compaction.
func TestFault_F34_AReleasedAttachmentIsInNoLedger(t *testing.T) {
	l := Open(t.TempDir()).Ledger("me")
	a, b := Key{"c1", "net", "eth0"}, Key{"c2", "net", "eth0"}
	began, again := time.Unix(1, 2).UTC(), time.Unix(5, 6).UTC()
	addr := netip.MustParseAddr("10.1.0.2")
	check(t, l.Add(Line{Key: a, Dirs: []string{"/d"}, Time: began}, Line{Key: b, Dirs: []string{"/d"}, Time: began}))
	check(t, l.Add(Line{Key: a, Addresses: []netip.Addr{addr}}, Line{Key: a, Released: true}))
	wanted := map[Key]Known{b: {Dirs: []string{"/d"}, Since: began}}
	want(t, "released", readLedger(t, l), wanted)
	check(t, l.Compact(func(map[Key]Known) []Key { return nil }))
	want(t, "released, compacted", readLedger(t, l), wanted)
	check(t, l.Add(Line{Key: a, Dirs: []string{"/e"}, Time: again}))
	wanted[a] = Known{Dirs: []string{"/e"}, Since: again}
	want(t, "recorded again", readLedger(t, l), wanted)
	check(t, l.Compact(func(map[Key]Known) []Key { return nil }))
	want(t, "recorded again, compacted", readLedger(t, l), wanted)
}

// TestFault_F34_ALedgerOfAnEarlierVersionBringsNoReleasedOneBack.
func TestFault_F34_ALedgerOfAnEarlierVersionBringsNoReleasedOneBack(t *testing.T) {
	l := Open(t.TempDir()).Ledger("me")
	a := Key{"c1", "net", "eth0"}
	adds(t, l, false, a)
	check(t, os.Rename(l.path, l.legacy)) // earlier versions' path
	check(t, l.Add(Line{Key: a, Released: true}))
	check(t, l.Compact(func(map[Key]Known) []Key { return nil }))
	want(t, "compacted", readLedger(t, l), map[Key]Known{})
	check(t, l.Settle(nil)) // takes over earlier versions' lines
	want(t, "settled", readLedger(t, l), map[Key]Known{})
	data, err := os.ReadFile(l.path)
	check(t, err)
	want(t, "the ledger's size", len(data), 0)
}
