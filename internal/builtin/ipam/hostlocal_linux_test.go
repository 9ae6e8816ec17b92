package ipam

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// TestBesideTheReference runs ADD and DEL of both concurrently in one
// directory.
func TestBesideTheReference(t *testing.T) {
	const workers, each = 4, 12
	base := t.TempDir()
	dir := base + "/podnet"
	host := expect.Value(netns.Current())(t)
	defer host.Close()
	p := NewHostLocal()
	sides := []plugintest.Side{
		plugintest.Ours(host, func(string) plugin.Plugin { return p }),
		plugintest.Theirs(t, host),
		plugintest.Ours(host, func(string) plugin.Plugin { return NewHostLocal() }),
	}
	_, pin := plugintest.NetNS(t)
	before := plugintest.Audit(t, host, base)
	config := configFor(base, `"ranges": [[{"subnet": "10.1.0.0/25"}], [{"subnet": "fd00::/120"}]]`)
	call := func(id string) plugintest.Call {
		return plugintest.Call{Type: "host-local", ID: id, IfName: "eth0", NetNS: pin, Config: config}
	}
	var mu sync.Mutex
	results := make(map[string][]byte)
	var wg sync.WaitGroup
	for i, side := range sides {
		for w := range workers {
			wg.Go(func() {
				for n := range each {
					id := fmt.Sprintf("%d-%d-%d", i, w, n)
					out, err := side.Run(t.Context(), "ADD", call(id))
					if err != nil {
						t.Errorf("%s: ADD: %v", side.Name, err)
						return
					}
					mu.Lock()
					results[id] = out
					mu.Unlock()
					if n%3 == 0 { // deleted by the next side, without its result
						if _, err := sides[(i+1)%3].Run(t.Context(), "DEL", call(id)); err != nil {
							t.Errorf("DEL: %v", err)
						}
						mu.Lock()
						delete(results, id)
						mu.Unlock()
					}
				}
			})
		}
	}
	wg.Wait()
	owner := make(map[string]string)
	for id, out := range results {
		r := expect.Value(plugintest.Result(out))(t)
		for _, ip := range r.IPs {
			addr := ip.Address.IP.String()
			if other := owner[addr]; other != "" {
				t.Errorf("%s is both %s's and %s's", addr, other, id)
			}
			owner[addr] = id
			data, err := os.ReadFile(filepath.Join(dir, addr))
			if want := holderOf(id, "eth0"); err != nil || string(data) != want {
				t.Errorf("file %s: %q, %v, want %q", addr, data, err, want)
			}
		}
	}
	expect.Same(t, "addresses", len(owner), 2*len(sides)*workers*each*2/3)
	i := 0
	for id, out := range results {
		c := call(id)
		c.Prev = out
		for _, side := range sides {
			side.Must(t, "CHECK", c)
		}
		sides[i%3].Must(t, "DEL", c)
		sides[(i+1)%3].MustFail(t, "CHECK", c)
		i++
	}
	plugintest.NoLeak(t, before, plugintest.Audit(t, host, base))
}

func TestResultsAreEqual(t *testing.T) {
	host := expect.Value(netns.Current())(t)
	defer host.Close()
	_, pin := plugintest.NetNS(t)
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	expect.NoError(t, os.WriteFile(resolv, []byte("nameserver 10.0.0.53\nsearch a b\noptions x\n"), 0o600))
	for _, version := range []string{"0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		ipam := dual + fmt.Sprintf(`, "resolvConf": %q, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd01::/16", "gw": "fd00::9"}]`, resolv)
		sides := []plugintest.Side{plugintest.Ours(host, func(string) plugin.Plugin { return NewHostLocal() }), plugintest.Theirs(t, host)}
		var got [2]string
		for i, side := range sides {
			config := strings.Replace(configFor(t.TempDir(), ipam), `"1.0.0"`, `"`+version+`"`, 1)
			c := plugintest.Call{Type: "host-local", ID: "c1", IfName: "eth0", NetNS: pin, Config: config, Args: "IP=10.1.0.9"}
			got[i] = expect.JSON(t, side.Must(t, "ADD", c))
		}
		expect.Same(t, "version "+version, got[0], got[1])
	}
}

// result returns a previous result with these addresses.
func result(t testing.TB, addrs ...string) *types100.Result {
	t.Helper()
	r := &types100.Result{}
	for _, a := range addrs {
		ip, n, err := net.ParseCIDR(a)
		expect.NoError(t, err)
		n.IP = ip
		r.IPs = append(r.IPs, &types100.IPConfig{Address: *n})
	}
	return r
}

func fill(t testing.TB, dir string, contents map[string]string) {
	t.Helper()
	expect.NoError(t, os.MkdirAll(dir, 0o755))
	for name, content := range contents {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
}

func TestDel(t *testing.T) {
	const mine, other = "a\r\neth0", "a\r\neth1"
	for name, tt := range map[string]struct {
		files map[string]string
		prev  []string
		left  []string
	}{
		"by its result":                  {map[string]string{"10.1.0.2": mine, "fd00::2": mine}, []string{"10.1.0.2/24", "fd00::2/64"}, nil},
		"without a result":               {map[string]string{"10.1.0.2": mine, "fd00::2": mine, "10.1.0.3": other}, nil, []string{"10.1.0.3"}},
		"a result that lacks one":        {map[string]string{"10.1.0.2": mine, "fd00::2": mine}, []string{"10.1.0.2/24"}, nil},
		"a result that is wrong":         {map[string]string{"10.1.0.2": mine, "10.1.0.3": other}, []string{"10.1.0.3/24"}, []string{"10.1.0.3"}},
		"another's by now":               {map[string]string{"10.1.0.2": "b\r\neth0"}, []string{"10.1.0.2/24"}, []string{"10.1.0.2"}},
		"gone":                           {nil, []string{"10.1.0.2/24"}, nil},
		"without interface name":         {map[string]string{"10.1.0.2": "a", "10.1.0.3": "ab"}, []string{"10.1.0.2/24"}, []string{"10.1.0.3"}},
		"with and without":               {map[string]string{"10.1.0.2": "a", "10.1.0.3": mine}, nil, []string{"10.1.0.2"}},
		"space around":                   {map[string]string{"10.1.0.2": " " + mine + "\n"}, nil, nil},
		"an address of no range":         {map[string]string{"10.77.0.2": mine}, nil, nil},
		"a directory, a FIFO is no file": {map[string]string{"10.1.0.2": mine, "sub": ""}, nil, []string{"sub"}},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir := base + "/podnet"
			fill(t, dir, tt.files)
			r := call(configFor(base, dual), "a")
			if tt.prev != nil {
				r.PrevResult = result(t, tt.prev...)
			}
			expect.NoError(t, NewHostLocal().Del(t.Context(), r))
			left := files(t, dir)
			delete(left, "lock")
			if got := slices.Sorted(maps.Keys(left)); !slices.Equal(got, tt.left) {
				t.Errorf("left %q, want %q", got, tt.left)
			}
			if err := NewHostLocal().Del(t.Context(), r); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}

func TestDelOfANetworkThatNeverWas(t *testing.T) {
	base := t.TempDir()
	if err := NewHostLocal().Del(t.Context(), call(configFor(base, dual), "a")); err != nil {
		t.Error(err)
	}
	if left := files(t, base); len(left) > 0 {
		t.Errorf("made %q", left)
	}
}

func TestCheckDetects(t *testing.T) {
	const mine = "a\r\neth0"
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing":           {map[string]string{"10.1.0.2": mine, "fd00::2": mine}, ""},
		"old format":        {map[string]string{"10.1.0.2": "a", "fd00::2": mine}, ""},
		"IPv4 gone":         {map[string]string{"fd00::2": mine}, `the address 10.1.0.2 of container "a" is not reserved: read DIR/10.1.0.2: no such file or directory`},
		"IPv6 gone":         {map[string]string{"10.1.0.2": mine}, `the address fd00::2 of container "a" is not reserved: read DIR/fd00::2: no such file or directory`},
		"another container": {map[string]string{"10.1.0.2": "b\r\neth0", "fd00::2": mine}, `the address 10.1.0.2 of container "a" is reserved for "b\r\neth0"`},
		"another interface": {map[string]string{"10.1.0.2": mine, "fd00::2": "a\r\neth1"}, `the address fd00::2 of container "a" is reserved for "a\r\neth1"`},
		"empty":             {map[string]string{"10.1.0.2": mine, "fd00::2": ""}, `the address fd00::2 of container "a" is reserved for ""`},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir := base + "/podnet"
			fill(t, dir, tt.files)
			r := call(configFor(base, dual), "a")
			r.PrevResult = result(t, "10.1.0.2/24", "fd00::2/64")
			err := NewHostLocal().Check(t.Context(), r)
			want := strings.ReplaceAll(`network "podnet": `+tt.want, "DIR", dir)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != want) {
				t.Errorf("got %v, want %s", err, want)
			}
			r.PrevResult = nil // then only the files answer
			if err := NewHostLocal().Check(t.Context(), r); (err == nil) != (tt.want == "") {
				t.Errorf("without a result: %v", err)
			}
		})
	}
	t.Run("no directory", func(t *testing.T) {
		expect.Is(t, NewHostLocal().Check(t.Context(), call(configFor(t.TempDir(), dual), "a")), fs.ErrNotExist)
	})
}

// TestFault_F50_AResolvConfThatIsNoFileBlocksNobody: neither a FIFO without a
// writer nor an endless file.
func TestFault_F50_AResolvConfThatIsNoFileBlocksNobody(t *testing.T) {
	base := t.TempDir()
	fifo := filepath.Join(base, "fifo")
	expect.NoError(t, unix.Mkfifo(fifo, 0o600))
	long := filepath.Join(base, "long")
	expect.NoError(t, errors.Join(os.WriteFile(long, nil, 0o600), os.Truncate(long, maxResolvConf+1)))
	for path, want := range map[string]error{fifo: plainfile.ErrNotRegular, "/dev/zero": plainfile.ErrNotRegular, long: plainfile.ErrTooLong, base: unix.EISDIR} {
		ended := make(chan error, 1)
		go func() {
			_, err := NewHostLocal().Add(t.Context(), call(configFor(base, fmt.Sprintf(`"subnet": "10.1.0.0/24", "resolvConf": %q`, path)), "a"))
			ended <- err
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v, want one that is %q", path, err, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s holds up the call", path)
		}
	}
	if left := files(t, base+"/podnet"); len(left) > 0 {
		t.Errorf("there is %q", left)
	}
}

// TestFault_F50_FIFOsInPlaceOfTheNetworksFilesBlockNobody puts FIFOs in place of
// host-local's files.
func TestFault_F50_FIFOsInPlaceOfTheNetworksFilesBlockNobody(t *testing.T) {
	base := t.TempDir()
	dir := base + "/podnet"
	expect.NoError(t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"10.1.0.2", "10.1.0.3", "last_reserved_ip.0", "lock"} {
		expect.NoError(t, unix.Mkfifo(filepath.Join(dir, name), 0o600))
	}
	ended := make(chan error, 1)
	go func() {
		p, r := NewHostLocal(), call(configFor(base, `"subnet": "10.1.0.0/24"`), "a")
		_, err := p.Add(t.Context(), r)
		ended <- errors.Join(err, p.Del(t.Context(), r), p.Status(t.Context(), r))
	}()
	select {
	case err := <-ended:
		t.Log(err)
	case <-time.After(time.Minute):
		t.Fatal("a FIFO holds up the calls")
	}
}

func TestStatus(t *testing.T) {
	base := t.TempDir()
	p := NewHostLocal()
	r := call(configFor(base, `"ranges": [[{"subnet": "10.1.0.0/30"}], [{"subnet": "fd00::/64"}]]`), "a")
	if err := p.Status(t.Context(), r); err != nil {
		t.Error(err)
	}
	assign(t, p, r)
	err := p.Status(t.Context(), r)
	want := &types.Error{Code: 50, Msg: `network "podnet": all addresses of the range set 10.1.0.1-10.1.0.2 are in use`}
	if e := (*types.Error)(nil); !errors.As(err, &e) || !reflect.DeepEqual(e, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	fill(t, base, map[string]string{"file": ""})
	if err := p.Status(t.Context(), call(configFor(base+"/file", dual), "a")); plugintest.Code(err) != 50 {
		t.Errorf("a directory that cannot be made: %v", err)
	}
}
