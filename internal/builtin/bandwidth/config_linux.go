package bandwidth

import (
	"errors"
	"fmt"
	"math"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// limit is a rate, in bits a second, and a burst, in bits. The zero limit means
// no limit.
type limit struct{ rate, burst uint64 }

// config is a validated configuration.
type config struct{ ingress, egress limit }

func (c config) none() bool { return c == config{} }

// settings may be at the top level, or come from the caller as the capability
// "bandwidth" (CONVENTIONS.md of CNI). The former win.
type settings struct {
	IngressRate  *uint64 `json:"ingressRate"`
	IngressBurst *uint64 `json:"ingressBurst"`
	EgressRate   *uint64 `json:"egressRate"`
	EgressBurst  *uint64 `json:"egressBurst"`
}

// netConf is the part of a request configuration that bandwidth reads.
type netConf struct {
	settings
	RuntimeConfig struct {
		Bandwidth settings `json:"bandwidth"`
	} `json:"runtimeConfig"`
}

// parse reads the configuration of a request.
func parse(r *plugin.Request) (config, error) {
	var n netConf
	if err := r.Decode(&n); err != nil {
		return config{}, err
	}
	s := n.settings
	if s == (settings{}) {
		s = n.RuntimeConfig.Bandwidth
	}
	ingress, err := newLimit("ingress", s.IngressRate, s.IngressBurst)
	egress, err2 := newLimit("egress", s.EgressRate, s.EgressBurst)
	if err := errors.Join(err, err2); err != nil {
		return config{}, plugin.Errorf(types.ErrInvalidNetworkConfig, "bandwidth: %w", err)
	}
	return config{ingress: ingress, egress: egress}, nil
}

func newLimit(direction string, rate, burst *uint64) (limit, error) {
	var l limit
	if rate != nil {
		l.rate = *rate
	}
	if burst != nil {
		l.burst = *burst
	}
	switch {
	case l.rate == 0 && l.burst != 0:
		return l, fmt.Errorf("%sBurst is set, but %sRate is not", direction, direction)
	case l.rate != 0 && l.burst == 0:
		return l, fmt.Errorf("%sRate is set, but %sBurst is not", direction, direction)
	case l.rate != 0 && l.rate < 8:
		return l, fmt.Errorf("%sRate is %d bits a second: the kernel counts bytes, so it must be 8 at least", direction, l.rate)
	case l.burst/8 >= math.MaxUint32:
		return l, fmt.Errorf("%sBurst is %d bits: it must be less than 4 GiB", direction, l.burst)
	}
	return l, nil
}

// latency is the longest time that a packet waits for tokens, in microseconds:
// 25 ms, as in the reference plugin.
const latency = 25_000

// second is a second in the packet scheduler's unit, microseconds.
const second = 1_000_000

// bucketOf converts a limit as the reference plugin does, with its rounding,
// because its CHECK compares the values.
func bucketOf(l limit, ticksPerMicrosecond float64) links.Bucket {
	rate, burst := l.rate/8, uint32(l.burst/8)
	microseconds := uint32(float64(burst) * second / float64(rate))
	return links.Bucket{
		Rate:   rate,
		Limit:  uint32(float64(rate)*latency/second) + burst,
		Buffer: uint32(float64(microseconds) * ticksPerMicrosecond),
	}
}
