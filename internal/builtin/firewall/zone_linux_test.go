package firewall

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/firewalldtest"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/contract"
)

// TestDetect compares the detected backend, and the backend that gets the
// rules.
func TestDetect(t *testing.T) {
	h := plugintest.NewHost(t)
	s := firewalldtest.StartBus(t, h.Host)
	detect := func(config string) string {
		t.Helper()
		got, err := Plugin{}.Detect(contract.With(t.Context(), contract.Given{Bus: firewalld.Open(s.Address)}), h.Host, []byte(config))
		if err != nil {
			t.Error(err)
		}
		return got
	}
	for config, want := range map[string][2]string{ // without and with a firewalld
		`{}`:                               {netfilter.DetectedIPTables, netfilter.DetectedFirewalld},
		`{"backend": "ip6tables"}`:         {netfilter.DetectedIPTables, netfilter.DetectedFirewalld},
		`{"iptablesAdminChainName": "A"}`:  {netfilter.DetectedIPTables, netfilter.DetectedFirewalld},
		`{"firewalldZone": "pods"}`:        {netfilter.DetectedIPTables, netfilter.DetectedFirewalld},
		`{"backend": "iptables"}`:          {"", ""},
		`{"backend": "firewalld"}`:         {"", ""},
		`{"backend": 5, "said by": "ADD"}`: {"", ""},
	} {
		expect.Same(t, config+" without a firewalld", detect(config), want[0])
		defer func() {
			expect.Same(t, config+" with a firewalld", detect(config), want[1])
		}()
	}
	s.StartFirewalld()
}

// TestDetectWithoutIPTables: without the program iptables, nftables objects
// suffice if iptables is not required.
func TestDetectWithoutIPTables(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	bus := contract.With(t.Context(), contract.Given{Bus: firewalld.Open("unix:path=" + filepath.Join(t.TempDir(), "none"))})
	for config, want := range map[string]string{
		`{"backend": "ip6tables"}`:        netfilter.DetectedIPTables,
		`{"iptablesAdminChainName": "A"}`: netfilter.DetectedIPTables,
	} {
		if got, err := (Plugin{}).Detect(bus, nil, []byte(config)); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", config, got, err, want)
		}
	}
}

// TestErrorsAboutFirewalld name the unknown fact and the remedy.
func TestErrorsAboutFirewalld(t *testing.T) {
	h := plugintest.NewHost(t)
	s := firewalldtest.StartBus(t, h.Host)
	with := contract.With(t.Context(), contract.Given{Bus: firewalld.Open(s.Address)})
	ours := plugintest.Ours(h.Host, lookup)
	named := call(h, "c1", `, "backend": "firewalld"`, "10.1.0.2/24")
	if _, err := ours.Run(with, "ADD", named); !errors.Is(err, firewalld.ErrNotRunning) || !strings.HasSuffix(err.Error(), `; start firewalld, or set "backend" to "iptables"`) {
		t.Errorf("ADD without a firewalld: %v", err)
	}
	if _, err := ours.Run(with, "DEL", named); err != nil {
		t.Errorf("DEL without a firewalld: %v", err)
	}
	status := named
	status.Prev = nil
	expect.Says(t, "STATUS without a firewalld", expect.Err(ours.Run(with, "STATUS", status)), "no firewalld runs")
	thaw := s.FreezeBus()
	defer thaw()
	var err error
	expect.Limited(50*time.Millisecond, func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(with, limit)
		defer cancel()
		_, err = ours.Run(ctx, "ADD", call(h, "c1", "", "10.1.0.2/24"))
		return err != nil && !strings.Contains(err.Error(), "whether a firewalld runs") // it had not come so far
	})
	want := `; mend the D-Bus, or set "backend" to "firewalld" or "iptables"`
	if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "plugin firewall: whether a firewalld runs") || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("ADD with a bus that hangs: %v", err)
	}
}
