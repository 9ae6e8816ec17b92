package bandwidth

import (
	"errors"
	"fmt"
	"math"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/plugin"
)

// limit is a rate, in bits a second, and a burst, in bits. The zero limit is
// none.
type limit struct{ rate, burst uint64 }

// config is a configuration that has been checked.
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

func (s settings) any() bool {
	return s.IngressRate != nil || s.IngressBurst != nil || s.EgressRate != nil || s.EgressBurst != nil
}

// parse reads the configuration of a request.
func parse(r *plugin.Request) (config, error) {
	var n struct {
		settings
		RuntimeConfig struct {
			Bandwidth settings `json:"bandwidth"`
		} `json:"runtimeConfig"`
	}
	if err := r.Decode(&n); err != nil {
		return config{}, err
	}
	s := n.settings
	if !s.any() {
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

// bucket is a limit in the units of the kernel.
type bucket struct {
	rate   uint64 // bytes a second
	limit  uint32 // bytes that may wait
	buffer uint32 // ticks of the packet scheduler that the burst takes
}

// latency is how long a packet may wait for tokens, in microseconds: 25 ms, as
// the reference plugin has it.
const latency = 25_000

// second is the unit of time of the packet scheduler, in microseconds.
const second = 1_000_000

// bucketOf converts a limit the way the reference plugin does, with its
// roundings, for its CHECK compares them.
func bucketOf(l limit, ticksPerMicrosecond float64) bucket {
	rate, burst := l.rate/8, uint32(l.burst/8)
	microseconds := uint32(float64(burst) * second / float64(rate))
	return bucket{
		rate:   rate,
		limit:  uint32(float64(rate)*latency/second) + burst,
		buffer: uint32(float64(microseconds) * ticksPerMicrosecond),
	}
}
