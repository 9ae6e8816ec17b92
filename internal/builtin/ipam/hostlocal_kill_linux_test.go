package ipam

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// victim is an environment variable. It makes this program add and delete in
// the directory that it names, until the program is killed.
const victim = "EMBEDCNI_HOST_LOCAL_VICTIM"

// workUntilKilled prints a line after each ADD with a DEL: its own, or that of the last but
// one, which kept its address.
func workUntilKilled(base string) int {
	p := NewHostLocal()
	for i := 0; ; i++ {
		r := call(configFor(base, dual), fmt.Sprint("victim", i))
		result, err := p.Add(context.Background(), r)
		if r.PrevResult = result; i%2 == 1 {
			r = call(configFor(base, dual), fmt.Sprint("victim", i-2))
		}
		if err == nil {
			err = p.Del(context.Background(), r)
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("done")
	}
}

// TestKilled: a process may be killed at any time. It leaves only complete
// reservations, which name their holder, and a free lock.
func TestKilled(t *testing.T) {
	base := t.TempDir()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	p := NewHostLocal()
	for round := range 40 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victim+"="+base)
		out := expect.Value(cmd.StdoutPipe())(t)
		expect.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for range 1 + rnd.IntN(40) {
			if !lines.Scan() || lines.Text() != "done" {
				t.Fatalf("the victim says %q", lines.Text())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		expect.Fails(t, "the victim ended by itself", cmd.Wait())
		assign(t, p, call(configFor(base, dual), "survivor"))
		for name, content := range files(t, base+"/podnet") {
			if _, err := netip.ParseAddr(name); err != nil {
				continue
			}
			id, ifName, _ := strings.Cut(content, LineBreak)
			if ifName != "eth0" {
				t.Fatalf("round %d: %s contains %q", round, name, content)
			}
			expect.NoError(t, p.Del(t.Context(), call(configFor(base, dual), id)))
		}
		left := slices.Sorted(maps.Keys(files(t, base+"/podnet")))
		if want := []string{"last_reserved_ip.0", "last_reserved_ip.1", "lock"}; !slices.Equal(left, want) {
			t.Fatalf("round %d: left %q, want %q", round, left, want)
		}
	}
}
