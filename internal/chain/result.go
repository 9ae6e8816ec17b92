package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// ResultError is what is wrong with the result of a plugin that succeeded.
type ResultError struct {
	Plugin string // its type
	Err    error  // an ErrInvalidResult
}

func (e *ResultError) Error() string { return e.Err.Error() }
func (e *ResultError) Unwrap() error { return e.Err }

// shape is what of a result libcni and this library rely on being there. The
// fields of the versions differ; what they share is enough to make every
// conversion safe.
type shape struct {
	CNIVersion string         `json:"cniVersion"`
	Interfaces []*struct{}    `json:"interfaces"`
	IPs        []*shapeIP     `json:"ips"`
	Routes     []*types.Route `json:"routes"`
}

type shapeIP struct {
	Interface *int        `json:"interface"`
	Address   types.IPNet `json:"address"`
}

// validateResult refuses a result that is not one. libcni checks little: it
// follows a null in a list, and callers follow an index past its end.
func validateResult(out []byte) error {
	var s *shape
	if err := json.Unmarshal(out, &s); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	if s == nil {
		return fmt.Errorf("%w: is null", ErrInvalidResult)
	}
	if known := version.All.SupportedVersions(); s.CNIVersion != "" && !slices.Contains(known, s.CNIVersion) {
		return fmt.Errorf("%w: version %q is not known here (%s)", ErrInvalidResult, s.CNIVersion, strings.Join(known, ", "))
	}
	for i, intf := range s.Interfaces {
		if intf == nil {
			return fmt.Errorf("%w: interfaces[%d] is null", ErrInvalidResult, i)
		}
	}
	for i, ip := range s.IPs {
		if err := validateIP(ip, len(s.Interfaces)); err != nil {
			return fmt.Errorf("%w: ips[%d] %w", ErrInvalidResult, i, err)
		}
	}
	for i, route := range s.Routes {
		if route == nil {
			return fmt.Errorf("%w: routes[%d] is null", ErrInvalidResult, i)
		}
	}
	return nil
}

func validateIP(ip *shapeIP, interfaces int) error {
	switch {
	case ip == nil:
		return errors.New("is null")
	case len(ip.Address.IP) == 0:
		return errors.New("has no address")
	case ip.Interface != nil && (*ip.Interface < 0 || *ip.Interface >= interfaces):
		return fmt.Errorf("has interface index %d of %d interfaces", *ip.Interface, interfaces)
	}
	return nil
}

// withVersion gives a result that does not say its version the configuration's,
// as libcni does; it is what a DEL passes back to the plugins.
func withVersion(out []byte, configVersion string) json.RawMessage {
	o, err := parseObject(out)
	if err != nil {
		return nil // not an object: validateResult or libcni says so
	}
	if v, ok := o.get("cniVersion"); ok && string(v) != `""` {
		return out
	}
	if configVersion == "" {
		configVersion = "0.1.0"
	}
	quoted, err := json.Marshal(configVersion)
	if err != nil {
		return nil
	}
	o.set("cniVersion", quoted)
	data, err := o.bytes()
	if err != nil {
		return nil
	}
	return data
}
