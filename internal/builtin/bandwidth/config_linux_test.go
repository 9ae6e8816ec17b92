package bandwidth

import (
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/plugin"
)

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct {
		config string
		want   config
		err    string
	}{
		"nothing":    {`{}`, config{}, ""},
		"top level":  {`{"ingressRate": 800, "ingressBurst": 80, "egressRate": 1600, "egressBurst": 160}`, config{limit{800, 80}, limit{1600, 160}}, ""},
		"capability": {`{"runtimeConfig": {"bandwidth": {"ingressRate": 800, "ingressBurst": 80}}}`, config{ingress: limit{800, 80}}, ""},
		"both":       {`{"egressRate": 1600, "egressBurst": 160, "runtimeConfig": {"bandwidth": {"ingressRate": 800, "ingressBurst": 80}}}`, config{egress: limit{1600, 160}}, ""},
		"zero wins":  {`{"egressRate": 0, "runtimeConfig": {"bandwidth": {"ingressRate": 800, "ingressBurst": 80}}}`, config{}, ""},
		"no rate":    {`{"ingressBurst": 80}`, config{}, "bandwidth: ingressBurst is set, but ingressRate is not"},
		"no burst":   {`{"egressRate": 80}`, config{}, "bandwidth: egressRate is set, but egressBurst is not"},
		"too slow":   {`{"egressRate": 7, "egressBurst": 80}`, config{}, "bandwidth: egressRate is 7 bits a second: the kernel counts bytes, so it must be 8 at least"},
		"too much":   {`{"egressRate": 80, "egressBurst": 34359738360}`, config{}, "bandwidth: egressBurst is 34359738360 bits: it must be less than 4 GiB"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(&plugin.Request{Type: "bandwidth", Config: []byte(tt.config)})
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("got %v, want %s", err, tt.err)
				}
			} else if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
	expect.Fails(t, "no error for a negative rate", expect.Err(parse(&plugin.Request{Type: "bandwidth", Config: []byte(`{"egressRate": -1}`)})))
}

func TestBucket(t *testing.T) {
	// 8 Mbit/s with bursts of 1 MiB: tokens for more than a second.
	got := bucketOf(limit{rate: 8_000_000, burst: 8 << 20}, 15.625)
	if want := (links.Bucket{Rate: 1_000_000, Limit: 25_000 + 1<<20, Buffer: 16_384_000}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
